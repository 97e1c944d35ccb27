"""What came out of a search: every trial in one table, and the best of them.

    best  =  the trial whose mean over its last K looks is best         K = 1: scope `last`, as the paper chooses

From look to look a figure moves, at a constant learning rate by more than settings differ; K = `space.judge_over` takes
the mean of that. Trials that were pruned take part by the same rule, as in Ray Tune; those that diverged or failed do
not. ASHA (asha.py) goes by the look at the rung, whatever K is.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from koopsim.config import to_dict
from koopsim.errors import KoopsimError
from koopsim.files.json import MOST_BYTES, parse_json
from koopsim.files.opened import read_bytes
from koopsim.searching.trial import Trial
from koopsim.spaces import SearchSpace

GUESS = 4  # what is expected of a trial before any has ended counts as so many trials

def value_of(trial: Trial, path: str) -> Any:
    """A parameter of a trial as it was used: the number that a bandwidth from the data came to."""
    place: Any = to_dict(trial.run)
    for key in path.split("."):
        place = place.get(key) if isinstance(place, dict) else None
    drawn = trial.values.get(path)
    return drawn if place is None or trial.status == "failed" else place


def trials_csv(trials: Sequence[Trial], space: SearchSpace) -> str:
    """A row a trial, with the figure it is judged by; in the last column its curve as JSON: a list of
    [t, seconds, train_loss, metric]."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    paths = list(space.parameters)
    writer.writerow(["trial", "status", "reason", "t", space.metric, "seconds", *paths, "seed", "curve"])
    for trial in trials:
        figure = trial.judged(space)
        seconds = f"{trial.curve[-1]['seconds']:.3f}" if trial.curve else ""
        curve = [
            [line["t"], round(line["seconds"], 3), line.get("train_loss"), line[space.metric]] for line in trial.curve
        ]
        values = [value_of(trial, path) for path in paths]
        row = [trial.index, trial.status, trial.reason, trial.t, "" if figure is None else repr(figure), seconds]
        writer.writerow([*row, *values, trial.run.seed, json.dumps(curve)])
    return text.getvalue()


def read_trials(path: Path | str) -> list[dict[str, Any]]:
    """The rows of trials.csv, the curve as a list again."""
    text = read_bytes(path, MOST_BYTES, "table of trials").decode()
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return [row | {"curve": parse_json(row["curve"] or "[]", str(path))} for row in rows]


def ranked(trials: Sequence[Trial], space: SearchSpace) -> list[Trial]:
    """Trials with a figure, the best first; equals keep their order."""
    figures = ((t, t.judged(space)) for t in trials if t.status not in ("diverged", "failed"))
    known = [(space.cost(figure), t) for t, figure in figures if figure is not None]
    return [t for _, t in sorted(known, key=lambda pair: pair[0])]


def best_trial(trials: Sequence[Trial], space: SearchSpace) -> Trial:
    """The one to train again."""
    best = ranked(trials, space)
    if not best:
        reasons = Counter(t.reason for t in trials).most_common(1)
        why = f" Most often: {reasons[0][0]}." if reasons and reasons[0][0] else ""
        raise KoopsimError(f"None of the {len(trials)} trials gave a figure: all diverged or failed.{why}")
    return best[0]


def best_so_far(trials: Sequence[Trial], space: SearchSpace) -> list[tuple[float, float]]:
    """(seconds, best metric reported until then), a pair for each improvement."""
    reports = sorted((line["seconds"], line[space.metric]) for t in trials for line in t.curve)
    found: list[tuple[float, float]] = []
    for seconds, metric in reports:
        if not found or space.cost(metric) < space.cost(found[-1][1]):
            found.append((seconds, metric))
    return found


def values_of(trial: Trial, space: SearchSpace) -> dict[str, Any]:
    """All that was searched over, as this trial used it."""
    return {path: value_of(trial, path) for path in space.parameters}


def summary(trials: Sequence[Trial], space: SearchSpace, seconds: float, best: Trial | None = None) -> dict[str, Any]:
    """The outcome of a search as JSON values; `best` where another than `best_trial` was chosen."""
    best = best_trial(trials, space) if best is None else best
    return {
        "trials": len(trials),
        "ended": dict(Counter(t.status for t in trials)),
        "epochs": sum(t.t for t in trials),
        "seconds": seconds,
        "metric": space.metric,
        "judge_over": space.judge_over,
        "best": {
            "trial": best.index,
            space.metric: best.judged(space),
            "t": best.t,
            "values": values_of(best, space),
            "run": to_dict(best.run),
        },
    }


def expected_epochs(trials: Sequence[Trial], space: SearchSpace) -> float:
    """How many epochs halving leaves to be trained in all, going by what has ended so far: for the time left."""
    over = [t for t in trials if t.over]
    guess, at, share = 0.0, 0.0, 1.0  # of a trial: all reach the first rung, one in `reduction` each next
    rung = float(space.grace)
    while at < space.max_t:
        step = min(rung, space.max_t) - at
        guess, at = guess + share * step, at + step
        share, rung = share / space.reduction, rung * space.reduction
    mean = (sum(t.t for t in over) + GUESS * guess) / (len(over) + GUESS)
    return sum(t.t if t.over else max(t.t, mean) for t in trials)
