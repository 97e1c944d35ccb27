"""Root-finding for fixed points: Picard, relaxed, Anderson, Broyden, Newton-Krylov; or one of one's own.

    z* = f(z*)        written g(z) = f(z) - z = 0                            paper, eq. (2)

What all of them share (samples that stop one by one, the best point, tolerances) is in `iteration.py`.

    picard     z <- z + damping g(z)
    relaxed    the same with damping 1/2: the average of z and f(z), which also settles where f turns without growing
               (Krasnosel'skii, 1955; Mann, 1953)
    anderson   z <- sum_i a_i (z_i + mixing g_i),  a = argmin || sum_i a_i g_i ||, sum_i a_i = 1
               type II; Walker & Ni, SIAM J. Numer. Anal. 49 (2011)
    broyden    z <- z - B^-1 g(z), B corrected by rank one to satisfy B (z - z_old) = g - g_old
               "good" Broyden (Math. Comp. 19, 1965), its inverse kept by Sherman-Morrison
    newton     z <- z + s, (I - J) s = g(z), the linear system by a Krylov method

A solver of one's own is a function (f, z0, max_steps=, tol=) -> (z, Info), given to `DEQ` or made known by its name
(`@SOLVERS.register`). The cost is the number of calls: inner products over a history are batched, on a GPU spelt as a
product and a sum rather than a matmul, which autocast or TF32 would round, and a sample's own numbers are NumPy's on a
CPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from koopsim.errors import KoopsimError
from koopsim.implicit.info import Info
from koopsim.implicit.iteration import Map, Tolerance, check, evaluated, iterate, numbers, tolerance
from koopsim.registry import SOLVERS

NEAREST = 0.1  # to 1, that a step of Broyden's may come: nearer it is shortened

Solver = Callable[..., tuple[Tensor, Info]]  # (f, z0, max_steps=, tol=) -> (z, how it went)


def _dots(history: Any, v: Any) -> Any:
    """(B, m, D), (B, D) -> (B, m)"""
    if isinstance(v, Tensor):
        return (history * v.unsqueeze(1)).sum(-1)
    return np.matmul(history, v[:, :, None])[:, :, 0]


def _state(point: Any, z: Tensor) -> Tensor:
    """A point as a tensor like z, in memory of torch's own: where that is measured, it is counted."""
    return point if isinstance(point, Tensor) else torch.from_numpy(point).to(z.dtype, copy=True)


def _combine(weights: Any, history: Any) -> Any:
    """(B, m), (B, m, D) -> (B, D)"""
    if isinstance(history, Tensor):
        return (weights.unsqueeze(-1) * history).sum(1)
    return np.matmul(weights[:, None], history)[:, 0]


@SOLVERS.register
def picard(f: Map, z0: Tensor, *, max_steps: int, tol: float | Tolerance, damping: float = 1.0) -> tuple[Tensor, Info]:
    """z <- z + damping (f(z) - z). Converges where f contracts, at the rate at which it contracts."""
    check(z0, max_steps)
    if not 0 < damping <= 1:
        raise KoopsimError(f"damping={damping}: expected in (0, 1], 1 being the plain iteration")

    def propose(k: int, z: Tensor, fz: Tensor, g: Tensor, norm: Tensor) -> Tensor:
        return fz if damping == 1 else torch.add(z, g, alpha=damping)

    return iterate(f, z0, propose, max_steps, tolerance(tol))


@SOLVERS.register
def relaxed(f: Map, z0: Tensor, *, max_steps: int, tol: float | Tolerance, damping: float = 0.5) -> tuple[Tensor, Info]:
    """Averages of z and f(z). Converges where f expands nothing, be it that it only turns; picard does not."""
    return picard(f, z0, max_steps=max_steps, tol=tol, damping=damping)


