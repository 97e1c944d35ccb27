"""Operator splitting: the zero of a monotone linear part plus a projection, by iterating one affine map.

    z = P(W z + q),   P the projection onto z >= 0 (forward), or onto the active units (backward)

Both methods alternate an affine map and something cheap. With c = a q,

    forward-backward      v = T y + c         T = (1 - a) I + a W                    y = P(v)
    Peaceman-Rachford     v = T (y + c) + c   T = 2 V - I, V = (I + a (I - W))^-1    y = 2 P(v) - v, a reflection

and z = P(v). (Ryu & Boyd, 2016, for the methods; Winston & Kolter, NeurIPS 2020, for networks.) With
sym(I - W) >= m I the first converges for a < 2 m / ||I - W||^2, the second for every a > 0. What T is given is called w
below: P(v), or 2 P(v) - v + c = 2 P(v) - t where v = t + c. The state is (D, B), a column a sample; T has a say in how
its w and t are stored (`Storage`).

The loop can be captured in a CUDA graph, where it runs all `max_steps` and asks the host nothing. Residuals are
looked at every `check_every` steps only: a look reads the state of a step earlier too. A captured loop looks at each of
its last steps, so that the next one can be made no longer than needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from koopsim.implicit import row_blocks
from koopsim.implicit.circular import pair
from koopsim.implicit.info import Info, capturing
from koopsim.implicit.iteration import EPS, Map
from koopsim.nn.transforms import on_cpu

CHECK_EVERY = 2
LAST_LOOKS = 3  # of a captured loop, one step after another


@dataclass(frozen=True, eq=False)
class Projection:
    """P. Forward: rectify, and keep what is inside the border. Backward: keep the active units, z* > 0."""

    keep: Tensor  # 1 or 0; (D, 1) or (D, B)
    rectify: bool

    def __call__(self, v: Tensor) -> Tensor:
        return (torch.relu(v) if self.rectify else v) * self.keep


@dataclass(frozen=True, eq=False)
class Places:
    """Which of the stored `rows` a state has: row i is at index[i]; if paired both halves are stored alike.

    Behind these `index` names the rows to be kept at zero. Whatever it does not name is T's own to write.
    """

    rows: int
    index: Tensor
    in_order: bool = False  # 0, 1, 2, ...: need not be looked up


@dataclass(frozen=True)
class Storage:
    """How the states that T maps are kept: rounded, `paired` (`circular.py`) or as pixels, each row in its place."""

    dtype: torch.dtype
    paired: bool = False
    w: Places | None = None  # of what T is given; without places a state has the rows it has
    t: Places | None = None  # of what T finds
    tiers: tuple[int, ...] = ()  # rows of each tier, whose residuals are taken one by one; none: the state is one

    def plain(self, like: Tensor) -> bool:
        """Whether a state is kept as it is."""
        return not self.paired and self.w is None and self.t is None and self.dtype == like.dtype

    def put(self, state: Tensor, places: Places | None) -> Tensor:
        """(D, B) -> (rows, B)"""
        state = (pair(state) if self.paired else state).to(self.dtype)
        if places is None:
            return state
        parts = state.unflatten(0, (1 + self.paired, -1))
        kept = state.new_zeros(1 + self.paired, places.rows // (1 + self.paired), state.shape[1])
        kept[:, places.index[: parts.shape[1]]] = parts
        return kept.flatten(0, 1)

    def get(self, kept: Tensor, places: Places | None, like: Tensor) -> Tensor:
        """The inverse of `put`, as large and as precise as `like`."""
        if places is not None:
            own = places.index[: len(like) // (1 + self.paired)]
            kept = kept.unflatten(0, (1 + self.paired, -1))[:, own].flatten(0, 1)
        return pair(kept.to(like.dtype)) if self.paired else kept.to(like.dtype)


@dataclass(frozen=True, eq=False)
class Units:
    """Of each sample, (B,): what multiplies c as it is read, and z as it leaves. Saves passes over both."""

    c: Tensor
    z: Tensor


@dataclass(frozen=True, eq=False)
class Until:
    """When a solve ends: all samples below `tol`, which is looked at every so many steps, or `max_steps`."""

    max_steps: int
    tol: float
    check_every: int = CHECK_EVERY


@dataclass(frozen=True, eq=False)
class Sweep:
    """How a solve goes: by reflections or by projections, until when, its states kept how and in which units."""

    reflect: bool
    until: Until
    storage: Storage | None = None
    units: Units | None = None


def advance(
    t: Tensor,
    c: Tensor,
    P: Projection,
    storage: Storage,
    reflect: bool,
    end: bool,
    before: Tensor | None = None,
    units: Units | None = None,
) -> tuple[Tensor, Tensor | None]:
    """t -> w, both as stored, or at the `end` -> z; with the t of a step earlier also what moved, and the size.

    These are || z - z_before ||^2 and || z ||^2 of each tier, (2, tiers, B), of z before it leaves. On CUDA it is one
    kernel (`kernels/splitting.py`), on a CPU it is done in blocks (`row_blocks.py`); this is the twin of both.
    """
    if t.is_cuda and c.dtype == torch.float32 and find_spec("triton") is not None:
        from koopsim.implicit.kernels import splitting as splitting_kernels

        return splitting_kernels.advance(t, c, P, storage, reflect, end, before, units)
    if c.numel() > row_blocks.NUMBERS and storage.plain(c) and on_cpu(t):
        return row_blocks.InBlocks(P, storage.tiers, reflect, end, units)(t, c, before)
    c = c if units is None else c * units.c
    t = storage.get(t, storage.t, c)
    z, sums = P(t + c), None
    if before is not None:
        squares = torch.stack([z - P(storage.get(before, storage.t, c) + c), z]).square()
        sums = torch.stack([part.sum(1) for part in squares.split(storage.tiers or (len(c),), dim=1)], dim=1)
    if end:
        return z if units is None else z * units.z, sums
    return storage.put(2 * z - t if reflect else z, storage.w), sums


@torch.no_grad()
def split(T: Map, c: Tensor, P: Projection, sweep: Sweep, v0: Tensor | None = None) -> tuple[Tensor, Info]:
    """(z, how it went) of the iteration above begun at v0, or at v = c, where it would end were W zero: (D, B).

    A sample's residual is || z - z_before || / || z ||, or the sum of those of its tiers: the last one, from which the
    answer is read, may be a hundredth of the first. All samples go on until each is below `tol`; a sample's `steps`,
    one T each, are those after which it was first seen to be. T maps states as stored; no w is used again, so it may
    write to what it is given. With `units` c is still to be multiplied, v0 is not.
    """
    reflect, until, units = sweep.reflect, sweep.until, sweep.units
    c, storage = c.contiguous(), sweep.storage or Storage(c.dtype)
    rows = storage.t.rows if storage.t else len(c)
    if v0 is None:
        t = c.new_zeros(rows, c.shape[1], dtype=storage.dtype)
    else:
        t = storage.put(v0 - (c if units is None else c * units.c), storage.t)
    looked: list[int] = []
    looks: list[Tensor] = []
    captured = capturing()
    w, _ = advance(t, c, P, storage, reflect, end=False, units=units)
    for k in range(1, until.max_steps + 1):
        before, t = t, T(w)
        left = until.max_steps - k
        look = not left or k % until.check_every == 0 or (captured and left < LAST_LOOKS)
        w, sums = advance(t, c, P, storage, reflect, end=not left, before=before if look else None, units=units)
        if sums is None:
            continue
        looked.append(k)
        looks.append(sums)
        if not captured and left and (_residuals(sums) < until.tol).all():
            w, _ = advance(t, c, P, storage, reflect, end=True, units=units)
            break
    residuals = _residuals(torch.stack(looks, dim=1))
    below = residuals < until.tol  # false for nan
    steps = torch.full_like(residuals[-1], until.max_steps, dtype=torch.int64)
    for k, then in reversed(list(zip(looked, below.unbind(), strict=True))):
        steps = torch.where(then, k, steps)
    return w, Info(steps, residuals[-1], below[-1])


def _residuals(sums: Tensor) -> Tensor:
    """(2, ..., tiers, B) -> (..., B)"""
    change, size = sums.sqrt().unbind()
    return (change / (size + EPS)).sum(-2)
