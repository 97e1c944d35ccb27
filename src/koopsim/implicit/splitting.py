"""Operator splitting: the zero of a monotone linear part plus a projection, by iterating one affine map.

    z = P(W z + q),   P the projection onto z >= 0 (forward), or onto the active units (backward)

Both methods alternate an affine map and something cheap. With c = a q,

    forward-backward      v = T y + c         T = (1 - a) I + a W                    y = P(v)
    Peaceman-Rachford     v = T (y + c) + c   T = 2 V - I, V = (I + a (I - W))^-1    y = 2 P(v) - v, a reflection

and z = P(v). (Ryu & Boyd, 2016, for the methods; Winston & Kolter, NeurIPS 2020, for networks.) With
sym(I - W) >= m I the first converges for a < 2 m / ||I - W||^2, the second for every a > 0. What T is given is called w
below: P(v), or 2 P(v) - v + c = 2 P(v) - t where v = t + c. The state is (D, B), a column a sample; w and t may be kept
in fewer bits than the rest.

The loop can be captured in a CUDA graph, where it runs all `max_steps` and asks the host nothing. Residuals are
looked at every `check_every` steps only: a look reads the state of a step earlier too. A captured loop looks at each of
its last steps, so that the next one can be made no longer than needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from koopsim.implicit.solvers import EPS, Info, Map, capturing

CHECK_EVERY = 2
LAST_LOOKS = 3  # of a captured loop, one step after another


@dataclass(frozen=True)
class Projection:
    """P. Forward: rectify, and keep what is inside the border. Backward: keep the active units, z* > 0."""

    keep: Tensor  # 1 or 0; (D, 1) or (D, B)
    rectify: bool

    def __call__(self, v: Tensor) -> Tensor:
        return (torch.relu(v) if self.rectify else v) * self.keep


def advance(
    t: Tensor, c: Tensor, P: Projection, reflect: bool, dtype: torch.dtype, before: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """v = t + c -> P(v), or 2 P(v) - t, rounded to dtype; with a `before` of t also (2, B): what moved, and the size.

    These are || z - z_before ||^2 and || z ||^2. On CUDA one kernel (`splitting_kernels.py`); this is its readable twin.
    """
    if t.is_cuda and c.dtype == torch.float32 and find_spec("triton") is not None:
        from koopsim.implicit import splitting_kernels

        return splitting_kernels.advance(t, c, P.keep, P.rectify, reflect, dtype, before)
    z = P(t + c)
    sums = None if before is None else torch.stack([(z - P(before + c)).square().sum(0), z.square().sum(0)])
    return (2 * z - t if reflect else z).to(dtype), sums


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
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Info]:
    """(z, how it went) of the iteration above begun at v0, or at v = c, where it would end were W zero: (D, B).

    A sample's residual is || z - z_before || / || z ||. All samples go on until each is below `tol`; a sample's
    `steps`, one T each, are those after which it was first seen to be. T maps states of `dtype`, or of c's.
    """
    c, dtype = c.contiguous(), dtype or c.dtype
    t = torch.zeros_like(c, dtype=dtype) if v0 is None else (v0 - c).to(dtype)
    looks: list[tuple[int, Tensor]] = []  # (step, residuals)
    captured = capturing()
    w, _ = advance(t, c, P, reflect, dtype)
    for k in range(1, max_steps + 1):
        before, t = t, T(w)
        left = max_steps - k
        look = not left or k % check_every == 0 or (captured and left < LAST_LOOKS)
        w, sums = advance(t, c, P, reflect and left > 0, dtype if left else c.dtype, before if look else None)
        if sums is None:
            continue
        change, size = sums.sqrt().unbind()
        looks.append((k, change / (size + EPS)))
        if not captured and left and (looks[-1][1] < tol).all():
            w, _ = advance(t, c, P, False, c.dtype)
            break
    residual = looks[-1][1]
    steps = torch.full_like(residual, max_steps, dtype=torch.int64)
    for k, then in reversed(looks):
        steps = torch.where(then < tol, k, steps)  # false for nan
    return w, Info(steps, residual, residual < tol)
