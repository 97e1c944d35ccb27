"""The SIM that a DEQ teaches: built to the size of its states, fitted to them by Adam on a cosine.

    single-tier   z = nu(U V mu(x))              states that settle              paper, eq. (11)
    two-tier      z = nu(U' V' psi(mu(x)))       measures that stay as they are  eq. (10)

nu begins as a linear map, h reads the state as the DEQ does, so that the SIM does the DEQ's task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from koopsim.bridge.hidden import Implicit
from koopsim.config import FourierConfig, MLPConfig, Recipe, SIMConfig
from koopsim.engine.part import part_of_one
from koopsim.errors import KoopsimError
from koopsim.implicit import TransformerDEQ
from koopsim.nn import MLP, SIM
from koopsim.nn.fourier import RandomFourierFeatures
from koopsim.nn.tokens import TokenTCN, TokenTCNConfig
from koopsim.tasks.base import Samples


@dataclass(frozen=True)
class Student:
    """What the SIM is made of."""

    lift: nn.Module | None = None  # mu; None: a TCN on a TransformerDEQ's embedding, an MLP on vectors
    lift_dim: int = 64
    rank: int | None = None
    projector: bool = False
    readout: nn.Linear | None = None  # how the DEQ reads its answer off the state; a TransformerDEQ knows its own
    features: int = 256  # of psi, in the two-tier model


@dataclass(frozen=True)
class Lessons:
    """How it is taught."""

    epochs: int = 60
    batch_size: int = 20
    learning_rate: float = 3e-3
    heldout: float = 0.2  # the share of the inputs that is not fitted, the last ones
    seed: int = 0


def teach(sim: SIM, view: Callable[[Tensor], Tensor], data: tuple[Tensor, Tensor], lessons: Lessons) -> None:
    """Fit `view(x)`, something of the SIM's, to targets in their own units by least squares; h stays as it is."""

    class View(nn.Module):  # a model of its own, whose weights are the SIM's
        def __init__(self) -> None:
            super().__init__()
            self.sim = sim

        def forward(self, x: Tensor) -> Tensor:
            return view(x)

    recipe = Recipe(lessons.batch_size, lessons.epochs, lessons.learning_rate, schedule="cosine", clip_norm=1.0)
    trained = sim.h.weight.requires_grad
    sim.h.requires_grad_(False)
    part = part_of_one(View(), lambda m, x, y: (m(x) - y).square().mean(), Samples(*data), recipe, lessons.seed)
    for _ in range(lessons.epochs):
        part.epoch()
    sim.h.requires_grad_(trained)


def untaught(deq: Implicit, x: Tensor, z: Tensor, student: Student, bandwidth: float | None = None) -> SIM:
    """A SIM, untrained, whose state has the size of the states z; two-tier where psi is given a bandwidth."""
    sequence = isinstance(deq, TransformerDEQ)
    hidden = z.shape[-1] if sequence else z[0].numel()
    lift, dim, config = student.lift, student.lift_dim, None  # the configuration of a lift that is made here
    if bandwidth is not None and student.lift is None:
        dim = max(dim, hidden)  # psi takes states too, see `measures.py`
    if lift is None and isinstance(deq, TransformerDEQ):
        levels = max(1, (x.shape[1] - 1).bit_length() - 1)
        vocabulary, width = deq.embedding.shape
        lift, config = TokenTCN(deq.embedding, dim, levels), TokenTCNConfig(vocabulary, width, levels)
    if lift is None:
        if x.dim() != 2 or not x.is_floating_point():
            given = tuple(x.shape)
            raise KoopsimError(f"For inputs of shape {given} name the lift: distill(deq, inputs, Student(lift=...)).")
        lift, config = MLP(x.shape[1], 2 * dim, dim), MLPConfig(x.shape[1], 2 * dim)
    readout = (deq.embedding, deq.output_bias) if isinstance(deq, TransformerDEQ) else _parts(student.readout)
    outputs = hidden if readout[0] is None else readout[0].shape[0]
    psi = None if bandwidth is None else RandomFourierFeatures(dim, student.features, bandwidth)
    sim = SIM(lift, dim, outputs, hidden, psi, rank=student.rank, projector=student.projector)
    if config is not None:  # so that the SIM can be saved by itself
        fourier = None if bandwidth is None else FourierConfig(student.features, bandwidth)
        sim.config = SIMConfig(config, dim, fourier, student.rank, student.projector, hidden, outputs)
    _pass_through(sim, float(z.abs().max()))
    if readout[0] is not None:
        with torch.no_grad():
            sim.h.weight.copy_(readout[0])
            sim.h.bias.copy_(readout[1] if readout[1] is not None else torch.zeros_like(sim.h.bias))
    else:
        nn.init.eye_(sim.h.weight)
        nn.init.zeros_(sim.h.bias)
    return sim


@torch.no_grad()
def _pass_through(sim: SIM, reach: float) -> None:
    """Let nu begin as a linear map: states lifted by their reach go through a ReLU of their own width unharmed."""
    first, _, second, _, last = sim.nu
    for layer, shift in ((first, reach), (second, 0.0), (last, -reach)):
        cast(nn.Linear, layer).bias.fill_(shift)
    for layer in (second, last):
        nn.init.eye_(cast(nn.Linear, layer).weight)


def _parts(readout: nn.Linear | None) -> tuple[Any, Any]:
    return (None, None) if readout is None else (readout.weight, readout.bias)
