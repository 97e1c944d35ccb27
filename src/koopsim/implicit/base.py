"""What a model with a solver inside offers whoever trains, searches or judges it.

    start_epoch(x)   with the first batch of an epoch: settings that are not weights, such as a step size
    diagnostics()    after a step: how its solves went, a few tensors for the metrics of a run
    variant          what a captured step depends on besides its shapes: another variant, another CUDA graph
    adapt()          between captured steps: how many solver steps the next ones run

A CUDA graph cannot stop early, so a budget of 30 costs 30 steps though 10 converge. Each solve leaves the most steps
that any sample needed in `longest`, on the device, one more where a sample did not converge; `adapt` reads it and sets
`captured_steps`, forward and backward, to a level above. A solve whose budget is too small raises it; until then its
samples count as unconverged.
"""

from __future__ import annotations

from collections.abc import Hashable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from koopsim.implicit.info import DEQInfo
from koopsim.nn.saved import Model


class SolverModel(Model):
    """Base of all models whose answer is found by a solver.

    A subclass sets `last_info` in its forward, and says what `limits` its budgets have.
    """

    LEVELS: tuple[int, ...] = (*range(4, 21), 22, 24, 26, 28, 30, 33, 36, 40, 45, 50, 60)  # budgets of a captured graph
    longest: Tensor  # (2,): the longest forward and backward solve since the last `adapt`

    def __init__(self) -> None:
        super().__init__()
        self.last_info: DEQInfo | None = None
        self.register_buffer("longest", torch.zeros(2, dtype=torch.int64), persistent=False)

    @property
    def limits(self) -> tuple[int, int]:
        """The most steps a forward and a backward solve may take."""
        raise NotImplementedError(f"{type(self).__name__} does not say the limits of its solves")

    @property
    def captured_steps(self) -> tuple[int, int]:
        """How many steps a captured forward and backward solve run."""
        raise NotImplementedError(f"{type(self).__name__} does not say how many steps a captured solve runs")

    @captured_steps.setter
    def captured_steps(self, steps: tuple[int, int]) -> None:
        raise NotImplementedError(f"{type(self).__name__} cannot be told how many steps a captured solve runs")

    def start_epoch(self, x: Tensor) -> None:
        """Choose what is chosen once an epoch, by the epoch's first batch. Nothing, unless a model says otherwise."""

    def diagnostics(self) -> dict[str, Tensor]:
        """How the last forward and backward solves went; empty before the first."""
        return {} if self.last_info is None else self.last_info.figures(self.longest)

    @property
    def variant(self) -> Hashable:
        return self.captured_steps

    def adapt(self) -> None:
        """Run as many solver steps as the longest solve of late needed, and some more."""
        ways = zip(self.longest.tolist(), self.captured_steps, self.limits, strict=True)
        forward, backward = (self._budget(needed, now, limit) for needed, now, limit in ways)
        self.captured_steps = (forward, backward)
        self.longest.zero_()

    def health(self, x: Tensor) -> Any:
        """Where the model stands on these inputs: convergence, spectral radius, case (`koopsim.bridge.health`)."""
        return import_module("koopsim.bridge.health").health(self, x)  # a room below, asked for by name when needed

    def _budget(self, needed: int, now: int, limit: int) -> int:
        if not needed:  # nothing is known yet
            return now
        return min(next((level for level in self.LEVELS if level > needed), limit), limit)


class EquilibriumModel(SolverModel):
    """A model round one DEQ, its `deq`: `solve` finds the state, `read` the answer in it."""

    LEVELS = (*range(2, 25), 26, 28, 30, 32, 36, 40, 45, 50, 60, 70, 80, 100, 120, 150, 200)
    deq: Any  # a DEQ; that room is further down

    def solve(self, x: Tensor, z0: Any = None) -> tuple[Any, DEQInfo]:
        """The equilibrium, begun at z0 if given, and how the solve went."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it solves")

    def read(self, z: Any) -> Tensor:
        """The answer from a state."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it reads off a state")

    def forward(self, x: Tensor) -> Tensor:
        z, self.last_info = self.solve(x)
        return self.read(z)

    @property
    def limits(self) -> tuple[int, int]:
        return self.deq.limits

    @property
    def captured_steps(self) -> tuple[int, int]:
        return self.deq.captured_steps

    @captured_steps.setter
    def captured_steps(self, steps: tuple[int, int]) -> None:
        self.deq.captured_steps = steps

    def _budget(self, needed: int, now: int, limit: int) -> int:
        """As many as were needed; a solve that was cut short, nobody knows by how much, gets half as many again.

        One more at a time would leave solves unconverged until the budget had crept up to them. For the sake of a fifth
        less it is left as it is: each is a graph of its own, and the next long solve is not far.
        """
        if not needed:
            return now
        wanted = max(needed, now + now // 2) if needed > now else needed
        level = min(next((level for level in self.LEVELS if level >= wanted), limit), limit)
        return now if 0.8 * now <= level < now < limit else level
