"""Early stopping of a run: the weights of its best epoch are kept, and it ends when none better comes for a while.

    best = argmin over epochs of the validation loss;   stop after epoch e when e - best >= patience

What is known of it is in two places that a checkpoint has already: the lines of metrics.jsonl up to it, and the best
epoch's weights as one more part beside the run's own. So a run that is killed stops at the epoch it would have stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from koopsim.engine.checkpoint import State, lasting

LOSS = "loss"


class BestEpoch:
    """The best epoch so far, and how long ago that was. `metric`: judged where a task has no validation loss."""

    def __init__(self, epochs: int, metric: str, lower: bool):
        self.epochs, self.metric, self.lower = epochs, metric, lower
        self.at, self.value, self.state = 0, float("inf"), State()

    def judge(self, epoch: int, figures: Mapping[str, float], state: Mapping[str, Tensor]) -> None:
        """An epoch is over: its figures on the validation part, and the members as they are."""
        value = self._cost(figures)
        if value < self.value:
            self.at, self.value, self.state = epoch, value, lasting(state)

    def over(self, epoch: int) -> bool:
        return epoch - self.at >= self.epochs

    def recall(self, lines: Sequence[Mapping[str, Any]], state: State) -> None:
        """Where it stood: the lines of the epochs so far, and the best one's weights."""
        for line in lines:
            value = self._cost({k.removeprefix("valid_"): v for k, v in line.items() if k.startswith("valid_")})
            if value < self.value:
                self.at, self.value = line["epoch"], value
        self.state = state

    def _cost(self, figures: Mapping[str, float]) -> float:
        if LOSS in figures:
            return figures[LOSS]
        return figures[self.metric] if self.lower else -figures[self.metric]
