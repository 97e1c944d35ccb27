"""What all solvers share: evaluate, measure, keep the best, freeze what is done, propose the next.

    z* = f(z*)        written g(z) = f(z) - z = 0                            paper, eq. (2)

A sample is one element of dimension 0, and every sample is its own problem: it has its own history, stops when its own
residual falls below the tolerance, and when it blows up it takes no other sample with it. What comes back is, for each
sample, the best point that f was evaluated at, with the residual there: nothing is claimed about a point nobody looked
at. A residual is

    relative     || g || / (|| f(z) || + eps)        absolute     || g ||        or a norm of one's own, of (g, f(z))

and of a state of several parts the largest of theirs: a small part converges too.

The loop can be captured in a CUDA graph: nothing depends on a value on the host except the early exit, which is skipped
while capturing (then all `max_steps` run, on frozen samples to no effect; a map that can leave some out by a mask,
`Watching`, does so). Otherwise a map that can be narrowed to some
of its samples (`Narrowing`) is no longer evaluated for those that are done: samples differ by a factor of two in the
steps they need.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol, TypeGuard

import numpy as np
import torch
from torch import Tensor

from koopsim.errors import KoopsimError
from koopsim.implicit.info import Info, capturing
from koopsim.implicit.ledger import ledger_of

Map = Callable[[Tensor], Tensor]
Propose = Callable[[int, Tensor, Tensor, Tensor, Tensor], Tensor]  # (step, z, f(z), g, ||g||) -> next z
Norm = Callable[[Tensor, Tensor], Tensor]  # (g, f(z)), (B, D) each -> (B,)

EPS = 1e-8  # a state this small counts as zero in the relative residual
KINDS = ("relative", "absolute")
NUMPYS = (torch.float32, torch.float64)  # it has no bfloat16, and solves nothing in float16


class Narrowing(Protocol):
    """A map that can leave samples out."""

    worthwhile: float  # narrow once at most this share of the samples is left: what narrowing costs is the map's affair

    def __call__(self, z: Tensor, /) -> Tensor: ...

    def rows(self, index: Tensor, /) -> Map:
        """The same map for the samples `index` alone."""
        ...


class Watching(Protocol):
    """A map that, in a captured graph, can leave out samples whose entry of a mask is zero when it runs."""

    def __call__(self, z: Tensor, /) -> Tensor: ...

    def watched(self, active: Tensor, /) -> Map:
        """The same map; of a sample with active (B, 1) = 0 nobody looks at the result."""
        ...


class Transposing(Protocol):
    """A map that brings its own products with its transposed Jacobian, faster than autograd's."""

    def __call__(self, z: Tensor, /) -> Tensor: ...

    def transposed(self, z: Tensor, /) -> Map | None:
        """y -> y df/dz at z, or None where it has none after all; itself it may be `Narrowing` and `Watching`."""
        ...


def transposes(f: Any) -> TypeGuard[Transposing]:
    return hasattr(f, "transposed")


def watches(f: Any) -> TypeGuard[Watching]:
    return hasattr(f, "watched")


def narrows(f: Any) -> TypeGuard[Narrowing]:
    """As isinstance, which for a protocol takes as long as a small cell."""
    return hasattr(f, "rows") and hasattr(f, "worthwhile")


@dataclass(frozen=True)
class Tolerance:
    """Below which residual a sample is done. A plain number stands for a relative one."""

    value: float = 1e-3
    kind: str | Norm = "relative"
    sizes: tuple[int, ...] = ()  # of the parts of a sample, each with its own residual; none: the state is one

    def __post_init__(self) -> None:
        if not (isinstance(self.value, Real) and self.value > 0):
            raise KoopsimError(f"tol={self.value!r}: expected a positive residual.")
        if not callable(self.kind) and self.kind not in KINDS:
            raise KoopsimError(f"The residual is {self.kind!r}; expected {', '.join(KINDS)}, or a norm of (g, f(z)).")

    def residuals(self, g: Tensor, fz: Tensor, norm: Tensor) -> Any:
        """(B, D), (B, D) and || g || (B, 1) -> (B, parts), as `numbers`."""
        if len(self.sizes) < 2:
            return self._residual(g, fz, norm)
        parts = [
            self._residual(part, f, torch.linalg.vector_norm(part, dim=1, keepdim=True))
            for part, f in zip(g.split(self.sizes, dim=1), fz.split(self.sizes, dim=1), strict=True)
        ]
        return torch.cat(parts, dim=1) if isinstance(parts[0], Tensor) else np.concatenate(parts, axis=1)

    def _residual(self, g: Tensor, fz: Tensor, norm: Tensor) -> Any:
        if not isinstance(self.kind, str):
            own: Tensor = self.kind(g, fz)
            return numbers(own.reshape(-1, 1))
        if self.kind == "absolute":
            return numbers(norm)
        return numbers(norm) / (numbers(torch.linalg.vector_norm(fz, dim=1, keepdim=True)) + EPS)


