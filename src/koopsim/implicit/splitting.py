"""Operator splitting: the zero of a monotone linear part plus a projection, by iterating one affine map.

    z = P(W z + q),   P the projection onto z >= 0 (forward), or onto the active units (backward)

Both methods alternate an affine map and something cheap:

    v = T y + c,   y <- s(v),   z = P(v)

    forward-backward      T = (1 - a) I + a W                  c = a q           s = P
    Peaceman-Rachford     T = 2 V - I, V = (I + a (I - W))^-1  c = 2 a V q       s = 2 P - I, a reflection

(Ryu & Boyd, 2016, for the methods; Winston & Kolter, NeurIPS 2020, for networks.) With sym(I - W) >= m I the first
converges for a < 2 m / ||I - W||^2, the second for every a > 0. The state is (D, B), a column a sample.

The loop can be captured in a CUDA graph, where it runs all `max_steps` and asks the host nothing. Residuals are
looked at every `check_every` steps only: a look reads the state of a step earlier too.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from koopsim.implicit.solvers import EPS, Info, Map, capturing

CHECK_EVERY = 2


@dataclass(frozen=True)
class Projection:
    """P. Forward: rectify, and keep what is inside the border. Backward: keep the active units, z* > 0."""

    keep: Tensor  # 1 or 0; (D, 1) or (D, B)
    rectify: bool

    def __call__(self, v: Tensor) -> Tensor:
        return (torch.relu(v) if self.rectify else v) * self.keep


def advance(t: Tensor, c: Tensor, P: Projection, reflect: bool, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """v = t + c -> P(v), or 2 P(v) - v; and with `before`, of a step earlier, (2, B): || z - z_before ||^2, || z ||^2.

    On CUDA one kernel (`splitting_kernels.py`); this is its readable twin.
    """
    if t.is_cuda and t.dtype == torch.float32 and find_spec("triton") is not None:
        from koopsim.implicit import splitting_kernels

        return splitting_kernels.advance(t, c, P.keep, P.rectify, reflect, before)
    v = t + c
    z = P(v)
    sums = None if before is None else torch.stack([(z - P(before + c)).square().sum(0), z.square().sum(0)])
    return 2 * z - v if reflect else z, sums


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
    c = c.contiguous()
    t = torch.zeros_like(c) if v0 is None else v0 - c
    B = c.shape[1]
    steps = torch.full((B,), max_steps, dtype=torch.int64, device=c.device)
    residual, seen = c.new_full((B,), torch.inf), torch.zeros(B, dtype=torch.bool, device=c.device)
    may_stop = not capturing()
    y, _ = advance(t, c, P, reflect, None)
    for k in range(1, max_steps + 1):
        before, t = t, T(y)
        last = k == max_steps
        y, sums = advance(t, c, P, reflect and not last, before if last or k % check_every == 0 else None)
        if sums is None:
            continue
        change, size = sums.sqrt().unbind()
        residual = change / (size + EPS)
        below = residual < tol  # false for nan
        steps = torch.where(below & ~seen, k, steps)
        seen = seen | below
        if may_stop and not last and below.all():
            y, _ = advance(t, c, P, False, None)
            break
    return y, Info(steps, residual, residual < tol)
