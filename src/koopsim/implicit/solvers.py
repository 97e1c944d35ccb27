"""Root-finding for fixed points: Picard, Anderson, Broyden.

    z* = f(z*)        written g(z) = f(z) - z = 0                            paper, eq. (2)

A sample is one element of dimension 0, and every sample is its own problem: it has its own history,
stops when its own relative residual || f(z) - z || / (|| f(z) || + eps) falls below `tol`, and when it
blows up it takes no other sample with it. What comes back is, for each sample, the best point that f was
evaluated at, together with the residual there: nothing is claimed about a point nobody looked at.

    picard     z <- z + damping g(z)
    anderson   z <- sum_i a_i (z_i + mixing g_i),  a = argmin || sum_i a_i g_i ||, sum_i a_i = 1
               type II; Walker & Ni, SIAM J. Numer. Anal. 49 (2011)
    broyden    z <- z - B^-1 g(z), B corrected by rank one to satisfy B (z - z_old) = g - g_old
               "good" Broyden (Math. Comp. 19, 1965), its inverse kept by Sherman-Morrison

The loops can be captured in a CUDA graph: nothing depends on a value on the host except the early exit,
which is skipped while capturing (then all `max_steps` run, on frozen samples to no effect). Otherwise a map
that can be narrowed to some of its samples (`Narrowing`) is no longer evaluated for those that are done:
samples differ by a factor of two in the steps they need. On a GPU the
cost is the number of kernels, so inner products over a history are batched, and they are spelt as a
product and a sum rather than a matmul, which autocast or TF32 would round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from koopsim.implicit.info import Info, capturing
from koopsim.registry import SOLVERS

Map = Callable[[Tensor], Tensor]
Propose = Callable[[int, Tensor, Tensor, Tensor, Tensor], Tensor]  # (step, z, f(z), g, ||g||) -> next z

EPS = 1e-8  # a state this small counts as zero in the relative residual


@runtime_checkable
class Narrowing(Protocol):
    """A map that can leave samples out."""

    worthwhile: float  # narrow once at most this share of the samples is left: what narrowing costs is the map's affair

    def __call__(self, z: Tensor, /) -> Tensor: ...

    def rows(self, index: Tensor, /) -> Map:
        """The same map for the samples `index` alone."""
        ...


def _dot(a: Tensor, b: Tensor) -> Tensor:  # (..., D), (..., D) -> (...)
    return (a * b).sum(-1)


def _combine(weights: Tensor, history: Tensor) -> Tensor:  # (B, m), (B, m, D) -> (B, D)
    return (weights.unsqueeze(-1) * history).sum(1)


def _check(z0: Tensor, max_steps: int, tol: float) -> None:
    if max_steps < 1 or not tol > 0:
        raise ValueError(f"max_steps={max_steps}, tol={tol}: expected at least one step and tol > 0")
    if z0.dim() == 0 or not z0.is_floating_point():
        raise ValueError(f"z0 is {z0.dtype} of shape {tuple(z0.shape)}: expected floats, samples first")


def _evaluate(f: Map, z: Tensor) -> Tensor:
    fz = f(z)
    if fz.shape != z.shape:
        raise ValueError(f"f maps {tuple(z.shape)} to {tuple(fz.shape)}: a fixed point needs equal shapes")
    return fz.to(z.dtype)


@torch.no_grad()
def _iterate(f: Map, z0: Tensor, propose: Propose, max_steps: int, tol: float) -> tuple[Tensor, Info]:
    """Evaluate, measure, keep the best, freeze what is done, propose the next: what all solvers share.

    Inside, z is (B, D) and what belongs to a sample is (B, 1).
    """
    shape = z0.shape
    z = best = z0.reshape(shape[0], math.prod(shape[1:]))
    best_residual = z.new_full((shape[0], 1), math.inf)
    active = torch.ones_like(best_residual, dtype=torch.bool)
    steps = torch.zeros_like(best_residual, dtype=torch.int64)
    may_stop = not capturing()
    whole = f if isinstance(f, Narrowing) else None
    part, rows, fz = f, None, z
    for k in range(max_steps):
        steps += active
        if rows is None:
            fz = _evaluate(f, z.view(shape)).reshape(z.shape)
        else:  # a frozen sample has its f(z) already
            fz = fz.index_copy(0, rows, _evaluate(part, z[rows].view(-1, *shape[1:])).reshape(-1, z.shape[1]))
        g = fz - z
        norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        residual = norm / (torch.linalg.vector_norm(fz, dim=1, keepdim=True) + EPS)
        best = torch.where(residual < best_residual, z, best)  # false for nan
        best_residual = torch.fmin(best_residual, residual)
        active = active & (residual >= tol) & (residual < math.inf)  # false once converged or not finite
        if k + 1 == max_steps:
            break
        if may_stop:
            left = int(active.sum())
            if left == 0:
                break
            if whole is not None and left <= whole.worthwhile * (shape[0] if rows is None else len(rows)):
                rows = active.squeeze(1).nonzero().squeeze(1)
                part = whole.rows(rows)
        z = torch.where(active, propose(k, z, fz, g, norm), best)
    best_residual = best_residual.squeeze(1)
    return best.view(shape), Info(steps.squeeze(1), best_residual, best_residual < tol)


@SOLVERS.register
def picard(f: Map, z0: Tensor, *, max_steps: int, tol: float, damping: float = 1.0) -> tuple[Tensor, Info]:
    """z <- z + damping (f(z) - z). Converges where f contracts, at the rate at which it contracts."""
    _check(z0, max_steps, tol)
    if not 0 < damping <= 1:
        raise ValueError(f"damping={damping}: expected in (0, 1], 1 being the plain iteration")

    def propose(k: int, z: Tensor, fz: Tensor, g: Tensor, norm: Tensor) -> Tensor:
        return fz if damping == 1 else torch.add(z, g, alpha=damping)

    return _iterate(f, z0, propose, max_steps, tol)


def solve_spd(A: Tensor, b: Tensor) -> Tensor:
    """x with A x = b for a batch of small symmetric positive definite A: (B, m, m), (B, m) -> (B, m).

    Gauss-Jordan without pivoting, which such matrices do not need. `torch.linalg.solve` asks the host
    whether the factorisation failed; this never does.
    """
    m = b.shape[1]
    system = torch.cat([A, b.unsqueeze(-1)], dim=-1)
    unit = torch.eye(m, dtype=A.dtype, device=A.device).unsqueeze(-1)
    for p in range(m):
        row = system[:, p : p + 1] / system[:, p : p + 1, p : p + 1]
        system = torch.addcmul(system, unit[p] - system[:, :, p : p + 1], row)
    return system[:, :, -1]


@SOLVERS.register
def anderson(
    f: Map,
    z0: Tensor,
    *,
    max_steps: int,
    tol: float,
    memory: int = 5,
    mixing: float = 1.0,
    ridge: float | None = None,
    delay: int = 2,
) -> tuple[Tensor, Info]:
    """z <- sum_i a_i (z_i + mixing g_i) over the last `memory` points, with a minimising

        || sum_i a_i g_i ||^2 + ridge sum_i a_i^2 || g_i ||^2    subject to    sum_i a_i = 1.

    The penalty is relative to each g_i, so one ridge (default: 100 machine precisions) serves every
    scale, and the system has a unit diagonal: equal iterates, a constant f, one dimension stay solvable.
    The first `delay` steps are plain and leave no history: z0 is often a point unlike any other (a layer
    norm at 0), and a history that remembers it can stall for good. A sample that has filled its memory
    without a new best residual takes plain steps until it has one: where the map is far from linear, mixing
    can circle for ever round a fixed point that plain iteration reaches.
    """
    _check(z0, max_steps, tol)
    if memory < 1 or mixing <= 0 or delay < 0:
        raise ValueError(f"memory={memory}, mixing={mixing}, delay={delay}: expected >= 1, > 0, >= 0")
    if ridge is None:
        ridge = 100 * torch.finfo(z0.dtype).eps
    B, m = z0.shape[0], min(memory, max_steps)
    G = z0.new_empty(B, m, math.prod(z0.shape[1:]))  # residuals g_i, each scaled to norm 1
    Z = torch.empty_like(G)  # what to average: z_i + mixing g_i
    scale = z0.new_zeros(B, m)  # 1 / || g_i ||
    gram = z0.new_zeros(B, m, m)
    newest = torch.eye(m, dtype=z0.dtype, device=z0.device)
    best = z0.new_full((B, 1), math.inf)
    stalled = z0.new_zeros(B, 1)  # evaluations since the best one
    damp = ridge * newest
    tiny = torch.finfo(z0.dtype).tiny

    def propose(k: int, z: Tensor, fz: Tensor, g: Tensor, norm: Tensor) -> Tensor:
        stalled.add_(1).mul_(norm >= best)
        torch.minimum(best, norm, out=best)
        if k < delay:
            return fz
        slot, n = (k - delay) % m, min(k - delay + 1, m)
        inverse = norm.clamp_min(tiny).reciprocal()
        torch.mul(g, inverse, out=G[:, slot])
        Z[:, slot] = fz if mixing == 1 else torch.add(z, g, alpha=mixing)
        scale[:, slot : slot + 1] = inverse
        row = _dot(G[:, :n], G[:, slot : slot + 1])
        gram[:, slot, :n] = row
        gram[:, :n, slot] = row
        if n == 1:
            return Z[:, 0]
        # With a_i = c_i / || g_i || the Gram matrix is that of unit vectors; a is then scaled to sum 1.
        a = solve_spd(gram[:, :n, :n] + damp[:n, :n], scale[:, :n]) * scale[:, :n]
        total = a.sum(1, keepdim=True)  # not positive: singular by rounding, take a plain step
        return _combine(torch.where((stalled < memory) & (total > 0), a / total, newest[slot, :n]), Z[:, :n])

    return _iterate(f, z0, propose, max_steps, tol)


@SOLVERS.register
def broyden(f: Map, z0: Tensor, *, max_steps: int, tol: float, memory: int = 30) -> tuple[Tensor, Info]:
    """z <- z - B^-1 g(z), B^-1 = -I + sum_i u_i v_i^T over at most `memory` corrections.

    With s the last step and w = -B^-1 g at the new point, Sherman-Morrison gives the next step and the
    correction without ever touching y = g - g_old, because B^-1 y = s - w:

        t = s.w / s.s      s_next = w / (1 - t)      u = s_next / s.s      v = B^-T s

    A t near 1 means a B near singular; it is then moved off 1 by a fraction theta of the correction
    (More & Trangenstein, Math. Comp. 30, 1976), which leaves B invertible and the method convergent. A full
    memory is emptied: later corrections build on earlier ones, and dropping only the oldest breaks them.
    """
    _check(z0, max_steps, tol)
    if memory < 1:
        raise ValueError(f"memory={memory}: expected at least 1 correction")
    B, m = z0.shape[0], min(memory, max_steps)
    U = z0.new_empty(B, m, math.prod(z0.shape[1:]))  # a slot is read only once it is written
    V = torch.empty_like(U)
    tiny = torch.finfo(z0.dtype).tiny
    previous: list[Tensor] = []  # the point before this one: freezing may have replaced the step we proposed

    def propose(k: int, z: Tensor, fz: Tensor, g: Tensor, norm: Tensor) -> Tensor:
        if not previous:
            previous.append(z)
            return fz
        s = z - previous[0]
        previous[0] = z
        n = (k - 1) % m  # corrections in use
        w = g - _combine(_dot(V[:, :n], g.unsqueeze(1)), U[:, :n]) if n else g
        v = _combine(_dot(U[:, :n], s.unsqueeze(1)), V[:, :n]) - s if n else -s
        ss = _dot(s, s).unsqueeze(1)
        inverse = torch.where(ss > tiny, 1 / ss, 0)  # no step, no correction
        t = _dot(s, w).unsqueeze(1) * inverse
        gap = 1 - t
        theta = torch.where(gap.abs() < 0.1, (1 - torch.copysign(gap.new_full((), 0.1), gap)) / t, 1)
        step = w / (1 - theta * t)
        U[:, n] = step * (theta * inverse)
        V[:, n] = v
        return z + step

    return _iterate(f, z0, propose, max_steps, tol)
