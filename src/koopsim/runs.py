"""A run directory: all that is known of one training, in files anyone can read.

    config.json              the preset's name and the whole configuration
    env.json                 commit, command, versions, hardware
    inputs.json              of a classifier: how pictures become what it takes, and its classes (datasets/inputs.py)
    data.json                a fingerprint of the data, so that other data is not taken for it
    metrics.jsonl            one line an epoch: the truth that every curve is drawn from
    checkpoint.safetensors   where to go on from: weights, optimiser, random state
    result.json              written last, so its presence means the run is finished
    looks.jsonl              one line each time the test split was looked at; kept even by --overwrite

Every file is written whole or not at all, and none of them can carry code.
"""

import math
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from koopsim.config import Run, from_dict, to_dict
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.files.json import json_text, read_json, read_lines
from koopsim.files.shapes import naming, require_shape
from koopsim.files.writing import append_line, named, write_atomically, write_figure, write_json
from koopsim.origin import commit

__all__ = ["RunDirectory", "environment", "named", "read_run_json", "write_atomically", "write_figure", "write_json"]

RUN_FILES = (
    "config.json", "data.json", "inputs.json", "env.json", "metrics.jsonl", "checkpoint.safetensors", "result.json",
)  # fmt: skip
MADE_AGAIN = " Delete it, and --resume makes it again."
FIGURES = {"*": float}
RESULT = {
    "name": str, "run": dict, "environment": dict, "parameters": int,
    "metrics": [{"epoch": int, "seconds": float, "*": float}],
    "train_seconds": float, "milliseconds_per_step": float, "set_up_seconds?": float, "best_epoch?": int,
    "test?": FIGURES, "valid?": FIGURES, "look?": {"missing?": {"*": str}},
    "intervals?": {"radii": [[float]], "coverage": float},
}  # what is taken out of a result; there may be more in it  # fmt: skip
LOOKS = "looks.jsonl"  # added to, never begun anew: who chooses by a test figure has to count how often it was seen


