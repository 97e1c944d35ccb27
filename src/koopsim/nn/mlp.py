"""The lift of points and of rows: an MLP, or nothing before the Fourier features (paper, sections 5.3 and 3.5).

mu(x) = W_2 relu(W_1 relu(W_0 x + b_0) + b_1) + b_2
"""

import itertools
from dataclasses import replace

import torch
from torch import Tensor, nn

from koopsim.config import IdentityConfig, MLPConfig
from koopsim.kinds import LiftKind, register
from koopsim.nn.linear import Linear


class MLP(nn.Sequential):
    """(..., inputs) -> (..., outputs): `layers` hidden layers of `width` with ReLU, then a linear one.

    Its matrices start `gain` times as large as PyTorch's. A network of coordinates learns faster with He's, sqrt(6).
    """

    def __init__(self, inputs: int, width: int, outputs: int, layers: int = 2, gain: float = 1.0):
        sizes = [inputs] + [width] * layers
        hidden = [m for a, b in itertools.pairwise(sizes) for m in (Linear(a, b), nn.ReLU())]
        super().__init__(*hidden, Linear(sizes[-1], outputs))
        if gain != 1:
            with torch.no_grad():
                for layer in self:
                    if isinstance(layer, nn.Linear):
                        layer.weight.mul_(gain)


@register
class MLPKind(LiftKind):
    config = MLPConfig
    widths = ("width",)

    def build(self, config: MLPConfig, dim: int) -> MLP:
        return MLP(config.inputs, config.width, dim, config.layers, config.gain)

    def example(
        self, config: MLPConfig, batch: int, length: int, random: torch.Generator
    ) -> tuple[Tensor, dict[int, str]]:
        return torch.rand(batch, config.inputs, generator=random), {0: "batch"}

    def for_rows(self, config: MLPConfig, inputs: int) -> MLPConfig:
        return replace(config, inputs=inputs)

    def bytes_a_point(self, config: MLPConfig, features: int, full: int) -> int:
        return full * (5 * config.width * config.layers + 4 * features)


@register
class IdentityKind(LiftKind):
    config = IdentityConfig

    def build(self, config: IdentityConfig, dim: int) -> nn.Identity:
        return nn.Identity()

    def example(
        self, config: IdentityConfig, batch: int, length: int, random: torch.Generator
    ) -> tuple[Tensor, dict[int, str]]:
        return torch.rand(batch, config.inputs, generator=random), {0: "batch"}

    def for_rows(self, config: IdentityConfig, inputs: int) -> IdentityConfig:
        return replace(config, inputs=inputs)

    def bytes_a_point(self, config: IdentityConfig, features: int, full: int) -> int:
        return 0  # psi of fixed coordinates is computed once
