"""A search from its first trial to its result: what `koopsim tune` and `koopsim.search` do.

search -> trials -> the best of them again (confirm.py) -> trained on train+valid (outcome.py) -> result.json
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from koopsim.config import Run
from koopsim.engine.drive import pick_device
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.presets import asked_run
from koopsim.progress import Progress
from koopsim.searching.confirm import confirmed, confirmed_search
from koopsim.searching.directory import MOST_RETRAININGS, TUNE_FOLDER, Cluster, Search, SearchDirectory
from koopsim.searching.local import LocalSearch
from koopsim.searching.outcome import Ended, chosen, conclude
from koopsim.searching.per_picture import PictureSearches
from koopsim.searching.pruning import unpruned, whole_list
from koopsim.searching.space import base_of, space_of
from koopsim.searching.space_text import space_from_arguments
from koopsim.searching.trial import Trial
from koopsim.spaces import SearchSpace
from koopsim.tasks import Task, build_task
from koopsim.training import Listener, Session, unheard

ANYWHERE = Cluster()
log = logging.getLogger(__name__)
Shown = Callable[[str, int | None], AbstractContextManager[Listener]]  # (title, epochs) -> who listens


def shown_nowhere(title: str, epochs: int | None = None) -> AbstractContextManager[Listener]:
    return nullcontext(unheard)


@dataclass(frozen=True)
class How:
    """Where a search runs and how it is seen.

    retrain       seeds the best configuration is trained again with, instead of the search's own number
    per_picture   a search of its own for each of the task's members
    """

    session: Session
    retrain: int | None = None
    per_picture: bool = False
    overwrite: bool = False
    cluster: Cluster = ANYWHERE
    shown: Shown = shown_nowhere

    def __post_init__(self) -> None:
        if self.retrain is not None and not 0 <= self.retrain <= MOST_RETRAININGS:
            raise KoopsimError(f"retrain is {self.retrain}; it lies between 0 and {MOST_RETRAININGS:,}.")


def search(
    what: str | Run,
    out: Path | str | None = None,
    *,
    space: SearchSpace | Sequence[str] = (),
    trials: int | None = None,
    scale: str = "paper",
    confirm: int = 0,
    judge_over: int | None = None,
    prune: bool | None = None,
    device: str = "auto",
    progress: bool = True,
) -> dict[str, Any]:
    """Search for hyper-parameters of a preset or a run and train with the best; the result of `koopsim tune`.

    `space`: a SearchSpace, or changes to the paper's such as ["learning_rate=log 1e-4 1e-2", "batch_size=1,2,5"].
    `judge_over`: a trial is judged by the mean of so many of its last looks; 1 unless the space says otherwise.
    `prune=False`: every trial runs to its end; unless told so it is where all changes are listed and `trials` is enough
    for the whole list. A search that was stopped in `out` goes on; a finished one is read.
    """
    name, run = asked_run(what, scale)
    if isinstance(space, str) or not isinstance(space, (SearchSpace, Sequence)):
        raise KoopsimError(f"space is {space!r}; expected a SearchSpace, or a list such as ['batch_size=1,2,5'].")
    base = base_of(run)
    own = space if isinstance(space, SearchSpace) else space_from_arguments(space_of(base, scale), base, tuple(space))
    said = {name: value for name, value in (("trials", trials), ("judge_over", judge_over)) if value is not None}
    own = replace(own, **said)
    prune = isinstance(space, SearchSpace) or not whole_list(own, said) if prune is None else prune
    own = own if prune else unpruned(own, base, run.seed)
    how = How(Session(pick_device(device)), shown=Progress if progress else shown_nowhere)
    folder = Path(out or Path("searches") / name)
    asked = Search(name, base, own, run.seed, confirm=confirm)
    if SearchDirectory(folder).search_file.exists():
        if SearchDirectory(folder).read() != asked:
            raise KoopsimError(f"{folder} holds another search; give another folder, or move that one away.")
        return resume_search(folder, how)
    return start_search(asked, folder, how)


def start_search(search: Search, out: Path, how: How) -> dict[str, Any]:
    """A new search in `out`, to its result."""
    _prepare(search, how.session.device)
    with folders.held(out):
        with folders.replacing(out, how.overwrite):
            task = build_task(search.base.task, how.session.device)  # missing data stops here, with nothing written
            if how.per_picture:
                each = PictureSearches.create(out, search, list(task.names) if task.many else [], how.overwrite)
            else:
                directory, each = SearchDirectory.create(out, search, how.overwrite), None
        return _every_picture(each, how) if each else _one(search, directory, False, how, task)


def resume_search(out: Path, how: How) -> dict[str, Any]:
    """Go on with the search in `out`, whatever kind it is; a finished one is read."""
    if not out.is_dir():
        raise KoopsimError(f"There is no folder {out}.")
    folders.refuse_replaced(out, "tune")
    with folders.held(out):
        each = PictureSearches(out)
        if each.file.exists():
            _prepare(each.read()[0], how.session.device)
            return _every_picture(each, how)
        directory = SearchDirectory(confirmed_search(out))
        search = directory.read()
        if directory.result_file.exists():
            return directory.read_result()
        _prepare(search, how.session.device)
        return _one(search, directory, True, how, build_task(search.base.task, how.session.device))


def _prepare(search: Search, device: torch.device) -> None:
    if search.backend == "ray" and find_spec("ray") is None:
        raise KoopsimError("The ray backend needs Ray Tune: pip install 'koopsim[tune]'.")
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # trials are small: a second thread costs more than it brings


def _every_picture(each: PictureSearches, how: How) -> dict[str, Any]:
    for own, directory, begun in each.parts():
        if not begun:
            SearchDirectory.create(directory.path, own, again=True)
        _one(own, directory, begun, how, build_task(own.base.task, how.session.device))
    return each.gather()


def _one(search: Search, directory: SearchDirectory, begun: bool, how: How, task: Task) -> dict[str, Any]:
    """One search to its result."""
    only = getattr(search.base.task, "only", None)
    which = f", {only}" if only else ""

    def ended(search: Search, directory: SearchDirectory, begun: bool) -> tuple[list[Trial], float]:
        with how.shown(search.name + which, None) as listen:
            backend = _backend(search, directory, begun, how, replace(how.session, listen=listen), task)
            return backend.run(), backend.elapsed

    log.info("%s%s: %d trials in %s", search.name, which, search.space.trials, directory.path)
    trials, seconds = ended(search, directory, begun)
    log.info("%s%s: %d trials ended after %.1f s", search.name, which, len(trials), seconds)
    rows = confirmed(search, directory, trials, lambda *second: ended(*second)[0])
    best = chosen(search, trials, rows)
    with how.shown(f"{search.name}{which}, best trial", best.run.recipe.epochs) as listen:
        session = replace(how.session, listen=listen)
        seeds = search.retrain if how.retrain is None else how.retrain
        return conclude(search, directory, Ended(trials, seconds, rows), session, task, seeds)


def _backend(search: Search, directory: SearchDirectory, begun: bool, how: How, session: Session, task: Task) -> Any:
    if search.backend == "ray":
        if search.engine == "separate" or (directory.ray_folder / TUNE_FOLDER).exists():  # the latter: as it was begun
            from koopsim.searching.ray import RaySearch as OnRay
        else:
            from koopsim.searching.hybrid import HybridSearch as OnRay
        return OnRay(search, directory, how.cluster, session.listen)
    local = LocalSearch(search, directory, session, task)
    if begun:
        local.load()
    return local
