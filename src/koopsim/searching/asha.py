"""Asynchronous successive halving: a trial goes on if it is among the best so far at its age.

    rungs  t = grace, grace*r, grace*r^2, ... <= max_t          Li et al., 2020
    at a rung:  stop  if  metric < percentile_{1 - 1/r} of the metrics recorded there before

"Before" is what makes it asynchronous: nobody waits for a rung to fill. Every decision is the one that Ray's
ASHAScheduler (one bracket) takes on the same stream of reports; a test holds the two against each other. Its habits
are kept too: a trial's own value is recorded after its verdict, a report at max_t stops without being recorded, and
a trial that ends by itself is recorded at the highest rung it has reached.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from koopsim.errors import KoopsimError
from koopsim.searching.trial import Trial, length
from koopsim.spaces import SearchSpace


class ASHA:
    """Takes reports (trial, t, metric) one by one and answers whether the trial goes on."""

    def __init__(self, max_t: int, grace: int = 1, reduction: float = 2, mode: str = "min"):
        if not 1 <= grace <= max_t:
            raise KoopsimError(f"grace is {grace}; it lies between 1 and max_t, which is {max_t}.")
        if reduction <= 1:
            raise KoopsimError(f"The reduction factor is {reduction}; it must be above 1.")
        self.max_t, self.grace, self.reduction = max_t, grace, reduction
        self.sign = 1.0 if mode == "max" else -1.0
        count = int(np.log(max_t / grace) / np.log(reduction) + 1)  # as Ray rounds it
        self.milestones = [grace * reduction**k for k in reversed(range(count))]  # the highest first
        self.recorded: list[dict[int, float]] = [{} for _ in self.milestones]

    def report(self, trial: int, t: int, metric: float) -> bool:
        """Whether `trial`, at age `t`, goes on."""
        if t >= self.max_t:
            return False
        return self._record(trial, t, metric)

    def complete(self, trial: int, t: int, metric: float) -> None:
        """The trial has ended by itself at age `t`."""
        self._record(trial, t, metric)

    def _record(self, trial: int, t: int, metric: float) -> bool:
        value = self.sign * metric
        if not math.isfinite(value):
            raise KoopsimError(f"Trial {trial} reported {metric} at t = {t}; a trial that diverged has no metric.")
        for milestone, recorded in zip(self.milestones, self.recorded, strict=True):
            if t < milestone or trial in recorded:
                continue
            cutoff = self._cutoff(recorded)
            recorded[trial] = value
            return cutoff is None or value >= cutoff
        return True

    def _cutoff(self, recorded: dict[int, float]) -> float | None:
        if not recorded:
            return None
        return float(np.percentile(list(recorded.values()), (1 - 1 / self.reduction) * 100))

    def state(self) -> list[dict[str, float]]:
        """What has been recorded, as JSON values."""
        return [{str(trial): value for trial, value in recorded.items()} for recorded in self.recorded]

    def load(self, state: list[dict[str, Any]]) -> None:
        if len(state) != len(self.recorded):
            raise KoopsimError(
                f"The search that was saved has {len(state)} rungs and this one {len(self.recorded)}: "
                "max_t, grace and reduction must stay as they were."
            )
        self.recorded = [{int(trial): float(value) for trial, value in rung.items()} for rung in state]


def verdict(asha: ASHA, trial: Trial, t: int, metric: float, space: SearchSpace) -> tuple[str, str] | None:
    """What becomes of a trial that reports at age `t`: (status, reason) of its end, or None where it goes on."""
    goes_on = asha.report(trial.index, t, metric)
    if t >= length(trial.run, space.max_t):
        if t < space.max_t:
            asha.complete(trial.index, t, metric)
        return "finished", f"all {t} epochs"
    return None if goes_on else ("pruned", f"below the others at epoch {t}")
