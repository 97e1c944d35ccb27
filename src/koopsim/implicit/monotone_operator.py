"""The linear part of a monDEQ: a W with sym(I - W) >= m I whatever its parameters are.

    W = (1 - m) I - A^T A + B - B^T                      Winston & Kolter, NeurIPS 2020

so that z^T (I - W) z = m |z|^2 + |A z|^2. In tiers A is block lower-bidiagonal, A_ii within a tier and K_i from
tier i down to i + 1, at half the resolution, and B is block diagonal. Doubling what A^T A has below its diagonal
and dropping what it has above leaves the symmetric part as it is and W block lower-bidiagonal:

    W_ii = (1 - m) I - A_ii^T A_ii - K_i^T K_i + B_ii - B_ii^T        W_{i+1,i} = -2 A_{i+1,i+1}^T K_i

Everything is a circular convolution (`circular.py`), so each is a symbol, a small matrix at each frequency. What
acts on a state, be it W, the step of forward-backward or the step of Peaceman-Rachford, has one shape: a `Chain`
of one matrix a tier, (y_i, s_i) -> (t_i, s_{i+1}), where s_i is what tier i hears of the one above. For
Peaceman-Rachford that is the block forward substitution of I + a (I - W).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from koopsim.implicit.circular import Grid, real_form
from koopsim.implicit.inverse import inverse

KERNEL = 3


@dataclass(frozen=True)
class Tier:
    """One resolution: its grid and channels. Its state is (grid.rows, grid.columns, depth, B)."""

    grid: Grid
    channels: int

    @property
    def depth(self) -> int:
        return self.grid.phases**2 * self.channels

    @property
    def size(self) -> int:
        return self.grid.height * self.grid.width * self.channels

    def hear(self, s: Tensor) -> Tensor:
        """What the tier above says, (height - 1, width - 1, C, B), in this tier's state; the first row is nobody's."""
        return self.grid.fold(F.pad(s, (0, 0, 0, 0, 1, 0, 1, 0)))

    def answer(self, s: Tensor) -> Tensor:
        """The transpose of `hear`."""
        return self.grid.unfold(s)[1:, 1:]


@dataclass(frozen=True)
class Symbols:
    """A tier's A, B - B^T - A^T A - K^T K and K at each frequency, complex; no K in the last tier."""

    A: Tensor
    S: Tensor
    K: Tensor | None


@dataclass(frozen=True)
class Chain:
    """A linear map of states, (D, B) -> (D, B), block lower-triangular over tiers: one real matrix a tier."""

    tiers: tuple[Tier, ...]
    matrices: tuple[Tensor, ...]  # (frequencies, 2 rows, 2 columns)

    def __call__(self, y: Tensor) -> Tensor:
        said, parts = None, []
        for tier, matrix, part in zip(self.tiers, self.matrices, self._parts(y), strict=True):
            if said is not None:
                part = torch.cat([part, tier.hear(said)], dim=2)
            out = tier.grid.inverse(torch.bmm(matrix, tier.grid.transform(part)))
            said = out[:, :, tier.depth :]
            parts.append(out[:, :, : tier.depth].reshape(tier.size, -1))
        return _joined(parts)

    def transposed(self, y: Tensor) -> Tensor:
        """The transpose of the map: the chain from its other end."""
        said, parts = None, []
        for tier, matrix, part in reversed(list(zip(self.tiers, self.matrices, self._parts(y), strict=True))):
            if said is not None:
                part = torch.cat([part, said], dim=2)
            out = tier.grid.inverse(torch.bmm(matrix.mT, tier.grid.transform(part)))
            said = tier.answer(out[:, :, tier.depth :]) if out.shape[2] > tier.depth else None
            parts.append(out[:, :, : tier.depth].reshape(tier.size, -1))
        return _joined(parts[::-1])

    def _parts(self, y: Tensor) -> list[Tensor]:
        parts = y.split([tier.size for tier in self.tiers])
        return [
            part.reshape(tier.grid.rows, tier.grid.columns, tier.depth, -1)
            for tier, part in zip(self.tiers, parts, strict=True)
        ]


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


