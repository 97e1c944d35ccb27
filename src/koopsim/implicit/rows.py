"""Equilibrium models of rows of numbers: what a DEQ and a monDEQ are to a table.

    DEQ      z = relu(W z + U x + b),   sum_j |W_ij| <= kappa < 1 in every row i         El Ghaoui et al. 2021
    monDEQ   z = relu(W z + U x + b),   sym(I - W) >= m I                               Winston & Kolter 2020
    y = h(z)

Both have one equilibrium for every x, whatever the weights: the first because z -> f(z, x) contracts in the largest
entry, the second because its operator is monotone (`monotone.py`). A row of W that is too long is shortened, no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from koopsim.config import ModelConfig, Run, SolverConfig
from koopsim.errors import KoopsimError
from koopsim.implicit.base import EquilibriumModel
from koopsim.implicit.deq import DEQ
from koopsim.implicit.info import DEQInfo
from koopsim.implicit.iteration import Map
from koopsim.implicit.models import SolverKind, deq_maker
from koopsim.implicit.monotone import MonDEQ, Splitting
from koopsim.kinds import register
from koopsim.spaces import Choice, Parameter
from koopsim.words import Look

KAPPA = 0.95  # the most that two states may keep of their distance in a step


class RowCell(nn.Module):
    """f(z, x) = relu(W z + U x + b), (B, width) and (B, inputs) -> (B, width)."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.U = nn.Linear(inputs, width)
        self.W = nn.Parameter(torch.empty(width, width).uniform_(-1, 1) / math.sqrt(width))

    def weight(self) -> Tensor:
        """W as it acts: rows longer than kappa, in the sum of magnitudes, are shortened to it."""
        return self.W * (KAPPA / self.W.abs().sum(1, keepdim=True).clamp_min(KAPPA))

    def prepare(self, x: Tensor) -> Map:
        W, injected = self.weight(), self.U(x)
        return lambda z: torch.relu(torch.addmm(injected, z, W.mT))

    def initial(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), len(self.W))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.prepare(x)(z)


class RowDEQ(EquilibriumModel):
    """(B, inputs) -> (B, outputs), read off the fixed point. `deq` makes the DEQ round the cell."""

    def __init__(self, inputs: int, width: int, outputs: int, deq: Callable[[RowCell], DEQ] = DEQ):
        super().__init__()
        self.deq = deq(RowCell(inputs, width))
        self.h = nn.Linear(width, outputs)

    def solve(self, x: Tensor, z0: Tensor | None = None) -> tuple[Tensor, DEQInfo]:
        return self.deq(x.to(self.h.weight.dtype), z0=z0)

    def read(self, z: Tensor) -> Tensor:
        return self.h(z)


class RowMonDEQ(MonDEQ):
    """The fully connected monDEQ of rows: a picture of one line."""

    def __init__(self, inputs: int, width: int, outputs: int, monotonicity: float, max_steps: int, tol: float):
        solving = Splitting(max_steps=max_steps, tol=tol)
        super().__init__((1, 1, inputs), (width,), True, outputs, monotonicity, solving)

    def _inject(self, x: Tensor) -> Tensor:
        return super()._inject(x.reshape(len(x), 1, 1, -1))


# ---------------------------------------------------------------- what the house asks of each


@dataclass(frozen=True)
class RowDEQConfig(ModelConfig):
    """A deep equilibrium model of rows: z = relu(W z + U x + b) with rows of W shorter than 1."""

    inputs: int = 2
    width: int = 64
    outputs: int = 1
    forward: SolverConfig = field(default_factory=lambda: SolverConfig("anderson", 40, 1e-3))
    gradient: Literal["implicit", "jacobian-free", "phantom", "neumann"] = "implicit"

    def __post_init__(self) -> None:
        _require_sizes(self)


@dataclass(frozen=True)
class RowMonDEQConfig(ModelConfig):
    """A monotone operator equilibrium network of rows."""

    inputs: int = 2
    width: int = 64
    outputs: int = 2
    monotonicity: float = 1.0  # m
    tolerance: float = 1e-3
    max_steps: int = 300

    def __post_init__(self) -> None:
        _require_sizes(self)
        if self.monotonicity <= 0 or self.tolerance <= 0 or self.max_steps < 1:
            raise KoopsimError(
                f"monDEQ monotonicity is {self.monotonicity}, tolerance {self.tolerance}, max_steps {self.max_steps}; "
                "each must be positive."
            )


def _require_sizes(config: Any) -> None:
    for name in ("inputs", "width", "outputs"):
        if getattr(config, name) < 1:
            raise KoopsimError(f"{name} is {getattr(config, name)}; it must be at least 1.")


class _RowKind(SolverKind):
    """What both have in common."""

    def for_rows(self, config: Any, inputs: int, outputs: int) -> ModelConfig:
        return replace(config, inputs=inputs, outputs=outputs)

    def sizes(self, config: Any, values: Parameter) -> dict[str, Parameter]:
        return {"model.width": values}

    def parameters(self, config: Any) -> dict[str, Parameter]:
        return self.sizes(config, Choice((32, 64, 128)))

    def smoke(self, run: Run) -> Run:
        return run


@register
class RowDEQKind(_RowKind):
    config = RowDEQConfig

    def build(self, config: RowDEQConfig) -> RowDEQ:
        make = deq_maker(config.forward, None, config.gradient)
        return RowDEQ(config.inputs, config.width, config.outputs, make)

    def slug(self, config: RowDEQConfig) -> str:
        return "deq"

    def title(self, config: RowDEQConfig) -> str:
        return "DEQ"

    def look(self, config: RowDEQConfig, best: bool = False) -> Look:
        return Look(self.title(config), 1, "#6b7280")


@register
class RowMonDEQKind(_RowKind):
    config = RowMonDEQConfig

    def build(self, config: RowMonDEQConfig) -> RowMonDEQ:
        return RowMonDEQ(
            config.inputs, config.width, config.outputs, config.monotonicity, config.max_steps, config.tolerance
        )

    def slug(self, config: RowMonDEQConfig) -> str:
        return "mondeq"

    def title(self, config: RowMonDEQConfig) -> str:
        return "monDEQ"

    def look(self, config: RowMonDEQConfig, best: bool = False) -> Look:
        return Look(self.title(config), 3, "#a16207")
