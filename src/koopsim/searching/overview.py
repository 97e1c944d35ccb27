"""A search so far, for a person: the best trials and the time left, as text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from koopsim.progress import clock
from koopsim.searching.results import expected_epochs, ranked, value_of
from koopsim.searching.trial import Trial
from koopsim.spaces import SearchSpace

SHOWN = 8


class Pace:
    """How fast a search goes, from its reports; one that was resumed counts anew."""

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None  # seconds and epochs at the first report heard
        self.heard: dict[int, tuple[float, int]] = {}  # of each trial: seconds and age at its last report
        self.each: dict[int, float] = {}  # of each trial: seconds an epoch, of late

    def left(self, trials: Sequence[Trial], space: SearchSpace, seconds: float) -> float | None:
        """Seconds left at the pace so far, if halving goes on as it should; None while nobody knows.

        Never less than the oldest trial that still goes on needs by itself: the last of a stack take as long for an
        epoch as all of them together.
        """
        done = sum(t.t for t in trials)
        if self.first is None:
            self.first = (0.0, 0) if done <= len(trials) else (seconds, done)
        for trial in trials:
            then, age = self.heard.get(trial.index, (seconds, trial.t))
            if trial.t > age:
                self.each[trial.index] = (seconds - then) / (trial.t - age)
            if trial.t > age or trial.index not in self.heard:
                self.heard[trial.index] = (seconds, trial.t)
        spent, epochs = seconds - self.first[0], done - self.first[1]
        going = [t for t in trials if not t.over]
        if not going:
            return 0.0
        if epochs < 1:
            return None
        oldest = max(going, key=lambda t: t.t)
        alone = (space.max_t - oldest.t) * self.each.get(oldest.index, 0.0)
        return max(spent / epochs * max(float(len(going)), expected_epochs(trials, space) - done), alone)


def event_of(trial: Trial, trials: Sequence[Trial], space: SearchSpace, seconds: float, pace: Pace) -> dict[str, Any]:
    """What a listener hears of a trial's report. "view" makes the texts when somebody wants to see them."""
    view = partial(overview, trials, space, seconds, pace.left(trials, space, seconds))
    over = all(t.over for t in trials)
    return {"event": "trial", "trial": trial, "trials": trials, "seconds": seconds, "over": over, "view": view}


def overview(trials: Sequence[Trial], space: SearchSpace, seconds: float, left: float | None) -> dict[str, Any]:
    """{line, head, columns, rows}: in one line, and as a table of the best."""
    best, over, metric = ranked(trials, space)[:SHOWN], sum(t.over for t in trials), space.metric
    found = f"best {metric} {best[0].judged(space):.4g} (trial {best[0].index})" if best else "no figure yet"
    head = f"{over}/{len(trials)} trials  {clock(seconds)}{remaining(left)}"
    names = [path.rpartition(".")[2].replace("_", " ") for path in space.parameters]
    rows = [
        [str(t.index), f"{t.judged(space):.4g}", str(t.t), t.status, *(shown(value_of(t, p)) for p in space.parameters)]
        for t in best
    ]
    line = f"{over}/{len(trials)} trials  {found}  {clock(seconds)}{remaining(left)}"
    return {"line": line, "head": head, "columns": ["trial", metric, "t", "", *names], "rows": rows}


def remaining(left: float | None) -> str:
    """What is said of the time left: nothing once the trials are over, for the best is then trained again."""
    if left is None:
        return ""
    return f", about {clock(left)} left" if left >= 1 else ", a moment left" if left > 0 else ""


def shown(value: Any) -> str:
    """A value of a trial, short."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
