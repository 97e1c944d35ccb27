"""From trajectories to pairs (z_l, z_{l+1}), never across two trajectories.

    one trajectory          (m, d) array            rows are consecutive states
    several                 list of (m_i, d)        lengths may differ
    pairs                   tuple (X, Y)            row by row, Y = f(X)      (or `y` of the shape of X)

`inputs` are held fixed along a trajectory, as in (K g)(z, x) = g(f(z, x), x)          paper, eq. (4)
`control` changes along it: u_l acts between z_l and z_{l+1}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koopsim.files.masks import unmasked

from .delays import windows

Array = NDArray[Any]  # float64 or complex128


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
        target = np.asarray(unmasked(y))
        if target.ndim == 2 and target.shape == np.asarray(X).shape:
            return "pairs", [X, target]
        if target.ndim == 2 and len(target) != np.asarray(X).shape[0]:
            raise ValueError(f"pairs (X, Y) must have equal shapes; got {np.asarray(X).shape} and {target.shape}")
        if np.iscomplexobj(target):
            raise ValueError(f"Complex data not supported in a target y; got shape {target.shape}, pairs have X's")
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
    u = np.asarray(unmasked(u), dtype=np.float64)
    if u.ndim <= 1:  # one input for the whole trajectory
        u = np.broadcast_to(np.atleast_1d(u), (len(z), np.size(u)))
    if u.ndim != 2 or len(u) != len(z):
        raise ValueError(f"inputs of trajectory {number} have shape {u.shape}; give one vector, or {len(z)} rows")
    if not np.all(np.isfinite(u)):
        raise ValueError(f"inputs of trajectory {number} contain NaN, infinity or masked values")
    return u


def controls(control: Any, kind: str, parts: list[Array]) -> list[Array | None]:
    """For each part the control, one row a step (the row of a last sample, where there is one, acts on nothing)."""
    if control is None:
        return [None] * len(parts)
    many = kind == "many"
    if many and len(control) != len(parts):
        raise ValueError(f"{len(parts)} trajectories need {len(parts)} controls; got {len(control)}")
    found: list[Array | None] = []
    for i, (u, z) in enumerate(zip(control if many else [control] * len(parts), parts, strict=True)):
        u = np.asarray(unmasked(u))
        u = (u[:, None] if u.ndim == 1 else u).astype(np.result_type(u, np.float64), copy=False)
        steps = len(z) - (kind != "pairs")
        if u.ndim != 2 or len(u) not in (steps, len(z)):
            raise ValueError(
                f"control {i} has shape {u.shape}; {len(z)} samples need {steps} rows of control, one a step"
            )
        if not np.all(np.isfinite(u)):
            raise ValueError(f"control {i} contains NaN, infinity or masked values")
        found.append(u[:steps])
    return found


@dataclass(frozen=True)
class Stretch:
    """Consecutive samples: states, what the dictionary sees of them, and the control of each step."""

    states: Array  # (n, d)
    seen: Array  # (n, d' + inputs)
    control: Array | None  # (n - 1, p); (n, p) for pairs


def stretches(parts: list[Array], held: list[Array | None], control: list[Array | None], past: Any) -> list[Stretch]:
    """Each trajectory as it is, or with its past where `past` (a Delays) is given."""
    found = []
    history = 0 if past is None else past.history
    for i, (z, u, c) in enumerate(zip(parts, held, control, strict=True)):
        if u is not None and np.any(u != u[0]):
            raise ValueError(f"inputs of trajectory {i} change along it; hold them fixed, or give pairs")
        if len(z) < history + 2:
            raise ValueError(f"trajectory {i} has {len(z)} samples; with {history} of past it needs {history + 2}")
        states = z[history:]
        seen = states if past is None else windows(z, history, int(past.stride))
        seen = seen if u is None else np.hstack([seen, u[history:]])
        found.append(Stretch(states, seen, None if c is None else c[history:]))
    return found


@dataclass(frozen=True)
class LiftedPairs:
    """Pairs, lifted: phi(z_l), phi(z_{l+1}), z_l, u_l."""

    now: Array
    after: Array
    states: Array
    control: Array | None


def lifted_pairs(X: Stretch, Y: Array, lift: Callable[[Array], Array], rows: int) -> Iterator[LiftedPairs]:
    """Blocks of at most `rows` from pairs."""
    for i in range(0, len(X.states), rows):
        cut = slice(i, i + rows)
        control = None if X.control is None else X.control[cut]
        yield LiftedPairs(lift(X.seen[cut]), lift(Y[cut]), X.states[cut], control)


def lifted_runs(runs: list[Stretch], lift: Callable[[Array], Array], rows: int) -> Iterator[LiftedPairs]:
    """Blocks of about `rows` from trajectories; each sample is lifted once."""
    batch: list[Stretch] = []
    size = 0
    for run in runs:
        n = len(run.states)
        for i in range(0, n - 1, rows):
            cut = slice(i, min(i + rows + 1, n))
            batch.append(
                Stretch(run.states[cut], run.seen[cut], None if run.control is None else run.control[i : i + rows])
            )
            size += len(batch[-1].states)
            if size >= rows:
                yield _block(batch, lift)
                batch, size = [], 0
    if batch:
        yield _block(batch, lift)


def _block(batch: list[Stretch], lift: Callable[[Array], Array]) -> LiftedPairs:
    if len(batch) == 1:
        (run,) = batch
        phi = lift(run.seen)
        return LiftedPairs(phi[:-1], phi[1:], run.states[:-1], run.control)
    phi = lift(np.concatenate([run.seen for run in batch]))
    ends = np.cumsum([len(run.states) for run in batch])
    now, after = np.ones((2, len(phi)), dtype=bool)
    now[ends - 1] = False
    after[np.r_[0, ends[:-1]]] = False
    control = None if batch[0].control is None else np.concatenate([np.asarray(run.control) for run in batch])
    return LiftedPairs(phi[now], phi[after], np.concatenate([run.states[:-1] for run in batch]), control)
