"""Four cells that never settle where a root-finder says, and what they really do, in closed form.

    Flip         z' = c - s/a tanh(k (z - c) a/s),  tanh(k a) = a         two points, c - s and c + s
    LimitCycle   r' = mu r - r^3, theta' = gamma - beta r^2, a step of it     circle of radius sqrt(mu)
    Chaos        z = c + s y,  y' = 4 y (1 - y)           density 1 / (pi sqrt((z - c) (c + s - z))) on [c, c + s]
    Bistable     z' = z + (z - z^3 + h) / 4                               two attracting points for |h| < 2 / (3 sqrt 3)

The parameters are functions of two inputs in [-1, 1]. Each equation z = f(z, x) has a solution: c for Flip, 0 for
LimitCycle, c + 3 s / 4 for Chaos, the middle root for Bistable. All of them repel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

BETA, STEP = 0.4, 0.25  # of the limit cycle
AMPLITUDE = 0.9  # a in tanh(k a) = a, which has a solution a > 0 for every k > 1


def example_inputs(count: int, seed: int = 0) -> Tensor:
    """Evenly at random in [-1, 1]^2."""
    return 2 * torch.rand(count, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 1


def _centre(x: Tensor) -> Tensor:
    return torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:2]


def _size(x: Tensor) -> Tensor:
    return 1.0 + 0.5 * x[:, 1:2] * torch.cos(2 * x[:, :1])


class Flip(nn.Module):
    """Jumps between c(x) + s(x) and c(x) - s(x); c(x), in the middle, repels."""

    def initial(self, x: Tensor) -> Tensor:
        return _centre(x) + 0.1

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        c, s = _centre(x), _size(x) / AMPLITUDE
        k = math.atanh(AMPLITUDE) / AMPLITUDE
        return c - s * torch.tanh(k * (z - c) / s)

    def orbit(self, x: Tensor) -> Tensor:
        """(inputs, 2, 1): the two points."""
        return torch.stack([_centre(x) - _size(x), _centre(x) + _size(x)], dim=1)


class LimitCycle(nn.Module):
    """Stuart-Landau, exactly: 1/r^2 relaxes to 1/mu, theta - beta ln r turns at gamma - beta mu."""

    def parameters_of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mu = 1.0 + 0.6 * torch.sin(3 * x[:, :1]) * x[:, 1:2] + 0.3 * x[:, 1:2]
        return mu, 2.0 + x[:, :1] - 0.5 * x[:, 1:2] ** 2

    def initial(self, x: Tensor) -> Tensor:
        return x.new_tensor([0.3, 0.0]).expand(len(x), 2).clone()  # the origin itself is a fixed point, unstable

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        mu, gamma = self.parameters_of(x)
        growth = torch.exp(2 * mu * STEP)
        ratio = growth / (1 + z.square().sum(1, keepdim=True) / mu * (growth - 1))  # of the squared radii
        turn = (gamma - BETA * mu) * STEP + 0.5 * BETA * ratio.log()
        z1, z2 = z[:, :1], z[:, 1:]
        return ratio.sqrt() * torch.cat([turn.cos() * z1 - turn.sin() * z2, turn.sin() * z1 + turn.cos() * z2], dim=1)


class Chaos(nn.Module):
    """The logistic map on [c(x), c(x) + s(x)]: E z = c + s / 2, var z = s^2 / 8."""

    def initial(self, x: Tensor) -> Tensor:
        return _centre(x) + 0.3 * _size(x)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        y = 1 - (1 - (z - _centre(x)) / _size(x) % 2).abs()  # starts outside the interval are folded into it
        return _centre(x) + _size(x) * 4 * y * (1 - y)

    def mean(self, x: Tensor) -> Tensor:
        return _centre(x) + _size(x) / 2

    def variance(self, x: Tensor) -> Tensor:
        return _size(x).square() / 8


class Bistable(nn.Module):
    """Two branches; from z_0 = 0 the iteration goes up where h(x) > 0 and down where h(x) < 0."""

    def tilt(self, x: Tensor) -> Tensor:
        return 0.3 * x[:, :1] + 0.15 * x[:, 1:2]

    def initial(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), 1)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return z + (z - z**3 + self.tilt(x)) / 4
