"""The Universal-Transformer DEQ (transformer.py) for any sequences: numbers or bytes in, any answers out.

    u_t = W (P x_t + p),   z = f(z, u) over all steps at once, causal,   y_t = R z_t + r

P is an embedding where the sequence is bytes. The cell, its solver and its gradients are those of copy memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from koopsim.config import ModelConfig, Run, SolverConfig
from koopsim.errors import KoopsimError
from koopsim.implicit.base import EquilibriumModel
from koopsim.implicit.deq import DEQ
from koopsim.implicit.info import DEQInfo
from koopsim.implicit.models import SolverKind, deq_maker
from koopsim.implicit.transformer import INIT_STD, UniversalTransformerCell
from koopsim.kinds import SequenceShape, register
from koopsim.nn.byte_tcn import SYMBOLS
from koopsim.words import Look


@dataclass(frozen=True)
class SequenceDEQConfig(ModelConfig):
    """A deep equilibrium transformer on sequences."""

    heads: int = 4
    head_dim: int = 8
    model_dim: int = 32
    inner_dim: int = 64
    inputs: int = 1  # channels; 0: bytes
    outputs: int = 10
    forward: SolverConfig = field(default_factory=SolverConfig)
    backward: SolverConfig = field(default_factory=SolverConfig)
    gradient: Literal["implicit", "jacobian-free", "phantom", "neumann"] = "implicit"

    def __post_init__(self) -> None:
        sizes = (self.heads, self.head_dim, self.model_dim, self.inner_dim, self.outputs)
        if min(sizes) < 1 or self.inputs < 0 or self.model_dim % 2:
            raise KoopsimError(
                f"A DEQ of {self.heads} heads x {self.head_dim}, model_dim {self.model_dim}, inner_dim "
                f"{self.inner_dim}, {self.inputs} inputs and {self.outputs} outputs; expected at least 1 of each, "
                "and an even model_dim."
            )


class SequenceDEQ(EquilibriumModel):
    """(B, T, C), of one channel (B, T), or bytes (B, T) -> (B, T, outputs)."""

    def __init__(self, config: SequenceDEQConfig, deq: Callable[[UniversalTransformerCell], DEQ] = DEQ):
        super().__init__()
        d = config.model_dim
        self.inputs = config.inputs
        self.embedding = nn.Linear(config.inputs, d) if config.inputs else nn.Embedding(SYMBOLS, d)
        if not config.inputs:
            nn.init.normal_(self.embedding.weight, std=INIT_STD * d**0.5)  # as the DEQ of copy memory has it
        self.injection = nn.Linear(d, 3 * config.heads * config.head_dim)
        nn.init.normal_(self.injection.weight, std=INIT_STD)
        nn.init.zeros_(self.injection.bias)
        self.deq = deq(UniversalTransformerCell(config.heads, config.head_dim, d, config.inner_dim))
        self.readout = nn.Linear(d, config.outputs)

    def solve(self, x: Tensor, z0: Tensor | None = None) -> tuple[Tensor, DEQInfo]:
        """The fixed point (B, T, model_dim) and how its solve went."""
        if not self.inputs:
            embedded = self.embedding(x.long())
        else:
            x = x.unsqueeze(-1) if self.inputs == 1 else x
            embedded = self.embedding(x.to(self.readout.weight.dtype))
        return self.deq(self.injection(embedded).to(self.readout.weight.dtype), z0=z0)

    def read(self, z: Tensor) -> Tensor:
        return F.linear(z, self.readout.weight, self.readout.bias)


@register
class SequenceDEQKind(SolverKind):
    config = SequenceDEQConfig

    def build(self, config: SequenceDEQConfig) -> SequenceDEQ:
        return SequenceDEQ(config, deq_maker(config.forward, config.backward, config.gradient))

    def slug(self, config: SequenceDEQConfig) -> str:
        return "deq"

    def title(self, config: SequenceDEQConfig) -> str:
        return "DEQ"

    def look(self, config: SequenceDEQConfig, best: bool = False) -> Look:
        return Look("DEQ", 1, "#6b7280")

    def smoke(self, run: Run) -> Run:
        """Few solver steps on small batches: it learns, though its solves stop short, which the run says."""
        few = SolverConfig("anderson", 8, 1e-3)
        model = replace(run.model, forward=few, backward=few)  # pyright: ignore[reportCallIssue]
        return replace(run, model=model, recipe=replace(run.recipe, batch_size=8))

    def for_sequences(self, config: SequenceDEQConfig, shape: SequenceShape, outputs: int) -> SequenceDEQConfig:
        return replace(config, inputs=shape.channels, outputs=outputs)