class RunDirectory:
    """The folder of one run."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.environment_file = self.path / "env.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.checkpoint_file = self.path / "checkpoint.safetensors"
        self.result_file = self.path / "result.json"
        self.looks_file = self.path / LOOKS

    @classmethod
    def create(
        cls, path: Path | str, run: Run, name: str, overwrite: bool = False, again: bool = False
    ) -> "RunDirectory":
        """A new run directory; one that already holds a run is left alone unless told otherwise.

        `overwrite` is the user's word and lets go of anybody's files of these names; `again` lets go of ours alone.
        """
        directory = cls(path)
        with folders.held(path) as folder:
            cls.refuse_taken(path, overwrite or again)
            folders.claim(folder, "run", (*RUN_FILES, LOOKS), overwrite)
            for stale in reversed(RUN_FILES[1:]):
                (folder / stale).unlink(missing_ok=True)
            directory.config_file.unlink(missing_ok=True)
            write_json(directory.environment_file, environment())
            write_json(directory.config_file, {"name": name, "run": to_dict(run)})
            folders.note(folder, replacing=None)
        return directory

    @classmethod
    def refuse_taken(cls, path: Path | str, overwrite: bool) -> None:
        """A folder that holds a run is left alone unless told otherwise."""
        if cls(path).config_file.exists() and not overwrite:
            raise KoopsimError(
                f"{path} already holds a run: resume it with 'koopsim train --resume {path}', "
                "or add --overwrite to start again."
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder alone while a run is trained in it; a second process is refused."""
        with folders.held(self.path) as folder:
            folders.claim(folder, "run", (*RUN_FILES, LOOKS))
            yield

    def read_config(self) -> tuple[str, Run]:
        """The preset's name and the configuration."""
        if not self.path.is_dir():
            raise KoopsimError(f"There is no folder {self.path}.")
        config = read_run_json(self.config_file)
        if not isinstance(config, dict) or not isinstance(config.get("name"), str) or "run" not in config:
            raise KoopsimError(f"{self.config_file} is not a run's configuration: it needs a name and a run.")
        name = config["name"]
        if not name or not name.isprintable() or len(name) > 1000:
            raise KoopsimError(f"{self.config_file}: the name {name[:100]!r} cannot be one of a run.")
        try:
            with naming(self.config_file):
                return name, from_dict(Run, config["run"], str(self.config_file))
        except (KeyError, TypeError, ValueError) as error:
            raise KoopsimError(f"{self.config_file} is not a run's configuration: {error!r}.") from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; one cut short by a crash is left out, others that are bad with a warning."""
        return read_lines(self.metrics_file, _problem_of_line)

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Add a line; a figure that is NaN or infinite stops the run instead."""
        append_line(self.metrics_file, json_text(line, f"epoch {line.get('epoch')} of {self.path}", indent=None))

    def forget_metrics_after(self, step: int) -> None:
        """Drop the lines a checkpoint does not know of: they will be written again, the same."""
        kept = [json_text(line, indent=None) for line in self.read_metrics() if line["step"] <= step]
        write_atomically(self.metrics_file, "".join(line + "\n" for line in kept).encode())

    def check_data(self, fingerprint: str, note: bool = False) -> None:
        """Refuse data that is not what this run was trained on; `note` writes down what a new run is trained on.

        Runs from before this was written down are taken as they are.
        """
        file = self.path / "data.json"
        if file.exists():
            known = read_run_json(file)
            if not isinstance(known, dict) or known.get("fingerprint") != fingerprint:
                raise KoopsimError(
                    f"The data is not what {self.path} was trained on: pictures, labels or class names have changed "
                    "since. Put the old data back, or train anew on the new."
                )
        elif note:
            write_json(file, {"fingerprint": fingerprint})

    def note_look(self, name: str, figures: dict[str, Any]) -> int:
        """Write down that the test split was looked at, with what was seen; returns how many looks that makes."""
        here = environment()
        look = {key: here[key] for key in ("date", "commit", "command")} | {"name": name, "test": figures}
        append_line(self.looks_file, json_text(look, f"a test figure of {self.path}", indent=None))
        return len(self.read_looks())

    def read_looks(self) -> list[dict[str, Any]]:
        """Each time the test split was looked at, in order; runs from before this was counted have none."""
        return read_lines(self.looks_file, lambda look: None if isinstance(look.get("test"), dict) else "no test in it")

    def read_result(self) -> dict[str, Any]:
        """What came out; one line where it is no run's result, as it may be after somebody's edit."""
        result = read_run_json(self.result_file)
        require_shape(result, RESULT, self.result_file, "the result of a run", MADE_AGAIN)
        with naming(self.result_file):
            from_dict(Run, result["run"], "its run")
        return result

    def read_environment(self) -> dict[str, Any]:
        found = read_run_json(self.environment_file)
        require_shape(found, dict, self.environment_file, "a run's environment")
        return found


@folders.known_before_markers
def _run_before_markers(folder: Path) -> tuple[str, ...]:
    """A folder with a run's config.json is a run directory, though it has no marker."""
    try:
        found = read_json(folder / "config.json", 2**20)
    except (OSError, KoopsimError):
        return ()
    ours = isinstance(found, dict) and isinstance(found.get("run"), dict) and found["run"].get("kind") == "Run"
    return RUN_FILES if ours else ()


def _problem_of_line(line: dict[str, Any]) -> str | None:
    for key in ("epoch", "step"):
        if type(line.get(key)) is not int or line[key] < 0:
            return f"its {key} is {str(line.get(key))[:40]!r}; expected a whole number"
    wrong = [k for k, v in line.items() if not (type(v) in (int, float) and math.isfinite(v))]
    return f"its {wrong[0]} is {str(line[wrong[0]])[:40]!r}; expected a number" if wrong else None


def read_run_json(path: Path) -> Any:
    """The value in a JSON file of a run directory; a missing or broken one is an error of one line."""
    try:
        return read_json(path)
    except FileNotFoundError:
        raise KoopsimError(f"{path.parent} is not a run directory: it has no {path.name}.") from None


def environment() -> dict[str, Any]:
    """What a number depends on besides its configuration."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "commit": commit(),
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in ("koopsim", "torch", "numpy", "scipy", "safetensors")},
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": _gpu(),
    }


def version_of(package: str) -> str | None:
    """Of an installed package; None of one that is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _gpu() -> str | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name()
