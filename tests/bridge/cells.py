"""Cells whose hidden iteration is known by heart."""

import math

import torch
from torch import Tensor, nn


class Affine(nn.Module):
    """f(z, x) = act(W z + U x + c), of the given spectral radius (of W)."""

    def __init__(self, state: int = 4, inputs: int = 3, radius: float = 0.8, act=None, seed: int = 0):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        W = torch.randn(state, state, dtype=torch.float64, generator=g)
        size = torch.linalg.matrix_norm(W, 2) if radius < 1 else torch.linalg.eigvals(W).abs().max()
        W = W * radius / size
        self.W = nn.Parameter(W)
        self.U = nn.Parameter(torch.randn(state, inputs, dtype=torch.float64, generator=g))
        self.c = nn.Parameter(torch.randn(state, dtype=torch.float64, generator=g))
        self.act = act or (lambda a: a)

    def initial(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), len(self.c))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.act(z @ self.W.T + x @ self.U.T + self.c)

    def equilibrium(self, x: Tensor) -> Tensor:
        """(I - W)^-1 (U x + c), of the affine cell."""
        identity = torch.eye(len(self.c), dtype=x.dtype)
        return torch.linalg.solve(identity - self.W, (x @ self.U.T + self.c).T).T


def rotation(angle: float, growth: float = 1.0):
    """z -> growth R(angle) z + x: turns for growth 1, spirals out above, in below."""
    c, s = math.cos(angle), math.sin(angle)
    R = growth * torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    return lambda z, x: z @ R.T + x


def inputs(count: int, size: int, seed: int = 1) -> Tensor:
    return torch.randn(count, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
