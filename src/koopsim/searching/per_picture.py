"""Image regression with a search of its own for every picture, as in the paper: each picture is a data set.

set of pictures  ->  NAME/ for each: a whole search on its validation pixels  ->  test PSNR over the set

pictures.json    what was asked, and the names of the pictures
NAME/            the search of that picture (directory.py)
result.json      when all are done: the set as one result, which the report takes like a run's
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from koopsim.config import to_dict
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.files.shapes import require_shape
from koopsim.kinds import task_kind
from koopsim.runs import RunDirectory, environment, read_run_json, write_json
from koopsim.searching.directory import (
    CONFIRM_FOLDER,
    PICTURES_FILE,
    RAY_FOLDER,
    SEARCH_FILES,
    Search,
    SearchDirectory,
    search_from_dict,
    search_to_dict,
    take_folder,
)
from koopsim.tasks.image_regression import figures_of
from koopsim.words import PSNR


class PictureSearches:
    """The folder of such a search."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.file = self.path / PICTURES_FILE
        self.result_file = self.path / "result.json"

    @classmethod
    def create(cls, path: Path | str, search: Search, names: list[str], overwrite: bool = False) -> PictureSearches:
        """A new folder; one that already holds such a search is left alone unless told otherwise."""
        if not task_kind(search.base.task).many:
            raise KoopsimError(f"{search.name} is not about pictures; a search per picture needs image regression.")
        _check_names(names, "the pictures")
        folder = cls(path)
        with folders.held(path):
            take_folder(folder.path, overwrite)
            for name in names:
                inner = folders.inside(folder.path, name, "A picture")
                if folders.is_ours(inner):
                    SearchDirectory(inner).search_file.unlink(missing_ok=True)  # of a search before this one
            write_json(folder.file, {"search": search_to_dict(search), "pictures": names})
        return folder

    def read(self) -> tuple[Search, list[str]]:
        """What was asked, and the names of the pictures."""
        data = read_run_json(self.file)
        if not isinstance(data, dict) or "search" not in data or not isinstance(data.get("pictures"), list):
            raise KoopsimError(f"{self.file} is not a search per picture: it needs a search and pictures.")
        _check_names(data["pictures"], str(self.file))
        return search_from_dict(data["search"], self.file), data["pictures"]

    def parts(self) -> list[tuple[Search, SearchDirectory, bool]]:
        """(search, folder, whether it was begun) of each picture that is not done yet."""
        search, names = self.read()
        found = []
        for name in names:
            own = replace(search, base=replace(search.base, task=replace(search.base.task, only=name)))
            directory = SearchDirectory(folders.inside(self.path, name, "A picture"))
            begun = directory.search_file.exists() and directory.read() == own
            if not (begun and directory.result_file.exists()):
                found.append((own, directory, begun))
        return found

    def gather(self) -> dict[str, Any]:
        """The result over all pictures, from their searches and the networks trained again; written, and given."""
        search, names = self.read()
        inner = {name: SearchDirectory(folders.inside(self.path, name, "A picture")) for name in names}
        searches = {name: directory.read_result() for name, directory in inner.items()}
        result: dict[str, Any] = {
            "name": search.name,
            "run": to_dict(search.base),
            "pictures": names,
            "seconds": sum(found["seconds"] for found in searches.values()),
            "settings": {name: found["best"]["values"] for name, found in searches.items()},
            "judge_over": search.space.judge_over,
            "valid": figures_of({name: found["best"][search.space.metric] for name, found in searches.items()}),
            "environment": environment(),
        }
        if all("test" in found for found in searches.values()):
            for name, found in searches.items():
                require_shape(found["test"], {PSNR.key: float}, f"{inner[name].result_file}: test", "that of a picture")
            runs = [RunDirectory(inner[name].best_folder(0)).read_result() for name in names]
            result |= {
                "test": figures_of({name: found["test"][PSNR.key] for name, found in searches.items()}),
                "parameters": [run["parameters"] for run in runs],
                "train_seconds": sum(run["train_seconds"] for run in runs),
                "milliseconds_per_step": sum(run["milliseconds_per_step"] for run in runs),
                "metrics": _mean_lines([run["metrics"] for run in runs]),
            }
        write_json(self.result_file, result)
        return result


def _check_names(names: list[Any], where: str) -> None:
    """Each picture has a folder of its own inside the search's: no two the same, none anywhere else."""
    taken = {*SEARCH_FILES, folders.MARKER, RAY_FOLDER, CONFIRM_FOLDER, "best"}
    for name in names:
        if folders.plain_name(name, f"A picture of {where}") in taken:
            raise KoopsimError(f"A picture of {where} is called {name!r}, which a search needs for itself; rename it.")
        taken.add(name)


def _mean_lines(curves: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Line by line the mean over the pictures, their seconds added up; as long as all of them go on."""
    lines = []
    for together in zip(*curves, strict=False):
        known = [key for key in together[0] if all(key in own for own in together)]
        line = {key: float(np.mean([own[key] for own in together])) for key in known}
        lines.append(line | {"epoch": together[0]["epoch"], "seconds": sum(own["seconds"] for own in together)})
    return lines
