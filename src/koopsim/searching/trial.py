"""A trial: a configuration, and what became of it.

waiting -> running -> finished | pruned | diverged | failed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from koopsim.config import Run
from koopsim.engine.slots import Diverged
from koopsim.searching.bandwidth import with_median_bandwidth
from koopsim.searching.space import is_median, trial_run
from koopsim.spaces import BANDWIDTH, SearchSpace
from koopsim.tasks import Task

STATUSES = ("waiting", "running", "finished", "pruned", "diverged", "failed")


@dataclass
class Trial:
    """What a search knows of one configuration."""

    index: int
    values: dict[str, Any]  # as they were drawn
    run: Run
    status: str = "waiting"
    reason: str = ""  # why it stopped, in words
    curve: list[dict[str, Any]] = field(default_factory=list)  # a line an epoch: t, seconds, train_loss, figures

    @property
    def t(self) -> int:
        """Its age in epochs."""
        return self.curve[-1]["t"] if self.curve else 0

    def last(self, metric: str) -> float | None:
        """The metric as last reported, which is what the paper chooses by (scope `last`)."""
        return self.curve[-1].get(metric) if self.curve else None

    def judged(self, space: SearchSpace) -> float | None:
        """What it is chosen by: the mean of its last `judge_over` looks, of all where it has fewer. One: `last`."""
        looks = [line[space.metric] for line in self.curve[-space.judge_over :]]
        return sum(looks) / len(looks) if looks else None

    @property
    def over(self) -> bool:
        return self.status not in ("waiting", "running")

    def end(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason


def draw_trials(base: Run, space: SearchSpace, seed: int) -> list[Trial]:
    """Every trial of a search; one whose values cannot go together is there too, as failed."""
    trials = []
    for index in range(space.trials):
        values = space.sample(seed, index)
        try:
            trials.append(Trial(index, values, trial_run(base, values, index)))
        except Exception as error:
            trials.append(Trial(index, values, base, "failed", str(error)))
    return trials


def settled(trial: Trial, task: Task, device: torch.device) -> Run:
    """The trial's run with every value a number, a bandwidth from the data included."""
    value = trial.values.get(BANDWIDTH)
    if isinstance(value, str) and is_median(value):
        factor = float(value.partition("*")[2] or 1)
        return with_median_bandwidth(trial.run, task, factor, device)
    return trial.run


def length(run: Run, max_t: int) -> int:
    """How many epochs a trial may have: the recipe's, and no more than the search's."""
    return min(run.recipe.epochs, max_t)


def checked(figures: dict[str, float], metric: str) -> float:
    """The figure that decides; one that is not a number is `Diverged`."""
    if not abs(figures[metric]) < float("inf"):
        raise Diverged(f"{metric} is {figures[metric]} on the validation split")
    return figures[metric]


def why(error: Exception) -> tuple[str, str]:
    """(status, reason) of a trial that ended so: a crash of one trial is that trial's end."""
    if isinstance(error, Diverged):
        return "diverged", str(error)
    return "failed", f"{type(error).__name__}: {str(error)[:300]}"