def numbers(tensor: Tensor) -> Any:
    """What is kept about samples, a few numbers each: on a CPU as NumPy's, in the memory of the tensor.

    The operations are the same at a third of the cost of a call, and half the cost of a step round a small cell.
    """
    if tensor.device.type != "cpu":
        return tensor
    return (tensor if tensor.dtype in NUMPYS else tensor.float()).numpy()


def tolerance(tol: float | Tolerance) -> Tolerance:
    return tol if isinstance(tol, Tolerance) else Tolerance(tol)


def check(z0: Tensor, max_steps: int) -> None:
    if max_steps < 1:
        raise KoopsimError(f"max_steps={max_steps}: expected at least one step.")
    if z0.dim() == 0 or not z0.is_floating_point():
        raise KoopsimError(f"z0 is {z0.dtype} of shape {tuple(z0.shape)}: expected floats, samples first.")


def evaluated(f: Map, z: Tensor) -> Tensor:
    """f(z) in the precision of z; a map that is no map of states is told so."""
    version = None if z.is_inference() else z._version
    fz = f(z)
    if not isinstance(fz, Tensor) or fz.shape != z.shape:
        given = tuple(fz.shape) if isinstance(fz, Tensor) else f"a {type(fz).__name__}"
        raise KoopsimError(
            f"The cell maps a state z of shape {tuple(z.shape)} to {given}: a fixed point needs equal shapes. "
            "Return f(z, *inputs) shaped like z, or give z0 the shape that the cell returns."
        )
    if fz.device != z.device:
        raise KoopsimError(
            f"The cell returned a tensor on {fz.device} for a state z on {z.device}; expected the same device: move "
            "the cell, or z0."
        )
    if version is not None and z._version != version:
        raise KoopsimError(
            "The cell changed its argument z in place; expected a new tensor, since the solver compares f(z) with z. "
            "Replace operations such as z.add_(...) or z += ... by z = z + ..."
        )
    fz = fz.detach() if fz.requires_grad and not torch.is_grad_enabled() else fz  # a cell may record inside
    return fz if fz.dtype == z.dtype else fz.to(z.dtype)


@torch.no_grad()
@np.errstate(all="ignore")  # a sample may blow up; that is what the residual is for
def iterate(f: Map, z0: Tensor, propose: Propose, max_steps: int, tol: Tolerance) -> tuple[Tensor, Info]:
    """Inside, z is (B, D) and what belongs to a sample is (B, 1)."""
    shape = z0.shape
    z = z0.reshape(shape[0], math.prod(shape[1:]))
    may_stop, kept = not capturing(), ledger_of(z, tol)
    whole = f if narrows(f) else None
    part, rows, fz = f, None, z
    if not may_stop and kept.in_place and watches(f):
        part = f.watched(kept.active)
    for k in range(max_steps):
        fz = _mapped(part, z, fz, rows, shape)
        g, norm = kept.judge(z, fz)
        if k + 1 == max_steps:
            break
        if may_stop:
            left = kept.left()
            if left == 0:
                break
            if whole is not None and left <= whole.worthwhile * (shape[0] if rows is None else len(rows)):
                rows = kept.rows()
                part = whole.rows(rows)
        z = kept.next(propose(k, z, fz, g, norm), fz)
    return kept.best.view(shape), kept.info()


def _mapped(f: Map, z: Tensor, before: Tensor, rows: Tensor | None, shape: torch.Size) -> Tensor:
    """f(z), (B, D); with `rows` f is of these samples alone, and a frozen one has its f(z) already."""
    if rows is not None:
        return before.index_copy(0, rows, evaluated(f, z[rows].view(-1, *shape[1:])).reshape(-1, z.shape[1]))
    return evaluated(f, z) if len(shape) == 2 else evaluated(f, z.view(shape)).reshape(z.shape)
