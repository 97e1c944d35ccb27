"""Gradients through a fixed point z* = f(z*, x) that a solver found without a trace.

With g = dL/dz* and J = df/dz at z*, the gradient of the loss in whatever theta the cell sees (parameters or x) is
y^T df/dtheta, where

    implicit        y = J^T y + g, solved like the forward pass: the exact gradient, by the implicit
                    function theorem (Krantz & Parks, 2003; for networks Bai, Kolter & Koltun, 2019)
    jacobian-free   y = g, as if J were 0 (Fung et al., AAAI 2022)
    neumann         y = damping sum_{k < steps} (damping J^T + (1 - damping) I)^k g, a truncated series for the solve
    phantom         backpropagate through a few damped steps z <- (1 - damping) z + damping f(z, x) begun
                    at z*: the same series, but with J along the steps (both Geng et al., NeurIPS 2021)
    reversible      the iteration itself is inverted step by step (`reversible.py`)

All but phantom record one evaluation of the cell whatever the number of solver steps, so memory is constant in depth.
These return the same z*: they differ in the gradient only. A gradient is called with (f, z*, solve) and returns z* with
a past; `solve` is the backward solver.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from koopsim.errors import KoopsimError
from koopsim.implicit.detached import leads_on
from koopsim.implicit.info import capturing
from koopsim.implicit.iteration import Map, Narrowing, narrows, transposes, watches

_engine: Any = torch.autograd.Variable._execution_engine
Solve = Callable[[Map, Tensor], Tensor]  # (y -> J^T y + g, y0) -> y
Gradient = Callable[[Map, Tensor, Solve], Tensor]


def _same(g: Tensor) -> Tensor:
    return g


class _FixedPoint(torch.autograd.Function):
    """The value z*; the gradient `adjoint(dL/dz*)`, handed to `tape`, which equals z* and knows its past."""

    @staticmethod
    def forward(ctx: Any, tape: Tensor, z: Tensor, adjoint: Map) -> Tensor:
        ctx.adjoint = adjoint
        return z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "second derivatives through a DEQ are not available: this backward pass was run with "
                "create_graph=True, and the derivative of a solve is not recorded. Call backward without "
                "create_graph, or differentiate twice through explicit steps z = cell(z, x)."
            )
        return ctx.adjoint(grads[0]), None, None


def pulled(tape: Tensor, at: Tensor, y: Tensor) -> Tensor:
    """J^T y from a recorded evaluation `tape` = f(at).

    What `torch.autograd.grad` calls when it has looked at its arguments, which are the same in every step of a solve:
    on a CPU a quarter of its time round a small cell.
    """
    (vjp,) = _engine.run_backward((tape,), (y,), True, False, (at,), allow_unreachable=True, accumulate_grad=False)
    if vjp is None:
        raise KoopsimError(
            "The cell's output does not depend on its first argument z, so there is no fixed point to differentiate; "
            "expected f(z, *inputs): check the order of the cell's arguments."
        )
    return vjp


@dataclass(frozen=True, eq=False)
class _Transposed:
    """y -> J^T y + g, J at the point `at`, from one recorded evaluation of the cell."""

    at: Tensor
    tape: Tensor
    g: Tensor

    def __call__(self, y: Tensor) -> Tensor:
        return pulled(self.tape, self.at, y) + self.g


@dataclass(frozen=True, eq=False)
class _NarrowTransposed(_Transposed):
    """The same, for some samples alone by another recorded evaluation of the cell."""

    f: Narrowing
    worthwhile: float = 0.5  # recording half of the samples costs less than the step it saves

    def rows(self, index: Tensor) -> Map:
        at = self.at.detach().index_select(0, index).requires_grad_()
        with torch.enable_grad():
            tape = self.f.rows(index)(at).to(at.dtype)
        return _Transposed(at, tape, self.g.index_select(0, index))


@dataclass(frozen=True, eq=False)
class _WatchedTransposed(_Transposed):
    """The same from an evaluation whose gradient leaves out samples with a zero in `mask`: (B, 1), all ones at rest."""

    mask: Tensor

    def watched(self, active: Tensor) -> Map:
        def masked(y: Tensor) -> Tensor:
            self.mask.copy_(active)
            return self(y)

        return masked


@dataclass(frozen=True, eq=False)
class _OwnTransposed:
    """y -> J^T y + g by products that the cell brings along."""

    product: Any
    g: Tensor

    def __call__(self, y: Tensor) -> Tensor:
        return self.product(y) + self.g

    def watched(self, active: Tensor) -> Map:
        return _OwnTransposed(self.product.watched(active), self.g) if watches(self.product) else self


@dataclass(frozen=True, eq=False)
class _OwnNarrowTransposed(_OwnTransposed):
    worthwhile: float

    def rows(self, index: Tensor) -> Map:
        return _OwnTransposed(self.product.rows(index), self.g.index_select(0, index))


def _by_own(product: Map, g: Tensor) -> Map:
    return _OwnNarrowTransposed(product, g, product.worthwhile) if narrows(product) else _OwnTransposed(product, g)


def _recorded(f: Map, z: Tensor) -> tuple[Tensor, Tensor]:
    """A point like z of its own, and f there with its past, if that is more than the point."""
    at = z.detach().requires_grad_()
    tape = f(at).to(z.dtype)
    return at, tape if leads_on(tape, at) else tape.detach()


def implicit(f: Map, z: Tensor, solve: Solve) -> Tensor:
    own, mask = f.transposed(z) if transposes(f) else None, None
    if own is None and capturing() and watches(f):
        mask = torch.ones(z.shape[0], 1, dtype=torch.bool, device=z.device)
    at, tape = _recorded(f if mask is None else f.watched(mask), z)  # pyright: ignore
    lower = torch.is_autocast_enabled(z.device.type)

    def adjoint(g: Tensor) -> Tensor:
        # The system is linear: solving it for g of size 1 keeps tiny gradients clear of underflow.
        size = torch.linalg.vector_norm(g.reshape(g.shape[0], math.prod(g.shape[1:])), ord=torch.inf, dim=1)
        size = size.clamp_min(torch.finfo(g.dtype).tiny).view(-1, *[1] * (g.dim() - 1))
        unit = g / size
        if own is not None:
            return solve(_by_own(own, unit), unit) * size
        if mask is not None:
            y = solve(_WatchedTransposed(at, tape, unit, mask), unit)
            mask.fill_(True)  # the gradient that follows is everybody's
            return y * size
        if narrows(f) and not lower:  # a cell prepared under autocast runs only there
            transposed = _NarrowTransposed(at, tape, unit, f)
        else:
            transposed = _Transposed(at, tape, unit)
        return solve(transposed, unit) * size

    return _FixedPoint.apply(tape, z, adjoint)


def jacobian_free(f: Map, z: Tensor, solve: Solve) -> Tensor:
    return _FixedPoint.apply(f(z).to(z.dtype), z, _same)


@dataclass(frozen=True)
class _Series:
    steps: int = 5
    damping: float = 0.5

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.damping <= 1:
            raise KoopsimError(f"steps={self.steps}, damping={self.damping}: expected at least 1, and in (0, 1].")


@dataclass(frozen=True)
class Phantom(_Series):
    """Backpropagation through a few damped steps begun at z*. Memory grows with these steps alone."""

    def __call__(self, f: Map, z: Tensor, solve: Solve) -> Tensor:
        tape = z
        for _ in range(self.steps):
            tape = torch.lerp(tape, f(tape).to(z.dtype), self.damping)
        return _FixedPoint.apply(tape, z, _same)


@dataclass(frozen=True)
class Neumann(_Series):
    """The first terms of the series for (I - J^T)^-1 g, all with J at z*: one recorded evaluation."""

    def __call__(self, f: Map, z: Tensor, solve: Solve) -> Tensor:
        at, tape = _recorded(f, z)

        def adjoint(g: Tensor) -> Tensor:
            y, term = g, g
            for _ in range(self.steps - 1):
                term = torch.lerp(term, pulled(tape, at, term), self.damping)
                y = y + term
            return self.damping * y

        return _FixedPoint.apply(tape, z, adjoint)
