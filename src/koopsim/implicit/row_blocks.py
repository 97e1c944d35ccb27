"""What a splitting does between two affine maps, on a CPU: all of it for one block of rows, then the next.

    z = P(t + c),   w = z or 2 z - t        and, where asked for, || z - z_before ||^2 and || z ||^2

As operations on whole states these are some fifteen passes over what no cache holds. A block stays in one: t, the t
before, c and P are read once, and w is written once. A block is of one tier, and its size depends on the shapes alone,
so that sums are always added in the same order. The readable twin is in `splitting.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from koopsim.implicit.splitting import Projection, Units

NUMBERS = 1 << 18  # of a state in a block: a megabyte in float32


@dataclass(frozen=True, eq=False)
class InBlocks:
    """t -> w, or at the `end` -> z: (D, B); with the t of a step earlier also the sums of each tier, (2, tiers, B)."""

    P: Projection
    tiers: tuple[int, ...]  # rows of each; none: the state is one
    reflect: bool
    end: bool
    units: Units | None

    def __call__(self, t: Tensor, c: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
        out, sums, start = torch.empty_like(c), [], 0
        step = max(1, NUMBERS // c.shape[1])
        for size in self.tiers or (len(c),):
            end = start + size
            blocks = [slice(first, min(first + step, end)) for first in range(start, end, step)]
            parts = [self._block(rows, t, c, before, out) for rows in blocks]
            if before is not None:
                sums.append(torch.stack(parts).sum(0))
            start = end
        return out, None if before is None else torch.stack(sums, dim=1)

    def _block(self, rows: slice, t: Tensor, c: Tensor, before: Tensor | None, out: Tensor) -> Tensor:
        """Written to `out`; its sums, (2, B), or without a look nothing."""
        P, units, sums = self.P, self.units, out[:0]
        t, offset, keep = t[rows], c[rows] if units is None else c[rows] * units.c, P.keep[rows]
        z = _projected(t + offset, keep, P.rectify)
        if before is not None:
            change = _projected(before[rows] + offset, keep, P.rectify).sub_(z)
            sums = torch.stack([change.square_().sum(0), z.square().sum(0)])
        if self.end:
            out[rows] = z if units is None else z.mul_(units.z)
        else:
            out[rows] = z.mul_(2).sub_(t) if self.reflect else z
        return sums


def _projected(v: Tensor, keep: Tensor, rectify: bool) -> Tensor:
    """P(v), written over v."""
    return (v.relu_() if rectify else v).mul_(keep)
