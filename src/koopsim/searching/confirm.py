"""Confirming a search: the best of many noisy trials is the luckiest of them.

    choose the configuration k with the best  mean over s of  metric(k, seed s)      k of the K best, s of S fresh seeds

where a metric is what every trial is judged by (results.py): the last look, or the mean of the last few.

Settings that differ by less than one seed's noise cannot be told apart by one seed each, and the best of many noisy
figures is better than it will be again (the winner's curse). So the K best configurations are trained again on the same
training split, all epochs of their recipes, nobody stopped. The figure that brought a configuration here was selected
for being good: it is shown beside the mean and is no part of it.

This is a search of its own in the folder confirm/, whose values are listed instead of drawn, so that every backend and
engine runs it, and goes on with it after a stop.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from koopsim.files import folders
from koopsim.runs import environment, read_run_json, write_json
from koopsim.searching.directory import CONFIRM_FOLDER, Search, SearchDirectory, search_to_dict
from koopsim.searching.outcome import SEED_STEP
from koopsim.searching.results import best_trial, ranked, values_of
from koopsim.searching.trial import Trial
from koopsim.spaces import Listed

FRESH = 1000 * SEED_STEP  # from the search's seeds to those used here: beyond every trial's and every retraining's

Trainer = Callable[[Search, SearchDirectory, bool], Sequence[Trial]]  # (search, folder, whether begun) -> all trials


def contenders(search: Search, trials: Sequence[Trial]) -> list[Trial]:
    """The first trial of each of the K best configurations; pruned ones only where too few came to their last epoch."""
    best_trial(trials, search.space)  # says so where there is none
    found: dict[str, Trial] = {}
    for trial in sorted(ranked(trials, search.space), key=lambda t: t.status != "finished"):
        found.setdefault(repr(values_of(trial, search.space)), trial)
    return list(found.values())[: search.confirm]


def confirming(search: Search, chosen: Sequence[Trial]) -> Search:
    """The search that trains each of these again: trial i is configuration i % K with the i-th fresh seed."""
    columns = [values_of(trial, search.space) for trial in chosen]
    listed = {path: Listed(tuple(values[path] for values in columns)) for path in search.space.parameters}
    epochs = max(trial.run.recipe.epochs for trial in chosen)
    count = len(chosen) * search.confirm_seeds
    space = replace(search.space, parameters=listed, trials=count, max_t=epochs, grace=epochs)  # no rung before the end
    base = replace(search.base, seed=search.base.seed + FRESH)
    return replace(search, name=f"{search.name}, confirmed", base=base, space=space, confirm=0, retrain=1)


def confirmed(
    search: Search, directory: SearchDirectory, trials: Sequence[Trial], train: Trainer
) -> list[dict[str, Any]]:
    """A row for each of the K best configurations, the best mean first; none where the search asks for none.

    `train` brings the second search to its end, from its saved state where it was begun.
    """
    if not search.confirm:
        return []
    chosen = contenders(search, trials)
    second = confirming(search, chosen)
    folder = SearchDirectory(folders.inside(directory.path, CONFIRM_FOLDER))
    asked = json.loads(json.dumps(search_to_dict(second)))
    found = read_run_json(folder.search_file) if folder.search_file.exists() else None
    begun = _with_what_came_later(found) == asked
    if not begun:
        folder = SearchDirectory.create(folder.path, second, again=True)
    again = train(second, folder, begun)
    best_trial(again, second.space)
    rows = compared(search, chosen, again)
    write_json(folder.result_file, {"name": second.name, "confirmed": rows, "environment": environment()})
    return rows


def _with_what_came_later(found: Any) -> Any:
    """What a search.json says, with what a version before did not write yet."""
    if not isinstance(found, dict) or not isinstance(found.get("space"), dict):
        return found
    return {"retrain": 1} | found | {"space": {"judge_over": 1} | found["space"]}


def compared(search: Search, chosen: Sequence[Trial], again: Sequence[Trial]) -> list[dict[str, Any]]:
    """The rows: one that lost a seed (diverged, failed) comes after those that lost none, whatever its mean."""
    space, rows = search.space, []
    for number, trial in enumerate(chosen):
        own = again[number :: len(chosen)]
        figures = [None if t.status in ("diverged", "failed") else t.judged(space) for t in own]
        known = [figure for figure in figures if figure is not None]
        row = {
            "trial": trial.index,
            "values": values_of(trial, space),
            "in_search": trial.judged(space),
            "in_search_epochs": trial.t,  # fewer than here where the search has a shorter max_t, or stopped it
            "seeds": [t.run.seed for t in own],
            "figures": figures,
            "mean": float(np.mean(known)) if known else None,
            "std": float(np.std(known, ddof=1)) if len(known) > 1 else 0.0,
        }
        rows.append(row)
    costs = {row["trial"]: math.inf if row["mean"] is None else space.cost(row["mean"]) for row in rows}
    return sorted(rows, key=lambda row: (row["figures"].count(None), costs[row["trial"]]))


def confirmed_search(path: Path) -> Path:
    """The folder of the search to which a folder belongs: itself, or the one that it confirms."""
    whole = path.resolve()
    inside = whole.name == CONFIRM_FOLDER and SearchDirectory(whole.parent).search_file.exists()
    return whole.parent if inside else path
