"""A run directory: all that is known of one training, in files anyone can read.

    config.json              the preset's name and the whole configuration
    env.json                 commit, command, versions, hardware
    metrics.jsonl            one line an epoch: the truth that every curve is drawn from
    checkpoint.safetensors   where to go on from: weights, optimiser, random state
    result.json              written last, so its presence means the run is finished

Every file is written whole or not at all, and none of them can carry code.
"""

import contextlib
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from koopsim.config import Run, from_dict, to_dict
from koopsim.errors import KoopsimError


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """An error of the system about this file says so: a full disk by itself names nothing."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part."""
    with named(path):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with named(path), os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_figure(path: Path, figure: Any, **options: Any) -> None:
    """Draw a matplotlib figure into `path`, atomically; what it is drawn as is the path's suffix."""
    file = io.BytesIO()
    figure.savefig(file, format=path.suffix.removeprefix("."), **({"dpi": 150} | options))
    write_atomically(path, file.getvalue())


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


class RunDirectory:
    """The folder of one run."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.environment_file = self.path / "env.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.checkpoint_file = self.path / "checkpoint.safetensors"
        self.result_file = self.path / "result.json"

    @classmethod
    def create(cls, path: Path | str, run: Run, name: str, overwrite: bool = False) -> "RunDirectory":
        """A new run directory; one that already holds a run is left alone unless told otherwise."""
        directory = cls(path)
        if directory.config_file.exists() and not overwrite:
            raise KoopsimError(
                f"{path} already holds a run: resume it with 'koopsim train --resume {path}', "
                "or add --overwrite to start again."
            )
        try:
            directory.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KoopsimError(f"Cannot make the folder {path}: {error.strerror}.") from error
        for stale in (directory.result_file, directory.checkpoint_file, directory.metrics_file):
            stale.unlink(missing_ok=True)
        write_json(directory.environment_file, environment())
        write_json(directory.config_file, {"name": name, "run": to_dict(run)})
        return directory

    def read_config(self) -> tuple[str, Run]:
        """The preset's name and the configuration."""
        if not self.path.is_dir():
            raise KoopsimError(f"There is no folder {self.path}.")
        config = read_json(self.config_file)
        try:
            return config["name"], from_dict(Run, config["run"], str(self.config_file))
        except (KeyError, TypeError, ValueError) as error:
            raise KoopsimError(f"{self.config_file} is not a run's configuration: {error!r}.") from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last line cut short by a crash is left out."""
        if not self.metrics_file.exists():
            return []
        lines = self.metrics_file.read_text().split("\n")
        return [json.loads(line) for line in lines[:-1] if line]

    def append_metrics(self, line: dict[str, Any]) -> None:
        with named(self.metrics_file), self.metrics_file.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def forget_metrics_after(self, step: int) -> None:
        """Drop the lines a checkpoint does not know of: they will be written again, the same."""
        kept = [json.dumps(line) for line in self.read_metrics() if line["step"] <= step]
        write_atomically(self.metrics_file, "".join(line + "\n" for line in kept).encode())

    def read_result(self) -> dict[str, Any]:
        return read_json(self.result_file)

    def read_environment(self) -> dict[str, Any]:
        return read_json(self.environment_file)


def read_json(path: Path) -> Any:
    """The value in a JSON file; a missing or broken one is an error of one line."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise KoopsimError(f"{path.parent} is not a run directory: it has no {path.name}.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise KoopsimError(f"{path} cannot be read: {error}.") from error


def environment() -> dict[str, Any]:
    """What a number depends on besides its configuration."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("koopsim", "torch", "numpy", "scipy", "safetensors")},
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": _gpu(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of this source tree; KOOPSIM_COMMIT where the tree travelled without its history."""
    if "KOOPSIM_COMMIT" in os.environ:
        return os.environ["KOOPSIM_COMMIT"]
    here = Path(__file__).resolve().parent
    if not (here.parent.parent / ".git").exists():
        return None
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=here, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _gpu() -> str | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name()
