"""The linear part of a monDEQ: a W with sym(I - W) >= m I whatever its parameters are.

    W = (1 - m) I - A^T A + B - B^T                      Winston & Kolter, NeurIPS 2020

so that z^T (I - W) z = m |z|^2 + |A z|^2. In tiers A is block lower-bidiagonal, A_ii within a tier and K_i from
tier i down to i + 1, at half the resolution, and B is block diagonal. Doubling what A^T A has below its diagonal
and dropping what it has above leaves the symmetric part as it is and W block lower-bidiagonal:

    W_ii = (1 - m) I - A_ii^T A_ii - K_i^T K_i + B_ii - B_ii^T        W_{i+1,i} = -2 A_{i+1,i+1}^T K_i

Everything is a circular convolution (`circular.py`): W is put together as a stencil and becomes a small matrix at
each frequency. What acts on a state, be it W, the step of forward-backward or the step of Peaceman-Rachford, has one
shape: a `Chain` of one matrix a tier, (y_i, s_i) -> (t_i, s_{i+1}), where s_i is what tier i hears of the one above.
For Peaceman-Rachford that is the block forward substitution of I + a (I - W).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from koopsim.errors import KoopsimError
from koopsim.implicit.circular import Grid, gram, stencil_of, transpose, widen
from koopsim.implicit.inverse import reflected_resolvent
from koopsim.implicit.splitting import Storage
from koopsim.nn.products import stacked

KERNEL = 3
SCALES = ("exp", "free")
SMALLEST_SCALE = 1e-4  # of a free g: there A has norm 0.01, and the derivative of its size is 50


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


def tiers_for(image: tuple[int, int, int], channels: tuple[int, ...], connected: bool) -> tuple[Tier, ...]:
    """The grid of each tier of channels, border included: 34, 18 and 10 pixels wide for images of 32."""
    if connected:
        return (Tier(Grid(1, 1), channels[0]),)
    _, height, width = image
    part = 2 ** (len(channels) - 1)
    if height % part or width % part or min(height, width) < 2 * part:
        raise KoopsimError(
            f"The image is {height} x {width}; {len(channels)} tiers halve it {len(channels) - 1} times, so its sides "
            f"must be multiples of {part}, at least {2 * part}. Use fewer tiers, or pad the images."
        )
    return tuple(
        Tier(Grid(height // 2**i + 2, width // 2**i + 2, phases=2 if i + 1 < len(channels) else 1), c)
        for i, c in enumerate(channels)
    )


@dataclass(frozen=True, eq=False)
class Chain:
    """A linear map of states, (D, B) -> (D, B), block lower-triangular over tiers: one real matrix a tier."""

    tiers: tuple[Tier, ...]
    matrices: tuple[Tensor, ...]  # (frequencies, 2 rows, 2 columns)

    def __call__(self, y: Tensor) -> Tensor:
        said, parts = None, []
        for tier, matrix, part in zip(self.tiers, self.matrices, self._parts(y), strict=True):
            if said is not None:
                part = torch.cat([part, tier.hear(said)], dim=2)
            out = tier.grid.inverse(stacked(matrix, tier.grid.transform(part)))
            said = out[:, :, tier.depth :]
            parts.append(out[:, :, : tier.depth].reshape(tier.size, -1))
        return _joined(parts)

    def transposed(self, y: Tensor) -> Tensor:
        """The transpose of the map: the chain from its other end."""
        said, parts = None, []
        for tier, matrix, part in reversed(list(zip(self.tiers, self.matrices, self._parts(y), strict=True))):
            if said is not None:
                part = torch.cat([part, said], dim=2)
            out = tier.grid.inverse(stacked(matrix.mT, tier.grid.transform(part)))
            said = tier.answer(out[:, :, tier.depth :]) if out.shape[2] > tier.depth else None
            parts.append(out[:, :, : tier.depth].reshape(tier.size, -1))
        return _joined(parts[::-1])

    def storage(self, transposed: bool = False) -> Storage:
        """How the states it maps are kept: as they are, either way."""
        return Storage(self.matrices[0].dtype, tiers=tuple(tier.size for tier in self.tiers))

    def recorded(self, z: Tensor, q: Tensor) -> Tensor:
        """Stands in for W z + q: the gradients are right, the value is q's. A solve knows the value already."""
        said, parts = None, []
        for tier, matrix, part, q_part in zip(self.tiers, self.matrices, self._parts(z), self._parts(q), strict=True):
            if said is not None:
                part = torch.cat([part, tier.hear(said)], dim=2)
            spectrum, own = tier.grid.transform(part), matrix
            if matrix.shape[1] > 2 * tier.depth:  # what the tier below hears has to be known
                own, down = _halves(matrix).split([tier.depth, matrix.shape[1] // 2 - tier.depth], dim=2)
                own, said = _square(own), tier.grid.inverse(stacked(_square(down), spectrum))
            parts.append(_Unseen.apply(own, spectrum, q_part, tier.grid).reshape(tier.size, -1))
        return _joined(parts)

    def _parts(self, y: Tensor) -> list[Tensor]:
        parts = y.split([tier.size for tier in self.tiers])
        return [
            part.reshape(tier.grid.rows, tier.grid.columns, tier.depth, -1)
            for tier, part in zip(self.tiers, parts, strict=True)
        ]


class _Unseen(torch.autograd.Function):
    """(M, z^, q) -> q, with the gradients of inverse(M z^) + q."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, spectrum: Tensor, q: Tensor, grid: Grid) -> Tensor:
        ctx.save_for_backward(matrix, spectrum)
        ctx.grid = grid
        return q

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (matrix, spectrum), (g, *_) = ctx.saved_tensors, grads
        to_matrix = to_spectrum = None
        if any(ctx.needs_input_grad[:2]):
            with torch.autocast(g.device.type, enabled=False):
                u = ctx.grid.inverse_transposed(g)
                to_matrix = stacked(u, spectrum.mT) if ctx.needs_input_grad[0] else None
                to_spectrum = stacked(matrix.mT, u) if ctx.needs_input_grad[1] else None
        return to_matrix, to_spectrum, g, None


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


class MonotoneOperator(nn.Module):
    """W over tiers. A, B and K start like PyTorch's convolutions and are scaled to Frobenius norms a, h and a'.

    a, h and a' start at 1, as published. At first W is then small (between tiers a signal keeps about a tenth of its
    size) and solves take few steps. h may have any sign; a must not vanish, and is made of its parameter by `scale`,

        exp     a = exp(log_g), positive for every parameter value
        free    a = sqrt(g), g itself free, as published: g A^T A with A of norm 1. Theirs is no monotone operator once
                training takes g below 0. Here a = sqrt(max(|g|, SMALLEST_SCALE)): still sym(I - W) >= m I, without a
                question that a captured step could not ask; a g below 0 has a gradient, and can come back

    A single pixel is the fully connected case: a 1 x 1 convolution, where A and B are free, without scales.
    """

    log_g: Tensor
    log_g_between: Tensor
    g: Tensor
    g_between: Tensor

    def __init__(self, tiers: tuple[Tier, ...], monotonicity: float = 1.0, scale: str = "exp") -> None:
        super().__init__()
        if scale not in SCALES:
            raise KoopsimError(f"The scale of A is {scale!r}; expected one of {', '.join(SCALES)}.")
        self.tiers, self.monotonicity, self.scale = tiers, monotonicity, scale
        self.connected = tiers[0].grid.height * tiers[0].grid.width == 1
        kernel = 1 if self.connected else KERNEL
        channels = [tier.channels for tier in tiers]

        def weight(into: int, out: int) -> nn.Parameter:
            return nn.Parameter(nn.Conv2d(into, out, kernel, bias=False).weight.detach())

        self.A = nn.ParameterList(weight(c, c) for c in channels)
        self.B = nn.ParameterList(weight(c, c) for c in channels)
        self.K = nn.ParameterList(weight(c, d) for c, d in itertools.pairwise(channels))
        if not self.connected:
            name, start = ("log_g", torch.zeros) if scale == "exp" else ("g", torch.ones)
            self.register_parameter(name, nn.Parameter(start(len(tiers))))
            self.h = nn.Parameter(torch.ones(len(tiers)))
            if len(tiers) > 1:
                self.register_parameter(f"{name}_between", nn.Parameter(start(len(tiers) - 1)))

    def linear(self) -> Chain:
        """W, recorded for autograd."""
        return Chain(self.tiers, tuple(tier.grid.symbol(self._stencil(i)) for i, tier in enumerate(self.tiers)))

    def _norm(self, i: int, between: bool = False) -> Tensor:
        """a of tier i, or a' between it and the next."""
        if self.scale == "exp":
            return (self.log_g_between if between else self.log_g)[i].exp()
        return (self.g_between if between else self.g)[i].abs().clamp_min(SMALLEST_SCALE).sqrt()

    def _stencil(self, i: int) -> Tensor:
        """Tier i of W: [[W_ii, -2 A_ii^T], [K_i, 0]], without the second column in the first tier."""
        grid, A, B = self.tiers[i].grid, stencil_of(self.A[i]), stencil_of(self.B[i])
        if not self.connected:
            A, B = _scaled(A, self._norm(i)), _scaled(B, self.h[i])
        A, K = grid.fold_stencil(A), None
        rows = A
        if i + 1 < len(self.tiers):
            K = grid.fold_stencil(_scaled(stencil_of(self.K[i]), self._norm(i, between=True)), strided=True)
            rows = torch.cat([A, K], dim=1)
        squares = gram(rows)
        size = math.isqrt(len(squares))
        W = widen(grid.fold_stencil(B - transpose(B)), size) - squares
        if self.monotonicity != 1:
            unit = torch.eye(W.shape[2], dtype=W.dtype, device=W.device)
            W = W + widen((1 - self.monotonicity) * unit.unsqueeze(0), size)
        if i:
            W = torch.cat([W, widen(-2 * transpose(A), size)], dim=2)
        if K is not None:
            W = torch.cat([W, F.pad(widen(K, size), (0, W.shape[2] - K.shape[2]))], dim=1)
        return W

    @torch.no_grad()
    def relaxed(self, W: Chain, a: Tensor | float, dtype: torch.dtype | None = None) -> Chain:
        """(1 - a) I + a W: the step of forward-backward. Of W's dtype, or rounded to another."""
        matrices = []
        for tier, matrix in zip(self.tiers, W.matrices, strict=True):
            step = _halves(matrix.clone())
            step[:, :, : tier.depth] *= a
            for half in (0, 1):
                step[:, half, :, half].diagonal(dim1=-2, dim2=-1)[:, : tier.depth] += 1 - a
            matrices.append(_square(step).to(dtype or step.dtype))
        return Chain(self.tiers, tuple(matrices))

    @torch.no_grad()
    def reflected(self, W: Chain, a: Tensor | float, dtype: torch.dtype | None = None) -> Chain:
        """2 V - I with V = (I + a (I - W))^-1: the step of Peaceman-Rachford. Of W's dtype, or rounded to another.

        With R = 2 V - I of a tier alone and N = -2 a A^T it is [[R, R N + N], [(K R + K) / 2, K (R N + N) / 2]].
        """
        matrices = []
        for tier, matrix in zip(self.tiers, W.matrices, strict=True):
            d, parts = tier.depth, _halves(matrix)
            alone = len(self.tiers) == 1
            R, heard = reflected_resolvent(parts[:, :, :d, 0, :d], a, dtype=dtype if alone else None), None
            rows = _halves(R)
            if parts.shape[4] > d:
                N = a * _square(parts[:, :, :d, :, d:])
                heard = torch.baddbmm(N, R, N)
                rows = torch.cat([rows, _halves(heard)], dim=4)
            if parts.shape[2] > d:
                K = _square(parts[:, :, d:, :, :d])
                said = _halves(torch.baddbmm(K, K, R, beta=0.5, alpha=0.5))
                if heard is not None:
                    said = torch.cat([said, _halves(stacked(K, heard)) / 2], dim=4)
                rows = torch.cat([rows, said], dim=2)
            matrices.append(R if alone else _square(rows).to(dtype or rows.dtype))
        return Chain(self.tiers, tuple(matrices))


def _scaled(stencil: Tensor, size: Tensor) -> Tensor:
    return stencil * (size / torch.linalg.vector_norm(stencil))


def _halves(matrix: Tensor) -> Tensor:
    """(F, 2m, 2n) -> (F, 2, m, 2, n)"""
    return matrix.unflatten(2, (2, -1)).unflatten(1, (2, -1))


def _square(parts: Tensor) -> Tensor:
    """(F, 2, m, 2, n) -> (F, 2m, 2n)"""
    return parts.flatten(3).flatten(1, 2)
