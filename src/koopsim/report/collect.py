"""What there is to report: runs, searches and measurements, in run directories or in JSON files kept of them.

    folders -> Findings: runs, searches, measurements, and what was skipped and why

A file that is broken, unfinished or of another kind is named with its reason and left out. It never stops the rest.
"""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError
from koopsim.report.searches import SearchFound, search_of_directory, search_of_json

Result = dict[str, Any]
NEEDED = {
    "name": str, "parameters": (int, list), "metrics": list, "run": dict, "environment": dict,
    "milliseconds_per_step": (int, float), "train_seconds": (int, float),
}  # fmt: skip
# What the tables take from each kind of task: (a setting of the task and its type, figures of the test).
TASKS = {
    "CopyMemoryConfig": ("horizon", int, ("loss", "digits_right")),
    "ClassificationConfig": ("dataset", str, ("accuracy",)),
    "ImageRegressionConfig": ("pictures", str, ("psnr", "psnr_std")),
}
RUN_FILES = {"config.json", "env.json", "mistakes.json", "search.json"}


@dataclass(frozen=True)
class Measurement:
    """A benchmark's file: rows of plain values, and where they were measured."""

    name: str
    rows: list[dict[str, Any]]
    environment: dict[str, Any]


@dataclass
class Findings:
    """All that was found below some folders. Each run says under "path" which file it was read from."""

    runs: list[Result] = field(default_factory=list)
    searches: list[SearchFound] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def collect(paths: Sequence[Path]) -> tuple[list[Result], list[str]]:
    """(runs, what was skipped and why) of every result file in or below `paths`."""
    found = find(paths)
    return found.runs, found.skipped


def find(paths: Sequence[Path]) -> Findings:
    """Everything in or below `paths`; a file that is named twice counts once."""
    found, seen = Findings(), set()
    for path in paths:
        if not path.exists():
            raise KoopsimError(f"There is no file or folder {path}; give a folder that holds runs.")
        for file in [path] if path.is_file() else _files(path):
            if file.resolve() not in seen:
                seen.add(file.resolve())
                _read(file, found)
        for config in sorted(path.rglob("config.json")) if path.is_dir() else []:
            if not (config.parent / "result.json").exists() and config.resolve() not in seen:
                seen.add(config.resolve())
                found.skipped.append(f"{config.parent}: unfinished; koopsim train --resume {config.parent}")
    return found


def _files(folder: Path) -> list[Path]:
    """Result files, kept results and searches; what Ray Tune keeps of a search for itself is not ours to read."""
    rays = {file.parent / "ray" for file in folder.rglob("search.json")}
    own = {file for file in folder.rglob("*.json") if file.name not in RUN_FILES and not rays & set(file.parents)}
    searched = {file.parent for file in folder.rglob("search.json")}
    own = {file for file in own if not (file.name == "result.json" and file.parent in searched)}
    return sorted(own | {where / "search.json" for where in searched})


def _read(file: Path, found: Findings) -> None:
    try:
        if file.name == "search.json":
            found.searches.append(search_of_directory(file.parent))
            return
        data = json.loads(file.read_text())
        if isinstance(data, dict) and _is_search(data):
            found.searches.append(search_of_json(data, file))
        elif isinstance(data, dict) and _is_measurement(data):
            found.measurements.append(Measurement(file.stem, data["rows"], data["environment"]))
        elif why := problem(data):
            found.skipped.append(f"{file}: {why}")
        else:
            found.runs.append(data | {"path": str(file)})
    except (OSError, ValueError, RecursionError, csv.Error, KoopsimError) as error:  # broken JSON is a ValueError
        found.skipped.append(f"{file}: {' '.join(str(error).split())}")


def _is_search(data: dict[str, Any]) -> bool:
    return isinstance(data.get("trials"), list) or ("trials" in data and isinstance(data.get("members"), list))


def _is_measurement(data: dict[str, Any]) -> bool:
    rows = data.get("rows")
    return isinstance(rows, list) and rows != [] and all(isinstance(r, dict) for r in rows) and _is_place(data)


def _is_place(data: dict[str, Any]) -> bool:
    return isinstance(data.get("environment"), dict)


def problem(result: Any) -> str | None:
    """Why a value read from a file is not a run that can be shown; None for one that can."""
    if not isinstance(result, dict):
        return f"not the result of a run (a {type(result).__name__}, expected an object)"
    missing = [key for key in NEEDED if key not in result]
    if missing:
        return f"not the result of a run (no {', '.join(missing)})"
    for key, kind in NEEDED.items():
        if not isinstance(result[key], kind) or isinstance(result[key], bool):
            return f"not the result of a run ({key} is {_short(result[key])})"
    task, recipe = result["run"].get("task"), result["run"].get("recipe")
    if not isinstance(task, dict) or not isinstance(recipe, dict) or not isinstance(result["run"].get("model"), dict):
        return "not the result of a run (its run lacks a task, a model or a recipe)"
    if task.get("kind") not in TASKS:
        return f"its task is of the kind {_short(task.get('kind'))}; expected one of {', '.join(TASKS)}"
    if not all(_count(recipe.get(key)) for key in ("epochs", "batch_size")):
        return f"its recipe has {_short(recipe.get('epochs'))} epochs of batches of {_short(recipe.get('batch_size'))}"
    setting, kind, figures = TASKS[task["kind"]]
    if not isinstance(task.get(setting), kind):
        return f"the {setting} of its task is {_short(task.get(setting))}; expected {kind.__name__}"
    return _bad_figure(result, figures) or _bad_curve(result, "train_psnr" if "psnr" in figures else "train_loss")


def _bad_figure(result: Result, figures: tuple[str, ...]) -> str | None:
    """A figure that is missing or not a number, where a table needs one."""
    for key in ("train_seconds", "milliseconds_per_step"):
        if not _finite(result[key]) or result[key] < 0:
            return f"{key} is {_short(result[key])}; expected a number"
    if isinstance(result["parameters"], list) and "psnr" not in figures:
        return f"parameters is {_short(result['parameters'])}; expected a number"
    if "psnr" in figures and not isinstance(result.get("pictures", []), list):
        return f"pictures is {_short(result['pictures'])}; expected a list of names"
    if "test" not in result:
        return None
    if not isinstance(result["test"], dict):
        return f"its test is {_short(result['test'])}; expected figures by name"
    for key in figures:
        if not _finite(result["test"].get(key)):
            return f"its test {key} is {_short(result['test'].get(key))}; expected a number"
    return _not_numbers(result["test"], "its test")


def _bad_curve(result: Result, figure: str) -> str | None:
    """A line of the metrics that no curve can be drawn through."""
    for place, line in enumerate(result["metrics"], 1):
        if not isinstance(line, dict):
            return f"line {place} of its metrics is {_short(line)}; expected an object"
        for key in ("epoch", "seconds", figure):
            if not _finite(line.get(key)):
                return f"{key} is {_short(line.get(key))} in line {place} of its metrics; expected a number"
        if why := _not_numbers(line, f"line {place} of its metrics"):
            return why
    return None


def _not_numbers(figures: dict[str, Any], where: str) -> str | None:
    odd = [key for key, value in figures.items() if not isinstance(value, (int, float))]
    return f"{odd[0]} is {_short(figures[odd[0]])} in {where}; expected a number" if odd else None


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
