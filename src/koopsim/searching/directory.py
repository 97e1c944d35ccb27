"""The folder of a search: what was asked, where it stands, what came out.

    search.json          preset, base run, space, seed, backend: everything that decides the search
    env.json             commit, command, versions, hardware
    state.safetensors    where a local search stands: verdicts so far, and the tensors of the trials in training
    reports.jsonl, ray/  the same for a search on Ray: every report, and stacks (or what Ray Tune itself keeps)
    trials.csv           every trial: its configuration, its curve, why it stopped
    confirm/             the best configurations trained again with other seeds: a search of its own (confirm.py)
    best/, best-2/, ...  run directories of the best trial, trained again on train+valid
    *.png, result.json   pictures, and the outcome; the latter is written last

Every file is written whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koopsim.config import SEEDS, Run, from_dict, to_dict
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.files.json import read_json
from koopsim.files.shapes import naming, require_shape
from koopsim.runs import FIGURES, MADE_AGAIN, environment, read_run_json, write_atomically, write_json
from koopsim.searching.space_text import overridden, space_to_dict
from koopsim.spaces import MOST_TRIALS, SearchSpace

SEARCH_FILE, PICTURES_FILE = "search.json", "pictures.json"  # what a folder is known by: see per_picture.py
CONFIRM_FOLDER, RAY_FOLDER, TUNE_FOLDER = "confirm", "ray", "tune"  # the last: Ray Tune's own, inside ray/
PLOTS = ("best-so-far.png", "parallel.png", "sensitivity.png")
SEARCH_FILES = (
    SEARCH_FILE, PICTURES_FILE, "env.json", "state.safetensors", "reports.jsonl", "trials.csv", "result.json", *PLOTS,
)  # fmt: skip

CONFIRMED = {
    "trial": int, "seeds": [int], "figures": [(float, None)], "mean": (float, None), "std": float,
    "in_search": (float, None), "in_search_epochs": int,
}  # fmt: skip
RESULT = {
    "name": str, "metric": str, "trials": int, "ended": {"*": int}, "seconds": float, "environment": dict,
    "best": {"trial": int, "t": int, "values": dict}, "pictures": [str], "doubts?": [str], "confirmed?": [CONFIRMED],
    "judge_over?": int,
    "test?": FIGURES, "test_over_seeds?": {"values": [float], "mean": float, "std": float},
}  # what is taken out of a result; there may be more in it  # fmt: skip
WHOLE = "a whole result of a search"
BACKENDS, ENGINES = ("local", "ray"), ("auto", "stacked", "separate")
MOST_RETRAININGS = 10_000  # each is a full training


@dataclass(frozen=True)
class Search:
    """Everything that decides a search."""

    name: str  # of the preset
    base: Run
    space: SearchSpace
    seed: int = 0
    backend: str = "local"
    at_once: int | None = None  # trials in training at a time; None: as the backend thinks best
    engine: str = "auto"  # of the local backend: stacked, separate, or whichever suits the model
    confirm: int = 0  # so many of the best configurations are trained again before one is chosen; 0: none
    confirm_seeds: int = 3  # with so many other seeds each
    retrain: int = 1  # seeds the best configuration is trained again with, and looked at on the test split; 0: none

    def __post_init__(self) -> None:
        for what, known in (("backend", BACKENDS), ("engine", ENGINES)):
            if getattr(self, what) not in known:
                raise KoopsimError(f"The {what} is {getattr(self, what)!r}; expected one of {', '.join(known)}.")
        if self.confirm < 0:
            raise KoopsimError(f"confirm is {self.confirm}; give how many of the best to train again, 0 for none.")
        if self.at_once is not None and not 1 <= self.at_once <= MOST_TRIALS:
            raise KoopsimError(f"at_once is {self.at_once}; it lies between 1 and {MOST_TRIALS:,}.")
        if max(self.confirm, self.confirm_seeds) > MOST_RETRAININGS:
            raise KoopsimError(f"confirm and confirm_seeds go to {MOST_RETRAININGS:,} at most.")
        if not 0 <= self.retrain <= MOST_RETRAININGS:
            raise KoopsimError(f"retrain is {self.retrain}; it lies between 0 and {MOST_RETRAININGS:,}.")
        if not 0 <= self.seed < SEEDS:
            raise KoopsimError(f"The seed is {self.seed}; it lies between 0 and {SEEDS - 1}.")
        if self.confirm_seeds < 1:
            raise KoopsimError(f"confirm_seeds is {self.confirm_seeds}; it must be at least 1.")


@dataclass(frozen=True)
class Cluster:
    """Where the trials of the ray backend run and what each of them gets."""

    address: str | None = None  # of a running cluster ("auto", "10.0.0.1:6379"); None: one on this machine
    cpus_per_trial: float = 1.0
    gpus_per_trial: float | None = None  # None: where there are any, a quarter for a trial, one for a stack of them


KEPT = ("seed", "backend", "at_once", "engine")
ADDED = ("confirm", "confirm_seeds", "retrain")  # later: a file from before has its search without them
ASKED = {
    "name": str, "run": dict, "seed": int, "backend": str, "at_once": (int, None), "engine": str,
    "space": {"trials": int, "max_t": int, "grace": int, "judge_over?": int},
    "confirm?": int, "confirm_seeds?": int, "retrain?": int,
}  # fmt: skip


def search_to_dict(search: Search) -> dict[str, Any]:
    """A search as JSON values."""
    kept = {key: getattr(search, key) for key in (*KEPT, *ADDED)}
    return {"name": search.name, "run": to_dict(search.base), "space": space_to_dict(search.space), **kept}


def search_from_dict(data: dict[str, Any], file: Path) -> Search:
    """The inverse, of what was read from `file`."""
    require_shape(data, ASKED, file, "a search")
    try:
        with naming(file):
            base = from_dict(Run, data["run"], str(file))
            given = data["space"]
            empty = SearchSpace({}, given["trials"], given["max_t"], given["grace"])
            space = overridden(empty, base, given, str(file))
            kept = {key: data[key] for key in KEPT} | {key: data[key] for key in ADDED if key in data}
            return Search(data["name"], base, space, **kept)
    except (KeyError, TypeError, ValueError) as error:
        raise KoopsimError(f"{file} is not a search: {error!r}.") from error


@folders.known_before_markers
def _search_before_markers(folder: Path) -> tuple[str, ...]:
    """A folder with a search's search.json or pictures.json is a search's, though it has no marker."""
    for name in (SEARCH_FILE, PICTURES_FILE):
        try:
            found = read_json(folder / name)
        except (OSError, KoopsimError):
            continue
        asked = found.get("search", found) if isinstance(found, dict) else None
        if isinstance(asked, dict) and {"run", "space"} <= asked.keys():
            return SEARCH_FILES
    return ()


def is_search(folder: Path) -> bool:
    """Whether a search was begun there, of all pictures or of each."""
    return any((folder / name).exists() for name in (SEARCH_FILE, PICTURES_FILE))


def take_folder(folder: Path, overwrite: bool, again: bool = False) -> None:
    """Make room for a new search in a held folder; one that already holds a search is left alone.

    `overwrite` is the user's word; `again` lets go of an older search of ours and of nothing else. Folders inside that
    are not ours stop it, whatever was said: nobody else's are entered or removed.
    """
    if is_search(folder) and not (overwrite or again):
        raise KoopsimError(
            f"{folder} already holds a search: go on with 'koopsim tune --resume {folder}', "
            "or add --overwrite to start again."
        )
    inner = [folder / CONFIRM_FOLDER, *(path for path in sorted(folder.glob("best*")) if _is_best(path.name))]
    for path in inner:
        if not (folders.is_ours(path) or folders.is_free(path)):
            raise KoopsimError(f"{path} is not of a search of koopsim; move it away, or give another --out.")
    folders.claim(folder, "search", SEARCH_FILES, overwrite)
    folders.remove_inside(folder, RAY_FOLDER)
    for stale in SEARCH_FILES:
        (folder / stale).unlink(missing_ok=True)
    for path in filter(folders.is_ours, inner):  # of the search before this one, even where it found the same
        with folders.held(path):
            folders.claim(path, "old", ())
            (path / (SEARCH_FILE if path.name == CONFIRM_FOLDER else "config.json")).unlink(missing_ok=True)
    folders.note(folder, replacing=None)


def _is_best(name: str) -> bool:
    return name == "best" or (name.startswith("best-") and name[5:].isdigit())


class SearchDirectory:
    """The files of one search."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.search_file = self.path / SEARCH_FILE
        self.state_file = self.path / "state.safetensors"
        self.trials_file = self.path / "trials.csv"
        self.result_file = self.path / "result.json"
        self.reports_file = self.path / "reports.jsonl"
        self.ray_folder = self.path / RAY_FOLDER
        self.confirm_folder = self.path / CONFIRM_FOLDER

    @classmethod
    def create(cls, path: Path | str, search: Search, overwrite: bool = False, again: bool = False) -> SearchDirectory:
        """A new folder; one that already holds a search is left alone unless told otherwise (`take_folder`)."""
        directory = cls(path)
        with folders.held(path) as folder:
            take_folder(folder, overwrite, again)
            write_json(directory.path / "env.json", environment())
            write_json(directory.search_file, search_to_dict(search))
        return directory

    def read(self) -> Search:
        """The search as it was asked for."""
        if not self.path.is_dir():
            raise KoopsimError(f"There is no folder {self.path}.")
        if not self.search_file.exists():
            raise KoopsimError(f"{self.path} holds no search: it has no search.json.")
        return search_from_dict(read_run_json(self.search_file), self.search_file)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file whole; a full disk leaves the one before, and says how to go on."""
        try:
            write_atomically(path, data)
        except OSError as error:
            raise KoopsimError(
                f"Cannot write {path}: {error.strerror}. What was saved before is whole; make room and go on with "
                f"'koopsim tune --resume {self.path}'."
            ) from error

    def best_folder(self, number: int) -> Path:
        """The run directory of the best trial's retraining, the first, the second, ..."""
        return folders.inside(self.path, "best" if number == 0 else f"best-{number + 1}")

    def read_result(self) -> dict[str, Any]:
        """What came out; one line where it is no search's result, as it may be after somebody's edit."""
        result = read_run_json(self.result_file)
        require_shape(result, RESULT, self.result_file, WHOLE, MADE_AGAIN)
        require_shape(result["best"], {result["metric"]: float}, f"{self.result_file}: best", WHOLE, MADE_AGAIN)
        return result
