"""How to have a number again: the command that trains a run, and what the run was made with.

The command is the preset and its differences from it: `koopsim train cifar10/sim-single --recipe best --seed 2`.
"""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from koopsim.config import Run, from_dict
from koopsim.errors import KoopsimError
from koopsim.presets import run_of
from koopsim.report.kinds import Result, task_kind_of
from koopsim.report.names import machine_of, seed_of
from koopsim.report.tables import Table


def command(result: Result) -> str | None:
    """The command line that repeats a run; None where its preset or its configuration is not known here."""
    name, _, recipe = result["name"].partition(":")
    try:
        run = from_dict(Run, result["run"], "run")
        bases = {scale: run_of(result["name"], scale) for scale in ("paper", "smoke")}
    except (KoopsimError, ValueError, TypeError, KeyError, OverflowError):
        return None
    options = {scale: _differences(base, run) for scale, base in bases.items()}
    scale = "smoke" if _weight(options["smoke"]) < _weight(options["paper"]) else "paper"
    chosen = options[scale]
    if chosen is None:
        return None
    words = ["koopsim", "train", name]
    words += ["--recipe", recipe] if recipe else []
    words += ["--scale", "smoke"] if scale == "smoke" else []
    return shlex.join([*words, *chosen])


def _weight(options: list[str] | None) -> int:
    return 10_000 if options is None else len(options)


def _differences(base: Any, run: Any, prefix: str = "") -> list[str] | None:
    """Options that make `run` of `base`; None where another kind of part would be needed, which no option sets."""
    if type(base) is not type(run):
        return None
    found: list[str] = []
    for entry in dataclasses.fields(base):
        old, new = getattr(base, entry.name), getattr(run, entry.name)
        path = f"{prefix}{entry.name}".replace("_", "-")
        if dataclasses.is_dataclass(old) or dataclasses.is_dataclass(new):
            deeper = _differences(old, new, f"{prefix}{entry.name}.")
            if deeper is None:
                return None
            found += deeper
        elif old != new:
            found += _option(path, new)
    return found


def _option(path: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        head, dot, last = path.rpartition(".")
        return [f"--{head}{dot}{'' if value else 'no-'}{last}"]
    if isinstance(value, tuple):
        return [f"--{path}", *map(str, value)]
    return [f"--{path}", str(value)]


def runs_table(results: Sequence[Result]) -> Table | None:
    """Every run: its number, its seed, where and when it was made, and how to make it again."""
    if not results:
        return None
    rows = []
    for result in results:
        where = result["environment"]
        number = f"{result['train_seconds']:.1f} s"
        rows.append(
            [
                _folder(result), command(result) or "-", _figure(result), str(seed_of(result)), number,
                str(where.get("commit") or "-")[:24], machine_of(result), _versions(where),
                str(where.get("date") or "-")[:10],
            ]
        )  # fmt: skip
    head = ["run", "command", "figure", "seed", "training", "commit", "machine", "versions", "date"]
    note = "The same command on the same machine and versions gives the same figure up to the order of sums on a GPU."
    return Table("Every run, and how to have it again", head, rows, note, words=2)


def _folder(result: Result) -> str:
    path = Path(result["path"])
    if path.name != "result.json":
        return path.stem
    folder = path.parent
    return f"{folder.parent.name}/{folder.name}" if folder.name.startswith("best") else folder.name  # of a search


def _figure(result: Result) -> str:
    """The figure that tables show, of the test split where there is one."""
    split = "test" if "test" in result else "valid"
    figures = result.get(split)
    if not isinstance(figures, dict):
        return "-"
    judged = task_kind_of(result).judged
    value = figures.get(judged.key)
    if not isinstance(value, (int, float)):
        return "-"
    return judged.form.format(value) + ("" if split == "test" else " (valid)")


def _versions(where: dict[str, Any]) -> str:
    versions = where.get("versions")
    torch = versions.get("torch") if isinstance(versions, dict) else None
    return f"python {where.get('python') or '?'}, torch {torch or '?'}"
