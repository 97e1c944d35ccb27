"""Deep equilibrium: a layer whose output is the fixed point of a cell, and three gradients through it.

    z* = f(z*, x)                                                              paper, eq. (2)

The solve itself leaves no trace for autograd. With g = dL/dz* and J = df/dz at z*, the gradient of the
loss in whatever theta the cell sees (parameters or x) is y^T df/dtheta, where

    implicit        y = J^T y + g, solved like the forward pass: the exact gradient, by the implicit
                    function theorem (Krantz & Parks, 2003; for networks Bai, Kolter & Koltun, 2019)
    jacobian-free   y = g, as if J were 0 (Fung et al., AAAI 2022)
    phantom         backpropagate through a few damped steps z <- (1 - damping) z + damping f(z, x) begun
                    at z* (Geng et al., NeurIPS 2021)

The first two record one evaluation of the cell whatever the number of solver steps, so memory is constant
in depth. All three return the same z*: they differ in the gradient only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from koopsim.implicit.info import DEQInfo, Info, UnconvergedWarning, capturing
from koopsim.implicit.solvers import Map, Narrowing
from koopsim.registry import SOLVERS

EVALUATION_FACTOR = 4  # in eval mode a solve may take this many times the steps: no gradient waits for it
GRADIENTS = ("implicit", "jacobian-free", "phantom")


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


@dataclass(frozen=True, eq=False)
class _Transposed:
    """y -> J^T y + g, J at the point `at`, from one recorded evaluation of the cell."""

    at: Tensor
    tape: Tensor
    g: Tensor

    def __call__(self, y: Tensor) -> Tensor:
        (vjp,) = torch.autograd.grad(self.tape, self.at, y, retain_graph=True)
        return vjp + self.g


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


class DEQ(nn.Module):
    """x -> z* with z* = cell(z*, x), and how the solve went.

    The cell is any callable f(z, x) that maps z to its own shape, a sample an element of dimension 0. Two
    methods are used where it has them: `cell.initial(x)` gives z0 (else zeros like x), and
    `cell.prepare(x)` gives z -> f(z, x) with everything that does not depend on z computed, once a forward.
    If what it gives is `Narrowing`, samples that have converged are no longer evaluated.
    """

    def __init__(
        self,
        cell: Callable[[Tensor, Any], Tensor],
        solver: str = "anderson",
        max_steps: int = 30,
        tol: float = 1e-3,
        memory: int | None = None,
        gradient: str = "implicit",
        backward_solver: str | None = None,
        backward_max_steps: int = 30,
        backward_tol: float = 1e-3,
        phantom_steps: int = 5,
        phantom_damping: float = 0.5,
    ) -> None:
        super().__init__()
        backward_solver = backward_solver or solver
        for name in (solver, backward_solver):
            if name not in SOLVERS:
                raise ValueError(f"unknown solver {name!r}: expected one of {', '.join(SOLVERS)}")
        if gradient not in GRADIENTS:
            raise ValueError(f"unknown gradient {gradient!r}: expected one of {', '.join(GRADIENTS)}")
        for name, count in (
            ("max_steps", max_steps),
            ("backward_max_steps", backward_max_steps),
            ("phantom_steps", phantom_steps),
            ("memory", 1 if memory is None else memory),
        ):
            if count < 1:
                raise ValueError(f"{name}={count}: expected at least 1")
        for name, value in (("tol", tol), ("backward_tol", backward_tol)):
            if not value > 0:
                raise ValueError(f"{name}={value}: expected a positive relative residual")
        if not 0 < phantom_damping <= 1:
            raise ValueError(f"phantom_damping={phantom_damping}: expected in (0, 1]")
        if memory is not None and solver == backward_solver == "picard":
            raise ValueError(f"memory={memory}: picard keeps no history; leave memory out")
        self.cell = cell
        self.solver, self.max_steps, self.tol, self.memory = solver, max_steps, tol, memory
        self.gradient, self.phantom_steps, self.phantom_damping = gradient, phantom_steps, phantom_damping
        self.backward_solver, self.backward_max_steps = backward_solver, backward_max_steps
        self.backward_tol = backward_tol
        self.captured_steps = (max_steps, backward_max_steps)  # a CUDA graph cannot exit early: how many it runs
        self._warned: set[str] = set()

    def extra_repr(self) -> str:
        solver = f"solver={self.solver!r}, max_steps={self.max_steps}, tol={self.tol}"
        return f"{solver}, memory={self.memory}, gradient={self.gradient!r}"

    def forward(self, x: Any, z0: Tensor | None = None) -> tuple[Tensor, DEQInfo]:
        """The fixed point reached from z0. No gradient flows to z0: the fixed point does not depend on it."""
        prepare = getattr(self.cell, "prepare", None)
        f: Map = prepare(x) if prepare is not None else lambda z: self.cell(z, x)
        if z0 is None:
            initial: Callable[[Any], Tensor] = getattr(self.cell, "initial", torch.zeros_like)
            z0 = initial(x)
        with torch.no_grad():
            z, solved = self._solve("forward", f, z0.detach())
        info = DEQInfo(solved)
        if not torch.is_grad_enabled():
            return z, info
        # Autocast keeps the low-precision copies of weights made just now under no_grad: without a history.
        torch.clear_autocast_cache()
        if not self._differentiable(f, z, x):
            return z, info
        if self.gradient == "phantom":
            tape = z
            for _ in range(self.phantom_steps):
                tape = torch.lerp(tape, f(tape).to(z.dtype), self.phantom_damping)
            return _FixedPoint.apply(tape, z, _same), info
        if self.gradient == "jacobian-free":
            return _FixedPoint.apply(f(z).to(z.dtype), z, _same), info
        at = z.detach().requires_grad_()
        tape = f(at).to(z.dtype)
        lower = torch.is_autocast_enabled(z.device.type)

        def adjoint(g: Tensor) -> Tensor:
            # The system is linear: solving it for g of size 1 keeps tiny gradients clear of underflow.
            size = torch.linalg.vector_norm(g.reshape(g.shape[0], math.prod(g.shape[1:])), ord=torch.inf, dim=1)
            size = size.clamp_min(torch.finfo(g.dtype).tiny).view(-1, *[1] * (g.dim() - 1))
            unit = g / size
            if isinstance(f, Narrowing) and not lower:  # a cell prepared under autocast runs only there
                transposed = _NarrowTransposed(at, tape, unit, f)
            else:
                transposed = _Transposed(at, tape, unit)
            y, info.backward = self._solve("backward", transposed, unit)
            return y * size

        return _FixedPoint.apply(tape, z, adjoint), info

    def _solve(self, direction: str, f: Map, z0: Tensor) -> tuple[Tensor, Info]:
        backward = direction == "backward"
        solver = self.backward_solver if backward else self.solver
        max_steps = self.backward_max_steps if backward else self.max_steps
        tol = self.backward_tol if backward else self.tol
        if not self.training:
            max_steps *= EVALUATION_FACTOR
        if capturing():
            max_steps = min(max_steps, self.captured_steps[backward])
        options = {} if self.memory is None or solver == "picard" else {"memory": self.memory}
        z, info = SOLVERS[solver](f, z0, max_steps=max_steps, tol=tol, **options)
        if direction not in self._warned and not capturing() and not info.converged.all():
            self._warned.add(direction)
            count, total = int((~info.converged).sum()), info.converged.numel()
            warnings.warn(
                f"the {direction} solve left {count} of {total} samples above tol={tol:g} after at most "
                f"{max_steps} steps of {solver}; the worst relative residual is {info.residuals.max():.2g}. "
                "Try more steps, another solver, a larger tolerance, or a cell that contracts more. Each "
                "call's residuals are in its info; this is said once.",
                UnconvergedWarning,
                stacklevel=5,
            )
        return z, info

    def _differentiable(self, f: Map, z: Tensor, x: Any) -> bool:
        """Whether anything the cell sees needs a gradient. A plain function may see anything: ask it."""
        if isinstance(x, Tensor) and x.requires_grad:
            return True
        if isinstance(self.cell, nn.Module) and any(p.requires_grad for p in self.cell.parameters()):
            return True
        return f(z).requires_grad
