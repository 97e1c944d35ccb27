"""From trajectories to pairs (z_l, z_{l+1}), never across two trajectories.

    one trajectory          (m, d) array            rows are consecutive states
    several                 list of (m_i, d)        lengths may differ
    pairs                   tuple (X, Y)            row by row, Y = f(X)      (or `y` of the shape of X)

`inputs` are held fixed along a trajectory, as in (K g)(z, x) = g(f(z, x), x)          paper, eq. (4)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # float64


def layout(X: Any, y: Any = None) -> tuple[str, list[Any]]:
    """('pairs', [X, Y]), ('many', trajectories) or ('one', [X])."""
    if isinstance(X, tuple):
        if len(X) != 2 or np.shape(X[0]) != np.shape(X[1]):
            raise ValueError(f"a tuple means pairs (X, Y) of equal shape; got shapes {[np.shape(x) for x in X]}")
        return "pairs", list(X)
    if isinstance(X, list) and (not X or np.ndim(X[0]) >= 2):
        if not X:
            raise ValueError("the list of trajectories is empty")
        return "many", X
    if y is not None:
        target = np.asarray(y)
        if target.ndim == 2 and target.shape == np.asarray(X).shape:
            return "pairs", [X, target]
        if target.ndim == 2 and target.shape[0] != np.asarray(X).shape[0]:
            raise ValueError(f"pairs (X, Y) must have equal shapes; got {np.asarray(X).shape} and {target.shape}")
    return "one", [X]


def held_inputs(inputs: Any, kind: str, parts: list[Array]) -> list[Array | None]:
    """For each part the inputs, one row per sample; None where there are none."""
    if inputs is None:
        return [None] * len(parts)
    if kind == "many":
        if len(inputs) != len(parts):
            raise ValueError(f"{len(parts)} trajectories need {len(parts)} inputs; got {len(inputs)}")
        return [_rows(u, z, i) for i, (u, z) in enumerate(zip(inputs, parts, strict=True))]
    return [_rows(inputs, parts[0], 0)] * len(parts)


def _rows(u: Any, z: Array, number: int) -> Array:
    u = np.asarray(u, dtype=np.float64)
    if u.ndim <= 1:  # one input for the whole trajectory
        u = np.broadcast_to(np.atleast_1d(u), (z.shape[0], np.size(u)))
    if u.ndim != 2 or u.shape[0] != z.shape[0]:
        raise ValueError(f"inputs of trajectory {number} have shape {u.shape}; give one vector, or {z.shape[0]} rows")
    if not np.all(np.isfinite(u)):
        raise ValueError(f"inputs of trajectory {number} contain NaN or infinity")
    return u


def blocks(
    kind: str, parts: list[Array], inputs: list[Array | None], rows: int
) -> Iterator[tuple[Array, Array, Array]]:
    """(z, [z, x], [z', x]) in pieces of at most `rows` pairs: the state, and what the dictionary sees."""
    if kind == "pairs":
        sources = [(parts[0], parts[1], inputs[0])]
    else:
        sources = [(z[:-1], z[1:], None if u is None else u[:-1]) for z, u in zip(parts, inputs, strict=True)]
        for i, u in enumerate(inputs):
            if u is not None and np.any(u != u[0]):
                raise ValueError(f"inputs of trajectory {i} change along it; hold them fixed, or give pairs")
    pending: list[tuple[Array, ...]] = []
    size = 0
    for now, after, u in sources:
        seen = (now, after) if u is None else (np.hstack([now, u]), np.hstack([after, u]))
        for start in range(0, now.shape[0], rows):
            piece = tuple(part[start : start + rows] for part in (now, *seen))
            pending.append(piece)
            size += piece[0].shape[0]
            if size >= rows:
                yield _stack(pending)
                pending, size = [], 0
    if size:
        yield _stack(pending)


def _stack(pieces: list[tuple[Array, ...]]) -> tuple[Array, Array, Array]:
    a, b, c = pieces[0] if len(pieces) == 1 else (np.concatenate(column) for column in zip(*pieces, strict=True))
    return a, b, c
