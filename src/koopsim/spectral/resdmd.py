"""Residual DMD: which eigenvalues are the system's, and which are the dictionary's.

    res(z, g) = ||K g - z g|| / ||g||,       g in the span of phi                 Colbrook & Townsend 2024
    sigma_eps = { z : min_g res(z, g) <= eps }

EDMD projects K g back onto the dictionary; the residual also counts what falls outside of it, so a small one is a proof
(up to sampling) that z is within res of the spectrum of K, and no eigenvalue need be believed without. In orthonormal
observables psi the minimum is the smallest singular value of psi(Y) - z psi(X).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .trajectories import layout

if TYPE_CHECKING:
    from .edmd import EDMD
    from .regression import Solution

Array = NDArray[Any]
BATCH = 2**22  # numbers in the matrices decomposed at a time


def pseudospectrum(solution: Solution, points: Any) -> Array:
    """min_g res(z, g) at each complex point, in the shape of `points`."""
    z = np.asarray(points, dtype=complex)
    r = len(solution.core)
    R: Any = np.linalg.qr(np.hstack([solution.now, solution.after]), mode="r")  # the same norms in at most 2r rows
    x, y = R[:, :r], R[:, r:]
    flat, found = z.ravel(), np.empty(z.size)
    step = max(1, BATCH // max(1, x.size))
    for i in range(0, flat.size, step):
        stack = y[None] - flat[i : i + step, None, None] * x[None]
        found[i : i + step] = np.linalg.svd(stack, compute_uv=False)[:, -1]
    return found.reshape(z.shape)


def residuals_on(model: EDMD, X: Any, y: Any = None, inputs: Any = None) -> Array:
    """||g(z_{l+1}) - lambda g(z_l)|| / ||g(z_l)|| over the pairs of X (a trajectory, several, or pairs)."""
    kind, parts = layout(X, y)
    if model.n_controls_:
        raise ValueError("residuals on other data need a model without control")
    above, below = np.zeros((2, model.eigenvalues_.size))
    many = list(inputs) if kind == "many" and inputs is not None else [inputs] * len(parts)
    lifted = [model.eigenfunctions(part, u) for part, u in zip(parts, many, strict=True)]
    pairs = [(lifted[0], lifted[1])] if kind == "pairs" else [(g[:-1], g[1:]) for g in lifted]
    for now, after in pairs:
        above += np.sum(np.abs(after - now * model.eigenvalues_) ** 2, axis=0)
        below += np.sum(np.abs(now) ** 2, axis=0)
    return np.sqrt(above / np.where(below > 0, below, 1.0))
