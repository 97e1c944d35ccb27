"""A fixed-point iteration that can be run backwards: exact gradients of what was run, in constant memory.

    y_{n+1} = (1 - b) y_n + b f(z_n)            z_n = (z_{n+1} - b f(y_{n+1})) / (1 - b)
    z_{n+1} = (1 - b) z_n + b f(y_{n+1})        y_n = (y_{n+1} - b f(z_n)) / (1 - b)

Two states take turns, so each step can be undone by arithmetic alone (McCallum, Arora & Foster, "Reversible Deep
Equilibrium Models", 2025; the coupling is that of Gomez et al., 2017). The backward pass undoes the steps one by one
and differentiates each, recorded alone: nothing is kept of the forward pass but its end. The gradient is that of the
iteration that was run, converged or not, where the implicit one is that of a fixed point.

Undoing a step divides rounding errors by 1 - b: after N steps they have grown by (1 - b)^-N or more. The states are
therefore kept in float64, whatever the cell computes in, and the backward pass knows the truth about itself: it must
arrive at z0, and says so where it does not.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from koopsim.errors import KoopsimError
from koopsim.implicit.info import DEQInfo, Info, UnconvergedWarning, capturing
from koopsim.implicit.iteration import Map, Tolerance, evaluated
from koopsim.implicit.outside import Replacing, seen_by

RETURNED = 1e-3  # a backward pass that misses z0 by more than this, relative to the end, is not to be trusted


@dataclass(frozen=True)
class Reversible:
    """The gradient of `DEQ(cell, gradient=Reversible(0.5))`. It brings its own solver, of `max_steps` pairs of
    evaluations; each sample stops at its own tolerance, as with any other.
    """

    relaxation: float = 0.5  # b

    def __post_init__(self) -> None:
        if not 0 < self.relaxation < 1:
            raise KoopsimError(f"relaxation={self.relaxation}: expected in (0, 1); at 1 a step cannot be undone.")

    def run(self, f: Map, z0: Tensor, max_steps: int, tol: Tolerance) -> tuple[Tensor, DEQInfo]:
        """The end of the iteration from z0, with a past where one is wanted."""
        flat = z0.reshape(z0.shape[0], math.prod(z0.shape[1:]))
        f = f.plain() if hasattr(f, "plain") else f  # a step is undone by the rounding that it was made with
        cell = _Cell(f, z0.shape, z0.dtype, _lower(z0.device.type))
        with torch.no_grad():
            y, z, info = self._forward(cell, flat, max_steps, tol)
        solved, end = DEQInfo(info), z.to(z0.dtype).view(z0.shape)
        if not torch.is_grad_enabled():
            return end, solved
        with cell.precision():
            outside = seen_by(f, z0.detach())
        if not outside:
            return end, solved
        most = max_steps if capturing() else int(info.steps.max()) if len(flat) else 0
        undo = _Undo(self.relaxation, cell, (y, z), (info.steps, most), flat, solved)
        return _Reversed.apply(undo, end, *outside), solved

    @np.errstate(all="ignore")
    def _forward(self, cell: _Cell, z0: Tensor, max_steps: int, tol: Tolerance) -> tuple[Tensor, Tensor, Info]:
        b, y, z = self.relaxation, z0.double(), z0.double()
        active = torch.ones(len(z0), 1, dtype=torch.bool, device=z0.device)
        steps = torch.zeros_like(active, dtype=torch.int64)
        residual = z0.new_full((len(z0), 1), math.inf, dtype=torch.float64)
        for k in range(max_steps):
            fz = cell(z)
            g = fz - z
            now = torch.as_tensor(tol.residuals(g, fz, torch.linalg.vector_norm(g, dim=1, keepdim=True)))
            residual = torch.where(active, now, residual)
            largest = now.amax(1, keepdim=True)
            active = active & (largest >= tol.value) & (largest < math.inf)
            if not capturing() and not active.any():
                break
            steps += active
            y = torch.where(active, torch.lerp(y, fz, b), y)
            z = torch.where(active, torch.lerp(z, cell(y), b), z)
            if k + 1 == max_steps:
                fz = cell(z)
                g = fz - z
                now = torch.as_tensor(tol.residuals(g, fz, torch.linalg.vector_norm(g, dim=1, keepdim=True)))
                residual = torch.where(active, now, residual)
        worst = residual.amax(1)
        parts = residual if residual.shape[1] > 1 else None
        return y, z, Info(steps.squeeze(1), worst, worst < tol.value, parts)


@dataclass(frozen=True, eq=False)
class _Cell:
    """The cell on matrices (B, D) in float64, computing in its own precision."""

    f: Map
    shape: torch.Size
    dtype: torch.dtype
    lower: tuple[str, torch.dtype | None]  # a device, and what autocast has there: backward is called outside of it

    def __call__(self, z: Tensor) -> Tensor:
        with self.precision():
            return evaluated(self.f, z.to(self.dtype).view(self.shape)).reshape(z.shape).double()

    def precision(self) -> Any:
        """Both passes run in the precision of the forward one; rounded weights are not kept, their past would be."""
        device, dtype = self.lower
        return nullcontext() if dtype is None else torch.autocast(device, dtype, cache_enabled=False)

    def pulled(self, z: Tensor, outside: list[Tensor]) -> tuple[Tensor, Callable[[Tensor], list[Tensor | None]]]:
        """f(z), and what pulls a gradient back through it to z and to what the cell sees besides."""
        at, seen = z.to(self.dtype).view(self.shape).detach().requires_grad_(), Replacing(outside)
        with torch.enable_grad(), self.precision(), seen:
            out = self.f(at).to(self.dtype)

        def pull(a: Tensor) -> list[Tensor | None]:
            grads = torch.autograd.grad(out, [at, *seen.leaves], a.to(self.dtype).view(self.shape), allow_unused=True)
            return [None if g is None else g.reshape(z.shape).double() if i == 0 else g for i, g in enumerate(grads)]

        return out.detach().reshape(z.shape).double(), pull


@dataclass(frozen=True, eq=False)
class _Undo:
    """The backward pass: a step undone, differentiated, and the next."""

    b: float
    cell: _Cell
    ends: tuple[Tensor, Tensor]
    steps: tuple[Tensor, int]  # of each sample, (B,), and the most; a CUDA graph takes as many as there may be
    start: Tensor
    solved: DEQInfo

    def __call__(self, g: Tensor, outside: list[Tensor]) -> list[Tensor | None]:
        b, (y, z) = self.b, self.ends
        count, most = self.steps[0].unsqueeze(1), self.steps[1]
        dz = g.reshape(z.shape).double()
        dy = torch.zeros_like(dz)
        totals: list[Tensor | None] = [None] * len(outside)
        for n in range(most, 0, -1):
            ran = count >= n
            fy, pull = self.cell.pulled(y, outside)
            z = torch.where(ran, (z - b * fy) / (1 - b), z)
            into_y, *seen = pull(torch.where(ran, b * dz, 0))
            dy = dy if into_y is None else dy + into_y
            dz = torch.where(ran, (1 - b) * dz, dz)
            _add(totals, seen)
            fz, pull = self.cell.pulled(z, outside)
            y = torch.where(ran, (y - b * fz) / (1 - b), y)
            into_z, *seen = pull(torch.where(ran, b * dy, 0))
            dz = dz if into_z is None else dz + into_z
            dy = torch.where(ran, (1 - b) * dy, dy)
            _add(totals, seen)
        self._arrived(y, z)
        return totals

    def _arrived(self, y: Tensor, z: Tensor) -> None:
        """How far from z0 the backward pass ended, relative to the iteration's end."""
        size = torch.linalg.vector_norm(self.ends[1], dim=1).clamp_min(torch.finfo(torch.float64).tiny)
        missed = [torch.linalg.vector_norm(state - self.start.double(), dim=1) for state in (y, z)]
        miss = torch.maximum(*missed) / size
        self.solved.backward = Info(self.steps[0], miss, miss < RETURNED)
        if not capturing() and not (miss < RETURNED).all():
            warnings.warn(
                f"the reversible iteration was not undone for {int((~(miss < RETURNED)).sum())} of {len(miss)} "
                f"samples: the backward pass missed z0 by up to {float(miss.max()):.1g} of the state, since "
                f"{self.steps[1]} steps of relaxation {self.b:g} enlarge rounding at least by "
                f"{(1 - self.b) ** -self.steps[1]:.1g}. Use fewer steps, a smaller relaxation or the implicit "
                "gradient.",
                UnconvergedWarning,
                stacklevel=2,
            )


def _lower(device: str) -> tuple[str, torch.dtype | None]:
    return device, torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _add(totals: list[Tensor | None], more: list[Tensor | None]) -> None:
    for i, (total, grad) in enumerate(zip(totals, more, strict=True)):
        totals[i] = total if grad is None else grad if total is None else total + grad


class _Reversed(torch.autograd.Function):
    """The value z_N; the gradients of all that the cell sees, found by undoing the steps."""

    @staticmethod
    def forward(ctx: Any, undo: _Undo, end: Tensor, *outside: Tensor) -> Tensor:
        ctx.undo, ctx.outside = undo, outside
        ctx.save_for_backward(*outside)  # so that autograd notices where one is changed before the backward pass
        return end.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "second derivatives through a reversible DEQ are not available: this backward pass was run with "
                "create_graph=True. Call backward without it, or differentiate twice through explicit steps."
            )
        _ = ctx.saved_tensors
        return None, None, *ctx.undo(grads[0], list(ctx.outside))
