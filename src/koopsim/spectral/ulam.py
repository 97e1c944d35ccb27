"""Ulam's method: the Perron-Frobenius operator on densities that are constant in each box.

    P_ij = |B_i  and  f^-1(B_j)| / |B_i|          the share of box i that goes to box j        Ulam 1960; Li 1976

From samples (z, z') it is the share of the samples of box i whose next state is in box j, a sparse matrix, which is
EDMD with the indicator functions of the boxes: Koopman's matrix acts on values from the left, Perron-Frobenius' on
masses from the right (pi P). Counting samples estimates P_ij to 1 / sqrt(samples in the box). In one dimension a map
does better: each sample stands for its cell, the states of the box that are nearer to it than to any other, and
weighing by the cells' lengths is a quadrature whose error falls like 1 / samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix

from koopsim.files.masks import unmasked

from .boxes import Boxes
from .markov import Sparse, scaled_rows
from .trajectories import layout

Array = NDArray[Any]
Weights = Literal["cells", "counts"]
NARROWEST = 1e-12  # of a box: no cell is less, so that none is lost


@dataclass(frozen=True)
class Transitions:
    """The chain on the boxes that matter: `matrix[i, j]` from box numbers[i] to box numbers[j], row-stochastic."""

    boxes: Boxes
    numbers: NDArray[np.int64]
    matrix: Any
    samples: NDArray[np.int64]  # pairs that begin in each box
    lost: float  # share of the pairs that left the domain, or ended where nothing was seen to begin


def pairs_of(trajectories: Any) -> tuple[Array, Array]:
    """(Z, Z') row by row, none across two trajectories; a plain array of numbers is one trajectory in one dimension."""
    if isinstance(trajectories, np.ndarray) and trajectories.ndim == 1:
        trajectories = trajectories[:, None]
    kind, parts = layout(trajectories)
    arrays = []
    for part in parts:
        z = np.asarray(unmasked(part))
        if np.iscomplexobj(z):
            raise ValueError("densities are of real states; stack real and imaginary parts side by side")
        z = z.astype(np.float64)[:, None] if z.ndim == 1 else z.astype(np.float64)
        if z.ndim != 2 or z.shape[1] < 1:
            raise ValueError(f"a trajectory is (steps, dims); got shape {z.shape}")
        if not np.all(np.isfinite(z)):
            raise ValueError("the states contain NaN, infinity or masked values; cut the trajectories before that")
        arrays.append(z)
    if len({z.shape[1] for z in arrays}) > 1:
        raise ValueError(f"the trajectories have different dimensions: {sorted({z.shape[1] for z in arrays})}")
    if kind == "pairs":
        now, after = arrays
    else:
        now, after = (np.concatenate([z[s] for z in arrays]) for s in (slice(None, -1), slice(1, None)))
    if len(now) < 2:
        raise ValueError(f"{len(now)} pairs of states are too few; give a trajectory of three steps or more")
    return now, after


def transitions(Z: Array, after: Array, boxes: Boxes, weights: Weights = "counts") -> Transitions:
    """Ulam's matrix from pairs. Boxes from which nothing is seen to go on are left out, again and again."""
    start, end = boxes.number(Z), boxes.number(after)
    inside = (start >= 0) & (end >= 0)
    if not inside.any():
        raise ValueError("no pair of states lies in the domain")
    numbers, place = np.unique(np.concatenate([start[inside], end[inside]]), return_inverse=True)
    i, j = np.split(place, 2)
    w = np.ones(len(i)) if weights == "counts" else cells(Z[inside, 0], start[inside], boxes.edges[0])
    n = len(numbers)
    flow = csr_matrix(coo_matrix((w, (i, j)), shape=(n, n)))
    kept, flow = going_on(flow)
    alive = np.zeros(n, dtype=bool)
    alive[kept] = True
    samples = np.bincount(i, minlength=n)[kept]
    lost = 1.0 - float(np.sum(alive[i] & alive[j])) / len(Z)
    return Transitions(boxes, numbers[kept], scaled_rows(flow), samples, lost)


def going_on(flow: Sparse) -> tuple[NDArray[np.intp], Sparse]:
    """(the boxes from which the flow goes on for ever, the flow among them)."""
    kept = np.arange(len(flow.indptr) - 1)
    while (dead := np.diff(flow.indptr) == 0).any():
        kept, flow = kept[~dead], csr_matrix(flow[~dead][:, ~dead])
    if not kept.size:
        raise ValueError("no box is ever come back to; use fewer boxes, or longer trajectories")
    return kept, flow


def cells(z: Array, box: Array, edges: Array) -> Array:
    """The length of each sample's cell: what of its box is nearer to it than to its neighbours in the box."""
    order = np.argsort(z, kind="stable")
    z, box = z[order], box[order]
    left, right = edges[box].copy(), edges[box + 1].copy()
    middle, same = (z[1:] + z[:-1]) / 2, box[1:] == box[:-1]
    left[1:][same] = middle[same]
    right[:-1][same] = middle[same]
    out = np.empty(len(z))
    out[order] = np.maximum(right - left, NARROWEST * (edges[box + 1] - edges[box]))
    return out


def is_a_map(Z: Array, after: Array) -> bool:
    """Whether neighbours go to neighbours, so that the samples of one dimension tell a map and not a noise.

    The median jump of z' between samples that are next to each other in z is O(1 / m) for a map with finitely many
    branches, and of the size of the noise otherwise: 1 / sqrt(m) is between the two.
    """
    if Z.shape[1] != 1:
        return False
    y = after[np.argsort(Z[:, 0], kind="stable"), 0]
    reach = float(y.max() - y.min())
    return reach > 0 and float(np.median(np.abs(np.diff(y)))) < reach / np.sqrt(len(y))
