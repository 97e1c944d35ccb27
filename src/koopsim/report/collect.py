"""What there is to report: runs, searches and measurements, in run directories or in JSON files kept of them.

    folders -> Findings: runs, searches, measurements, and what was skipped and why

A file that is broken, unfinished or of another kind is named with its reason and left out. It never stops the rest.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError
from koopsim.files.json import read_json
from koopsim.report.checks import problem
from koopsim.report.kinds import Result
from koopsim.report.searches import SearchFound, search_of_directory, search_of_json
from koopsim.runs import RUN_FILES
from koopsim.searching.directory import CONFIRM_FOLDER

NO_RESULTS = {*RUN_FILES, "mistakes.json", "search.json"} - {"result.json"}


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

    def counts(self) -> str:
        """ "35 runs, 1 search" """
        runs, searches = len(self.runs), len(self.searches)
        return f"{runs} run{'' if runs == 1 else 's'}, {searches} search{'' if searches == 1 else 'es'}"


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
    """Result files, kept results and searches; not what a search keeps for itself: Ray's files, its second look."""
    searched = {file.parent for file in folder.rglob("search.json")}
    inner = {where / name for where in searched for name in ("ray", CONFIRM_FOLDER)}
    own = {file for file in folder.rglob("*.json") if file.name not in NO_RESULTS and not inner & set(file.parents)}
    searched -= inner
    own = {file for file in own if not (file.name == "result.json" and file.parent in searched)}
    own |= {where / "search.json" for where in searched}
    sets = {file.parent for file in folder.rglob("pictures.json")}  # of searches per picture: the set's result says it
    return sorted(file for file in own if not sets & set(file.parents[1:]) and file.name != "pictures.json")


def _read(file: Path, found: Findings) -> None:
    try:
        if file.name == "search.json":
            found.searches.append(search_of_directory(file.parent))
            return
        data = read_json(file, old=True)
        if isinstance(data, dict) and _is_measurement(data):
            found.measurements.append(Measurement(file.stem, data["rows"], data["environment"]))
        elif isinstance(data, dict) and _is_bench(data):
            found.measurements.append(Measurement(file.stem, _side_by_side(data), data["environment"]))
        elif isinstance(data, dict) and _is_search(data):
            found.searches.append(search_of_json(data, file))
        elif why := problem(data):
            found.skipped.append(f"{file}: {why}")
        else:
            found.runs.append(data | {"path": str(file)})
    except (OSError, ValueError, KeyError, TypeError, RecursionError, csv.Error, KoopsimError) as error:
        why = " ".join(str(error).split()).removeprefix(f"{file} ")  # named once is enough
        found.skipped.append(f"{file}: {why}")


def _is_search(data: dict[str, Any]) -> bool:
    return isinstance(data.get("trials"), list) or ("trials" in data and isinstance(data.get("members"), list))


def _is_measurement(data: dict[str, Any]) -> bool:
    rows = data.get("rows")
    return isinstance(rows, list) and rows != [] and all(isinstance(r, dict) for r in rows) and _is_place(data)


def _is_bench(data: dict[str, Any]) -> bool:
    """What `koopsim bench` writes."""
    rows = data.get("comparisons")
    sides = [side for row in rows for side in (row["ours"], row["other"])] if isinstance(rows, list) and rows else []
    return bool(sides) and all("seconds" in side and "name" in side for side in sides) and _is_place(data)


def _side_by_side(data: dict[str, Any]) -> list[dict[str, Any]]:
    """A row a comparison: who, how long, how many times longer the other takes."""
    rows = []
    for c in data["comparisons"]:
        times = {"ms": 1e3 * c["ours"]["seconds"], "other's ms": 1e3 * c["other"]["seconds"], "times": c.get("ratio")}
        rows.append({"work": c.get("work"), "ours": c["ours"]["name"], "against": c["other"]["name"]} | times)
    return rows


def _is_place(data: dict[str, Any]) -> bool:
    return isinstance(data.get("environment"), dict)


def seconds_an_epoch(seeds: Sequence[Result]) -> float:
    """Of the fastest of a model's runs: one that shared the device says little of the model."""
    return min(run["train_seconds"] / epochs_of(run) for run in seeds)


def epochs_of(run: Result) -> int:
    """How many it was trained for: fewer than asked where its patience ended it."""
    recipe, lines = run["run"]["recipe"], run.get("metrics") or []
    return lines[-1]["epoch"] if recipe.get("patience") and lines else recipe["epochs"]
