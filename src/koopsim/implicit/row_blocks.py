"""What a splitting does between two affine maps, on a CPU: all of it for one block of rows, then the next.

    z = P(t + c),   w = z or 2 z - t        and, where asked for, || z - z_before ||^2 and || z ||^2

As operations on whole states these are some fifteen passes over what no cache holds. A block stays in one: t, the t
before, c and P are read once, and w is written once. A block is of one tier, and its size depends on the shapes alone,
so that sums are always added in the same order. The readable twin is in `splitting.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from koopsim.implicit.splitting import Projection, Units

NUMBERS = 1 << 18  # of a state in a block: a megabyte in float32


def advance(
    t: Tensor,
    c: Tensor,
    P: Projection,
    tiers: tuple[int, ...],
    reflect: bool,
    end: bool,
    before: Tensor | None,
    units: Units | None,
) -> tuple[Tensor, Tensor | None]:
    """t -> w, or at the `end` -> z: (D, B); with the t of a step earlier also the sums of each tier, (2, tiers, B)."""
    out, sums, start = torch.empty_like(c), [], 0
    for size in tiers or (len(c),):
        parts = []
        for first in range(start, start + size, max(1, NUMBERS // c.shape[1])):
            rows = slice(first, min(first + max(1, NUMBERS // c.shape[1]), start + size))
            offset, keep = c[rows] if units is None else c[rows] * units.c, P.keep[rows]
            z = _projected(t[rows] + offset, keep, P.rectify)
            if before is not None:
                change = _projected(before[rows] + offset, keep, P.rectify).sub_(z)
                parts.append(torch.stack([change.square_().sum(0), z.square().sum(0)]))
            if end:
                out[rows] = z if units is None else z.mul_(units.z)
            else:
                out[rows] = z.mul_(2).sub_(t[rows]) if reflect else z
        if before is not None:
            sums.append(torch.stack(parts).sum(0))
        start += size
    return out, None if before is None else torch.stack(sums, dim=1)


def _projected(v: Tensor, keep: Tensor, rectify: bool) -> Tensor:
    """P(v), written over v."""
    return (v.relu_() if rectify else v).mul_(keep)
