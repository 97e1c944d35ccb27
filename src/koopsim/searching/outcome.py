"""After the trials: the table, the pictures, and the best configuration trained again.

    best trial  ->  train+valid, all epochs of its recipe, one or more seeds  ->  test figures

The best is the trial with the best figure at its end (results.py) or, where the search was confirmed (confirm.py), the
configuration with the best mean over fresh seeds.

Image regression trains on the same quarter of the pixels again, as the paper does: its valid pixels are never trained
on. What is already there (a finished retraining of a search that was stopped) is used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from koopsim.config import Run, to_dict
from koopsim.files.shapes import require_shape
from koopsim.kinds import task_kind
from koopsim.runs import MADE_AGAIN, RunDirectory, environment, write_json
from koopsim.searching.directory import Search, SearchDirectory
from koopsim.searching.doubts import doubts
from koopsim.searching.results import best_trial, summary
from koopsim.searching.trial import Trial
from koopsim.tasks import Task
from koopsim.training import Session, train_run

SEED_STEP = 100_003  # between the seeds of retrainings: far from those of other trials


def final_run(run: Run, number: int = 0) -> Run:
    """The run that a best trial is trained again by."""
    return replace(task_kind(run.task).final(run), seed=run.seed + number * SEED_STEP)


def chosen(search: Search, trials: Sequence[Trial], confirmed: Sequence[dict[str, Any]] = ()) -> Trial:
    """The trial whose configuration is trained again."""
    return trials[confirmed[0]["trial"]] if confirmed else best_trial(trials, search.space)


@dataclass(frozen=True)
class Ended:
    """What a search has come to: its trials, the time they took, what was confirmed of them, the best first."""

    trials: Sequence[Trial]
    seconds: float = 0.0
    confirmed: Sequence[dict[str, Any]] = ()


def conclude(
    search: Search, directory: SearchDirectory, ended: Ended, session: Session, task: Task | None = None, seeds: int = 1
) -> dict[str, Any]:
    """Pictures, retraining with so many seeds, result.json; the result."""
    trials, confirmed, seconds = ended.trials, ended.confirmed, ended.seconds
    best = chosen(search, trials, confirmed)
    result = {"name": search.name, "backend": search.backend, **summary(trials, search.space, seconds, best)}
    if confirmed:
        result["confirmed"] = list(confirmed)
    result["doubts"] = doubts(trials, search.space, best, bool(confirmed))
    result["pictures"] = _pictures(search, directory, trials)
    figures = []
    for number in range(seeds):
        run = final_run(best.run, number)
        same = task if run.task == search.base.task else None  # other steps between looks: its data is read again
        figures.append(_retrained(search, directory, run, number, session, same)["test"])
    if figures:
        result["test"] = figures[0]
        metric = search.space.metric
        values = [f[metric] for f in figures]
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        result["test_over_seeds"] = {"metric": metric, "mean": float(np.mean(values)), "std": spread, "values": values}
    result["environment"] = environment()
    write_json(directory.result_file, result)
    return result


def _pictures(search: Search, directory: SearchDirectory, trials: Sequence[Trial]) -> list[str]:
    if find_spec("matplotlib") is None:  # a bare machine with a GPU: the table says it all, and can be drawn elsewhere
        return []
    from koopsim.searching.plots import save_plots

    return save_plots(trials, search.space, directory.path)


def _retrained(
    search: Search, directory: SearchDirectory, run: Run, number: int, session: Session, task: Task | None
) -> dict[str, Any]:
    folder = RunDirectory(directory.best_folder(number))
    begun = folder.config_file.exists() and to_dict(folder.read_config()[1]) == to_dict(run)
    if begun and folder.result_file.exists():
        found = folder.read_result()
        judged = {"test": {search.space.metric: float}}
        require_shape(found, judged, folder.result_file, "that of a trial trained again", MADE_AGAIN)
        return found
    if not begun:
        folder = RunDirectory.create(folder.path, run, search.name, again=True)
    return train_run(run, folder, search.name, session, begun, task)
