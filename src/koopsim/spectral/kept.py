"""What a verdict needs of a fitted model and its data (`judgement.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .lifted import ENTRIES
from .regression import IN_SPAN
from .trajectories import LiftedPairs

if TYPE_CHECKING:
    from .edmd import EDMD

Array = NDArray[Any]
MOST_ROWS = 20_000  # pairs that are lifted again to be held out
LEAST_ROWS = 8  # that are lifted at a time
DEPENDENT = 1e-10  # of the largest singular value: directions below it are none
CONSTANT = 100 * IN_SPAN  # an observable whose share outside of the constant is less is it


@dataclass(frozen=True)
class Kept:
    """What a model keeps of its data: lifted pairs, states, and the trajectories as they came."""

    now: Array  # phi(X), at most MOST_ROWS
    after: Array
    states: Array
    runs: list[Array] | None  # None for pairs, held inputs and controls


def kept_by(model: EDMD) -> Kept | None:
    """None after partial_fit, which keeps nothing, and with controls."""
    lifted = model._lifted
    if lifted.samples is None or model.n_controls_:
        return None
    X, Y = lifted.samples
    rows = min(MOST_ROWS, max(ENTRIES // lifted.observables, LEAST_ROWS))
    found: list[LiftedPairs] = []
    for block in lifted.blocks(X, Y, lifted.lift, rows):
        found.append(block)
        if sum(len(b.now) for b in found) >= MOST_ROWS:
            break
    columns = (np.concatenate([getattr(b, name) for b in found]) for name in ("now", "after", "states"))
    return Kept(*columns, runs=None if Y or model.n_inputs_ else [run.states for run in X])


def trusted(model: EDMD, trust: float) -> Array:
    """Orthonormal basis of the span of the eigenfunctions with residual <= trust."""
    chosen = model._spectrum[1][:, model.residuals_ <= trust]
    if not chosen.size:
        raise ValueError(f"no eigenpair has a residual <= {trust}; the smallest is {model.residuals_.min():.1e}")
    if not np.iscomplexobj(model.solution_.core):
        chosen = np.hstack([np.real(chosen), np.imag(chosen)])
    U, sigma, _ = np.linalg.svd(chosen, full_matrices=False)
    return U[:, sigma > DEPENDENT * sigma[0]]


def without_constant(model: EDMD) -> Array:
    """psi -> phi in units of its root mean square, without the constant observable and those that are zero."""
    s = model.solution_
    size = np.linalg.norm(s.up, axis=0)
    up = s.up.T[size > 0] / size[size > 0, None]
    assert s.constant is not None
    return up[np.abs(np.abs(up @ s.constant) - 1) > CONSTANT] if model.rank_ > 1 else up[:0]
