"""mu for text: bytes are embedded, then read by a causal TCN.

mu(x)_t = TCN(E[x_1], ..., E[x_t])         E: 256 vectors of as many entries as the TCN has channels
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.config import LiftConfig
from koopsim.errors import KoopsimError
from koopsim.kinds import LiftKind, register
from koopsim.nn.lift import TCN

SYMBOLS = 256


@dataclass(frozen=True)
class ByteTCNConfig(LiftConfig):
    """mu for bytes: an embedding, and a temporal convolutional network."""

    levels: int = 6
    channels: int = 32
    kernel: int = 4

    def __post_init__(self) -> None:
        if min(self.levels, self.channels, self.kernel) < 1:
            raise KoopsimError(
                f"A byte TCN has {self.levels} levels, {self.channels} channels, kernel {self.kernel}; each at least 1."
            )


class ByteTCN(nn.Module):
    """bytes (..., T) -> (..., T, outputs)"""

    def __init__(self, outputs: int, config: ByteTCNConfig):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(SYMBOLS, config.channels))
        self.tcn = TCN(outputs, config.levels, config.channels, config.kernel, config.channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.tcn(F.embedding(x.long(), self.embedding))


@register
class ByteTCNKind(LiftKind):
    config = ByteTCNConfig
    widths = ("channels",)

    def build(self, config: ByteTCNConfig, dim: int) -> ByteTCN:
        return ByteTCN(dim, config)

    def example(
        self, config: ByteTCNConfig, batch: int, length: int, random: torch.Generator
    ) -> tuple[Tensor, dict[int, str]]:
        return torch.randint(0, SYMBOLS, (batch, length), generator=random), {0: "batch", 1: "length"}