class MonotoneOperator(nn.Module):
    """W over tiers. A, B and K start like PyTorch's convolutions and are scaled to Frobenius norms g, h and g'.

    g = exp(log_g) is positive for every parameter value; g, h and g' start at 1. A single pixel is the fully
    connected case: a 1 x 1 convolution, where A and B are free, without scales.
    """

    def __init__(self, tiers: tuple[Tier, ...], monotonicity: float = 1.0) -> None:
        super().__init__()
        self.tiers, self.monotonicity = tiers, monotonicity
        self.connected = tiers[0].grid.height * tiers[0].grid.width == 1
        kernel = 1 if self.connected else KERNEL
        channels = [tier.channels for tier in tiers]

        def weight(into: int, out: int) -> nn.Parameter:
            return nn.Parameter(nn.Conv2d(into, out, kernel, bias=False).weight.detach())

        self.A = nn.ParameterList(weight(c, c) for c in channels)
        self.B = nn.ParameterList(weight(c, c) for c in channels)
        self.K = nn.ParameterList(weight(c, d) for c, d in itertools.pairwise(channels))
        if not self.connected:
            self.log_g = nn.Parameter(torch.zeros(len(tiers)))
            self.h = nn.Parameter(torch.ones(len(tiers)))
            if len(tiers) > 1:
                self.log_g_between = nn.Parameter(torch.zeros(len(tiers) - 1))

    def symbols(self) -> list[Symbols]:
        """The symbols of every tier, recorded for autograd."""
        found = []
        for i, tier in enumerate(self.tiers):
            A, B = self.A[i], self.B[i]
            if not self.connected:
                A, B = _scaled(A, self.log_g[i].exp()), _scaled(B, self.h[i])
            A, B = tier.grid.symbol(A), tier.grid.symbol(B)
            S = B - B.mH - A.mH @ A
            K = None
            if i + 1 < len(self.tiers):
                K = tier.grid.symbol(_scaled(self.K[i], self.log_g_between[i].exp()), strided=True)
                S = S - K.mH @ K
            found.append(Symbols(A, S, K))
        return found

    def explicit(self, symbols: list[Symbols], a: Tensor | float) -> Chain:
        """(1 - a) I + a W: the step of forward-backward, and W itself at a = 1."""
        matrices = []
        for i, tier in enumerate(symbols):
            rows = a * tier.S + (1 - a * self.monotonicity) * _unit(tier.S)
            if i:
                rows = torch.cat([rows, -2 * a * tier.A.mH], dim=2)
            if tier.K is not None:
                rows = torch.cat([rows, F.pad(tier.K, (0, rows.shape[2] - tier.K.shape[2]))], dim=1)
            matrices.append(real_form(rows))
        return Chain(self.tiers, tuple(matrices))

    def implicit(self, symbols: list[Symbols], a: Tensor | float) -> Chain:
        """2 V - I with V = (I + a (I - W))^-1: the step of Peaceman-Rachford."""
        matrices = []
        for i, tier in enumerate(symbols):
            unit = _unit(tier.S)
            V = inverse((1 + a * self.monotonicity) * unit - a * tier.S)  # of this tier alone
            if i:
                V, unit = torch.cat([V, V @ (-2 * a * tier.A.mH)], dim=2), F.pad(unit, (0, unit.shape[-1]))
            rows = 2 * V - unit
            if tier.K is not None:
                rows = torch.cat([rows, tier.K @ V], dim=1)
            matrices.append(real_form(rows))
        return Chain(self.tiers, tuple(matrices))


def _scaled(kernel: Tensor, size: Tensor) -> Tensor:
    return kernel * (size / torch.linalg.vector_norm(kernel))


def _unit(symbol: Tensor) -> Tensor:
    return torch.eye(symbol.shape[-1], dtype=symbol.dtype, device=symbol.device)