def solve_spd(A: Any, b: Any) -> Any:
    """x with A x = b for a batch of small symmetric positive definite A: (B, m, m), (B, m) -> (B, m).

    On a GPU Gauss-Jordan without pivoting, which such matrices do not need: `torch.linalg.solve` asks the host whether
    the factorisation failed; this never does, and takes bfloat16. One that did gives nan or infinity either way.
    """
    if not isinstance(A, Tensor):
        try:
            return np.linalg.solve(A, b[:, :, None])[:, :, 0]
        except np.linalg.LinAlgError:  # one of them: torch solves the others all the same
            return torch.linalg.solve_ex(*map(torch.from_numpy, (A, b)), check_errors=False).result.numpy()
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
    tol: float | Tolerance,
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
    check(z0, max_steps)
    if memory < 1 or mixing <= 0 or delay < 0:
        raise KoopsimError(f"memory={memory}, mixing={mixing}, delay={delay}: expected >= 1, > 0, >= 0")
    if ridge is None:
        ridge = 100 * torch.finfo(z0.dtype).eps
    B, m = z0.shape[0], min(memory, max_steps)
    D = math.prod(z0.shape[1:])
    G = numbers(z0.new_empty(B, m, D))  # residuals g_i, each scaled to norm 1
    Z = numbers(z0.new_empty(B, m, D))  # what to average: z_i + mixing g_i
    scale = numbers(z0.new_zeros(B, m))  # 1 / || g_i ||
    gram = numbers(z0.new_zeros(B, m, m))
    newest = numbers(torch.eye(m, dtype=z0.dtype, device=z0.device))
    damp, tiny = ridge * newest, torch.finfo(z0.dtype).tiny
    best = numbers(z0.new_full((B, 1), math.inf))
    stalled = numbers(z0.new_zeros(B, 1))  # evaluations since the best one
    xp: Any = torch if isinstance(best, Tensor) else np

    def propose(k: int, z: Tensor, fz: Tensor, g: Tensor, norm: Tensor) -> Tensor:
        nonlocal best, stalled
        size = numbers(norm)
        stalled, best = (stalled + 1) * (size >= best), xp.minimum(best, size)
        if k < delay:
            return fz
        slot, n = (k - delay) % m, min(k - delay + 1, m)
        inverse = 1 / size.clip(tiny)
        xp.multiply(numbers(g), inverse, out=G[:, slot])
        Z[:, slot] = numbers(fz if mixing == 1 else torch.add(z, g, alpha=mixing))
        scale[:, slot : slot + 1] = inverse
        row = _dots(G[:, :n], G[:, slot])
        gram[:, slot, :n] = row
        gram[:, :n, slot] = row
        if n == 1:
            return _state(Z[:, 0], z)  # the slot will be written again: on a GPU the ledger copies it
        # With a_i = c_i / || g_i || the Gram matrix is that of unit vectors; a is then scaled to sum 1.
        a = solve_spd(gram[:, :n, :n] + damp[:n, :n], scale[:, :n]) * scale[:, :n]
        total = a.sum(1, keepdims=True)  # not positive: singular by rounding, take a plain step
        weights = xp.where((stalled < memory) & (total > 0), a / total, newest[slot, :n])
        return _state(_combine(weights, Z[:, :n]), z)

    return iterate(f, z0, propose, max_steps, tolerance(tol))


@SOLVERS.register
def broyden(f: Map, z0: Tensor, *, max_steps: int, tol: float | Tolerance, memory: int = 30) -> tuple[Tensor, Info]:
    """z <- z - B^-1 g(z), B^-1 = -I + sum_i u_i v_i^T over at most `memory` corrections.

    With s the last step and w = -B^-1 g at the new point, Sherman-Morrison gives the next step and the
    correction without ever touching y = g - g_old, because B^-1 y = s - w:

        t = s.w / s.s      s_next = w / (1 - t)      u = s_next / s.s      v = B^-T s

    A t near 1 means a B near singular; it is then moved off 1 by a fraction theta of the correction
    (More & Trangenstein, Math. Comp. 30, 1976), which leaves B invertible and the method convergent. A full
    memory is emptied: later corrections build on earlier ones, and dropping only the oldest breaks them.
    """
    check(z0, max_steps)
    if memory < 1:
        raise KoopsimError(f"memory={memory}: expected at least 1 correction")
    B, m = z0.shape[0], min(memory, max_steps)
    D = math.prod(z0.shape[1:])
    U, V = (numbers(z0.new_empty(B, m, D)) for _ in range(2))  # a slot is read only once it is written
    tiny = torch.finfo(z0.dtype).tiny
    xp: Any = torch if isinstance(U, Tensor) else np
    previous: list[Any] = []  # the point before this one: freezing may have replaced the step we proposed

    def propose(k: int, z: Tensor, fz: Tensor, g: Tensor, norm: Tensor) -> Tensor:
        here, w = numbers(z), numbers(g)
        if not previous:
            previous.append(here)
            return fz
        s = here - previous[0]
        previous[0] = here
        n = (k - 1) % m  # corrections in use
        if n:
            w = w - _combine(_dots(V[:, :n], w), U[:, :n])
        V[:, n] = _combine(_dots(U[:, :n], s), V[:, :n]) - s if n else -s
        ss, sw = _dots(s[:, None], s), _dots(s[:, None], w)
        longer, share = _lengths(ss, sw, tiny)
        step = w * longer
        xp.multiply(step, share, out=U[:, n])
        return _state(here + step, z)

    return iterate(f, z0, propose, max_steps, tolerance(tol))


