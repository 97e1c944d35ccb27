"""A partition of the state space into boxes, each holding its share of the samples.

    B_i = [e_{i}, e_{i+1}) in each coordinate,  e = quantiles of the samples

Quantiles put small boxes where states are often, so that a density with a pole (the logistic map's at 0 and 1) is
resolved as well as a flat one. Only boxes that hold a sample are ever stored: memory is that of the data, whatever the
dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ATOM = 2.0**-13  # half the width, relative, of a box around a value that many samples share exactly
LARGEST_GRID = 2**62
GAP = 0.5  # a box is cut where more than this share of its width holds no sample,
ENOUGH = 16  # if so many samples say so,
MARGIN = 0.01  # and this share of the gap away from the samples on either side


@dataclass(frozen=True)
class Boxes:
    """`edges`: increasing numbers, one array a coordinate. A box has one number, its place in the grid, row by row."""

    edges: tuple[Array, ...]

    def __post_init__(self) -> None:
        for j, e in enumerate(self.edges):
            if e.ndim != 1 or len(e) < 2 or not np.all(np.isfinite(e)) or not np.all(np.diff(e) > 0):
                raise ValueError(f"the edges of coordinate {j} must be two or more finite, increasing numbers")
        if float(np.prod([float(n) for n in self.sides])) >= LARGEST_GRID:
            raise ValueError(f"a grid of {self.sides} boxes has no number for each; use fewer a side, or fewer dims")

    @property
    def dims(self) -> int:
        return len(self.edges)

    @property
    def sides(self) -> tuple[int, ...]:
        """How many boxes there are along each coordinate."""
        return tuple(len(e) - 1 for e in self.edges)

    def number(self, Z: Array) -> NDArray[np.int64]:
        """The number of the box that each row of Z is in, -1 outside. The last edge belongs to the last box."""
        out, inside = np.zeros(len(Z), dtype=np.int64), np.ones(len(Z), dtype=bool)
        for e, z in zip(self.edges, Z.T, strict=True):
            place = np.searchsorted(e, z, side="right") - 1
            place[z == e[-1]] = len(e) - 2
            inside &= (z >= e[0]) & (z <= e[-1])
            out = out * (len(e) - 1) + place
        return np.where(inside, out, -1)

    def bounds(self, numbers: Array) -> tuple[Array, Array]:
        """(lower corners, upper corners) of boxes, a row each."""
        places = np.unravel_index(np.asarray(numbers, dtype=np.int64), self.sides)
        low = np.stack([e[i] for e, i in zip(self.edges, places, strict=True)], axis=1)
        return low, np.stack([e[i + 1] for e, i in zip(self.edges, places, strict=True)], axis=1)

    def volumes(self, numbers: Array) -> Array:
        low, high = self.bounds(numbers)
        return np.prod(high - low, axis=1)


def boxes_of(Z: Array, sides: int | Sequence[Array], domain: Any = None) -> Boxes:
    """`sides` boxes a coordinate with edges at the quantiles of Z, or boxes with the edges given.

    domain  (low, high), numbers or one a coordinate; None: as far as the samples go
    """
    d = Z.shape[1]
    if not isinstance(sides, (int, np.integer)):
        edges = [np.asarray(e, dtype=np.float64) for e in sides]
        edges = [np.asarray(sides, dtype=np.float64)] if d == 1 and edges and edges[0].ndim == 0 else edges
        if len(edges) != d:
            raise ValueError(f"edges for {len(edges)} coordinates were given; the states have {d}")
        return Boxes(tuple(edges))
    if sides < 1:
        raise ValueError(f"boxes={sides}; need at least 1 a coordinate")
    low, high = (Z.min(axis=0), Z.max(axis=0)) if domain is None else _corners(domain, d)
    flat = np.flatnonzero(~(high > low))
    if flat.size:
        raise ValueError(f"coordinate {flat[0]} is constant ({low[flat[0]]:.6g}); leave it out, or give domain=")
    return Boxes(tuple(_quantiles(Z[:, j], int(sides), float(low[j]), float(high[j])) for j in range(d)))


def _corners(domain: Any, d: int) -> tuple[Array, Array]:
    if np.shape(domain)[:1] != (2,):
        raise ValueError(f"domain is (low, high); got {domain!r}")
    low, high = (np.broadcast_to(np.asarray(c, dtype=np.float64), (d,)) for c in domain)
    return low, high


def _quantiles(z: Array, n: int, low: float, high: float) -> Array:
    """n + 1 edges; a value that holds several quantiles at once (an atom) gets a narrow box around itself."""
    inside = np.sort(z[(z >= low) & (z <= high)])
    if not inside.size:
        raise ValueError(f"no state lies in the domain [{low:.6g}, {high:.6g}]")
    inner = np.quantile(inside, np.linspace(0, 1, n + 1)[1:-1])
    value, times = np.unique(np.concatenate([inside[:1], inner, inside[-1:]]), return_counts=True)
    width = ATOM * (high - low)
    for v in value[times > 1]:
        inner = np.concatenate([inner[np.abs(inner - v) > width], [v - width, v + width]])
    inner = inner[(inner > low) & (inner < high)]
    return _without_gaps(np.unique(np.concatenate([[low], inner, [high]])), inside)


def _without_gaps(edges: Array, inside: Array) -> Array:
    """Boxes that bridge an empty stretch are cut on both sides of it: two wells must not share a box."""
    a, b = inside[:-1], inside[1:]
    box = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, len(edges) - 2)
    width, held = np.diff(edges), np.bincount(box, minlength=len(edges) - 1)
    wide = np.zeros(len(a), dtype=bool)
    for k in (box[:-1], box[1:]):  # what of the gap lies in the box to its left, and in the one to its right
        part = np.minimum(b, edges[k + 1]) - np.maximum(a, edges[k])
        wide |= (part > GAP * width[k]) & (held[k] >= ENOUGH)
    margin = MARGIN * (b - a)[wide]
    return np.unique(np.concatenate([edges, a[wide] + margin, b[wide] - margin]))
