"""The Gaussian Fourier-feature network: the peer of the RFF-only SIM.

    y = sigmoid( MLP( sin(2 pi B x), cos(2 pi B x) ) ),   B ~ N(0, sigma^2)        Tancik et al. 2020

512 features and three hidden layers of 256. Weights start as published: Glorot normal, biases N(0, 0.01^2).
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from koopsim.config import FourierNetworkConfig
from koopsim.kinds import ModelKind, register
from koopsim.nn.fourier import RandomFourierFeatures
from koopsim.nn.lift import MLP
from koopsim.nn.saved import Model
from koopsim.words import Look


class UnscaledFourierFeatures(RandomFourierFeatures):
    """psi without the division by sqrt(M/2): every feature between -1 and 1."""

    def __init__(self, inputs: int, features: int, sigma: float):
        super().__init__(inputs, features, bandwidth=1 / (2 * math.pi * sigma))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * math.sqrt(self.frequencies.shape[0])


class FourierNetwork(Model):
    """(..., inputs) -> (..., outputs) in (0, 1)."""

    def __init__(self, inputs: int, features: int, sigma: float, width: int, outputs: int, layers: int = 3):
        super().__init__()
        self.psi = UnscaledFourierFeatures(inputs, features, sigma)
        self.layers = MLP(features, width, outputs, layers)
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                nn.init.normal_(layer.bias, std=1e-2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.layers(self.psi(x)))


@register
class FourierNetworkKind(ModelKind):
    """What the house asks of it."""

    config = FourierNetworkConfig
    stackable = True
    can_take_over = True
    order = 3

    def build(self, config: FourierNetworkConfig) -> FourierNetwork:
        c = config
        return FourierNetwork(c.inputs, c.features, c.sigma, c.width, c.outputs, c.layers)

    def slug(self, config: FourierNetworkConfig) -> str:
        return "tancik"

    def title(self, config: FourierNetworkConfig) -> str:
        return "Tancik et al."

    def look(self, config: FourierNetworkConfig, best: bool = False) -> Look:
        return Look(self.title(config), 1, "#6b7280")

    def coarser(self, config: FourierNetworkConfig, factor: float) -> FourierNetworkConfig:
        return replace(config, sigma=config.sigma / factor)

    def example(self, config: FourierNetworkConfig, batch: int, length: int, random: torch.Generator):
        return torch.rand(batch, config.inputs, generator=random), {0: "batch"}

    def bytes_a_point(self, config: FourierNetworkConfig, short: int, full: int) -> int:
        return short * (config.features + 3 * config.layers * config.width) + 3 * full * config.outputs
