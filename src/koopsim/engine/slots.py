"""Runs in slots: training has one slot, a search gives each trial one and a freed one to the next.

    runs of equal shapes  ->  Stacked   one part: learning rate, schedule, seed and weights are a slot's own
    any runs              ->  Beside    a part each, on streams of their own: a crash stays in its slot
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from koopsim.config import Run
from koopsim.tasks.base import Figures


class Diverged(Exception):
    """A loss that is not a number: the run is over, and nobody else's business."""


class Slots(ABC):
    """Runs in training: `None` is a free slot. All slots begin an epoch together, whatever their age."""

    runs: list[Run | None]
    ages: list[int]

    @property
    @abstractmethod
    def epoch_steps(self) -> int: ...
    @abstractmethod
    def warm_up(self) -> None: ...
    @abstractmethod
    def start(self, slot: int, run: Run) -> None:
        """A new run in a slot, at its first step."""

    @abstractmethod
    def stop(self, slot: int) -> None: ...
    @abstractmethod
    def begin_epoch(self) -> None: ...
    @abstractmethod
    def advance(self, first: int, last: int) -> None: ...
    @abstractmethod
    def figures(self, slot: int) -> Figures:
        """Training loss of the epoch just finished and the figures on the validation split; or `Diverged`."""

    @property
    @abstractmethod
    def sparse(self) -> bool:
        """Whether closing the ranks pays."""

    @abstractmethod
    def compact(self, keep: Sequence[int]) -> None:
        """Only these slots go on, closer together."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]: ...
    @abstractmethod
    def load(self, state: dict[str, Tensor], ages: Sequence[int]) -> None: ...

    def finish_epoch(self) -> None:
        self.ages = [age + (run is not None) for age, run in zip(self.ages, self.runs, strict=True)]