def _lengths(ss: Any, sw: Any, tiny: float) -> tuple[Any, Any]:
    """Of s.s and s.w, numbers of the samples: 1 / (1 - theta t), and theta / s.s."""
    xp: Any = torch if isinstance(ss, Tensor) else np
    inverse = xp.where(ss > tiny, 1 / ss, 0)  # no step, no correction
    t = sw * inverse
    gap = 1 - t
    theta = xp.where(abs(gap) < NEAREST, (1 - xp.copysign(NEAREST + 0 * gap, gap)) / t, 1)
    return 1 / (1 - theta * t), theta * inverse


@SOLVERS.register
def newton(f: Map, z0: Tensor, *, max_steps: int, tol: float | Tolerance, krylov: int = 20) -> tuple[Tensor, Info]:
    """z <- z + s with (I - J) s = g(z), J = df/dz: Newton-Krylov, for small states and steep maps.

    The linear system s = J s + g is solved by Anderson with a full memory, which on a linear system is GMRES (Walker &
    Ni, 2011), in at most `krylov` products J s; each is a difference quotient of f, as it is usual (Knoll & Keyes, J.
    Comput. Phys. 193, 2004), so f needs no derivative. A step after which the residual has grown is taken back by half
    from the best point. `steps` counts Newton's, each worth up to krylov + 1 evaluations of f.
    """
    check(z0, max_steps)
    if krylov < 1:
        raise KoopsimError(f"krylov={krylov}: expected at least 1 product")
    shape, root = z0.shape, math.sqrt(torch.finfo(z0.dtype).eps)
    flat = (z0.shape[0], math.prod(z0.shape[1:]))
    kept: list[Tensor] = []  # best point, its || g ||, the step taken there

    def propose(k: int, z: Tensor, fz: Tensor, g: Tensor, norm: Tensor) -> Tensor:
        size = 1 + torch.linalg.vector_norm(z, dim=1, keepdim=True)

        def linear(s: Tensor) -> Tensor:
            h = root * size / torch.linalg.vector_norm(s, dim=1, keepdim=True).clamp_min(torch.finfo(s.dtype).tiny)
            return (evaluated(f, (z + h * s).view(shape)).reshape(flat) - fz) / h + g

        s, _ = anderson(linear, g, max_steps=min(krylov, flat[1] + 2), tol=root, memory=krylov, delay=0)
        if not kept:
            kept.extend((z, norm, s))
            return z + s
        best, least, step = kept
        worse = ~(norm < least)  # true for nan
        kept[:] = torch.where(worse, best, z), torch.fmin(least, norm), torch.where(worse, step / 2, s)
        return kept[0] + kept[2]

    return iterate(f, z0, propose, max_steps, tolerance(tol))


def solver_named(solver: str | Solver) -> Solver:
    """The solver itself, by its name or as it is."""
    if isinstance(solver, str):
        return SOLVERS[solver]
    if not callable(solver):
        raise KoopsimError(f"The solver is a {type(solver).__name__}; expected a name or a function (f, z0, ...).")
    return solver


def name_of(solver: str | Solver) -> str:
    if isinstance(solver, str):
        return solver
    inner = solver.func if isinstance(solver, functools.partial) else solver
    return getattr(inner, "__name__", type(inner).__name__)
