"""Operator splitting: the zero of a monotone linear part plus a projection, by iterating one affine map.

    z = P(W z + q),   P the projection onto z >= 0 (forward), or onto the active units (backward)

Both methods alternate an affine map and something cheap:

    v = T y + c,   y <- s(v),   z = P(v)

    forward-backward      T = (1 - a) I + a W                  c = a q           s = P
    Peaceman-Rachford     T = 2 V - I, V = (I + a (I - W))^-1  c = 2 a V q       s = 2 P - I, a reflection

(Ryu & Boyd, 2016, for the methods; Winston & Kolter, NeurIPS 2020, for networks.) With sym(I - W) >= m I the first
converges for a < 2 m / ||I - W||^2, the second for every a > 0. The state is (D, B), a column a sample.

The loop can be captured in a CUDA graph, where it runs all `max_steps` and asks the host nothing. Residuals are
looked at every `check_every` steps only: a look reads the state three times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from koopsim.implicit.solvers import EPS, Info, Map, capturing

CHECK_EVERY = 2
FUSED = True  # on CUDA let torch.compile make one kernel of each of the three small functions below


def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or on CUDA its compiled form."""
    compiled = functools.cache(lambda: torch.compile(function))

    @functools.wraps(function)
    def call(t: Tensor, *others: Any) -> Any:
        return (compiled() if FUSED and t.is_cuda else function)(t, *others)

    return call


@_fused
def _project(t: Tensor, c: Tensor, keep: Tensor, rectify: bool) -> Tensor:
    v = t + c
    return (torch.relu(v) if rectify else v) * keep


@_fused
def _reflect(t: Tensor, c: Tensor, keep: Tensor, rectify: bool) -> Tensor:
    v = t + c
    return 2 * ((torch.relu(v) if rectify else v) * keep) - v


@_fused
def _change(t: Tensor, before: Tensor, c: Tensor, keep: Tensor, rectify: bool) -> tuple[Tensor, Tensor]:
    """|| z - z_before || and || z ||, a number a sample."""
    z, old = t + c, before + c
    if rectify:
        z, old = torch.relu(z), torch.relu(old)
    return ((z - old) * keep).square().sum(0).sqrt(), (z * keep).square().sum(0).sqrt()


@dataclass(frozen=True)
class Projection:
    """P. Forward: rectify, and keep what is inside the border. Backward: keep the active units, z* > 0."""

    keep: Tensor  # 1 or 0; (D, 1) or (D, B)
    rectify: bool


@torch.no_grad()
def split(
    T: Map,
    c: Tensor,
    P: Projection,
    reflect: bool,
    *,
    max_steps: int,
    tol: float,
    check_every: int = CHECK_EVERY,
    v0: Tensor | None = None,
) -> tuple[Tensor, Info]:
    """(z, how it went) after v <- T s(v) + c from v0 (or from y = 0, whose v is c): (D, B).

    A sample's residual is || z - z_before || / || z ||. All samples go on until each is below `tol`; a sample's
    `steps` are those after which it was first seen to be.
    """
    s = _reflect if reflect else _project
    t = torch.zeros_like(c) if v0 is None else v0 - c
    B = c.shape[1]
    steps = torch.full((B,), max_steps, dtype=torch.int64, device=c.device)
    residual, seen = c.new_full((B,), torch.inf), torch.zeros(B, dtype=torch.bool, device=c.device)
    may_stop = not capturing()
    for k in range(1, max_steps + 1):
        before, t = t, T(s(t, c, P.keep, P.rectify))
        if k % check_every and k < max_steps:
            continue
        change, size = _change(t, before, c, P.keep, P.rectify)
        residual = change / (size + EPS)
        below = residual < tol  # false for nan
        steps = torch.where(below & ~seen, k, steps)
        seen = seen | below
        if may_stop and below.all():
            break
    return _project(t, c, P.keep, P.rectify), Info(steps, residual, residual < tol)
