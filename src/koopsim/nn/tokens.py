"""mu for tokens: an embedding that is given and stays, standardised, then a TCN.

    phi = TCN( (E - mean E) / std E  [tokens] )

What a SIM that is distilled from a token DEQ lifts its input by: E is the DEQ's own table (bridge/distill.py).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.config import LiftConfig
from koopsim.kinds import LiftKind, register
from koopsim.nn.lift import TCN


@dataclass(frozen=True)
class TokenTCNConfig(LiftConfig):
    """mu for the tokens of a vocabulary."""

    vocabulary: int = 10
    width: int = 40  # of the embedding
    levels: int = 8
    channels: int = 40
    kernel: int = 4


class TokenTCN(nn.Module):
    """mu for tokens (..., T) -> (..., T, outputs). `table` is E, (vocabulary, width)."""

    embedding: Tensor

    def __init__(self, table: Tensor, outputs: int, levels: int, channels: int = 40, kernel: int = 4):
        super().__init__()
        table = table.detach()
        self.register_buffer("embedding", (table - table.mean(dim=0)) / (table.std() + 1e-12))
        self.tcn = TCN(outputs, levels, channels, kernel, table.shape[1])

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tcn(F.embedding(tokens.long(), self.embedding))


@register
class TokenTCNKind(LiftKind):
    config = TokenTCNConfig

    def build(self, config: TokenTCNConfig, dim: int) -> TokenTCN:
        """With an empty table: the true one is among the weights."""
        table = torch.zeros(config.vocabulary, config.width)
        return TokenTCN(table, dim, config.levels, config.channels, config.kernel)

    def example(self, config: TokenTCNConfig, batch: int, length: int, random: torch.Generator):
        return torch.randint(0, config.vocabulary, (batch, length), generator=random), {0: "batch", 1: "length"}
