"""A gated recurrent unit (Cho et al., 2014), as a model of sequences beside the SIMs: torch's own.

    h_t = GRU(x_t, h_{t-1}),   y_t = W h_t + b
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.config import ModelConfig
from koopsim.errors import KoopsimError
from koopsim.kinds import ModelKind, SequenceShape, register
from koopsim.nn.byte_tcn import SYMBOLS
from koopsim.nn.saved import Model
from koopsim.words import Look


@dataclass(frozen=True)
class GRUConfig(ModelConfig):
    """A GRU and a linear layer."""

    inputs: int = 1  # channels; 0: bytes, which are embedded
    hidden: int = 32
    layers: int = 1
    outputs: int = 10

    def __post_init__(self) -> None:
        if self.inputs < 0 or min(self.hidden, self.layers, self.outputs) < 1:
            raise KoopsimError(
                f"A GRU of {self.inputs} inputs, {self.hidden} hidden, {self.layers} layers, {self.outputs} outputs; "
                "each must be at least 1 (inputs 0: bytes)."
            )


class GRU(Model):
    """(..., T, C), of one channel (..., T), or bytes (..., T) -> (..., T, outputs)."""

    def __init__(self, config: GRUConfig):
        super().__init__()
        self.inputs = config.inputs
        self.embedding = None if config.inputs else nn.Parameter(torch.randn(SYMBOLS, config.hidden))
        self.gru = nn.GRU(config.inputs or config.hidden, config.hidden, config.layers, batch_first=True)
        self.h = nn.Linear(config.hidden, config.outputs)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = F.embedding(x.long(), self.embedding)
        elif self.inputs == 1:
            x = x.unsqueeze(-1)
        return self.h(self.gru(x.to(self.h.weight.dtype))[0])


@register
class GRUKind(ModelKind):
    config = GRUConfig
    order = 3

    def build(self, config: GRUConfig) -> GRU:
        return GRU(config)

    def look(self, config: GRUConfig, best: bool = False) -> Look:
        return Look("GRU", 3, "#a16207")

    def for_sequences(self, config: GRUConfig, shape: SequenceShape, outputs: int) -> GRUConfig:
        return replace(config, inputs=shape.channels, outputs=outputs)

    def example(self, config: GRUConfig, batch: int, length: int, random: torch.Generator):
        axes = {0: "batch", 1: "length"}
        if not config.inputs:
            return torch.randint(0, SYMBOLS, (batch, length), generator=random), axes
        x = torch.randn(batch, length, config.inputs, generator=random)
        return x[..., 0] if config.inputs == 1 else x, axes
