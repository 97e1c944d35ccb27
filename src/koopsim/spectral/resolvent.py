"""How far a matrix is from having an eigenvalue on a circle.

    sigma_min(A - z I) > delta  for all |z| = r
        =>  every A0 with ||A0 - A|| <= delta has as many eigenvalues inside |z| = r as A has

This is the one fact behind every certain answer of `verdict.py` (Trefethen & Embree, *Spectra and
Pseudospectra*, ch. 2). From points to arcs: with R = (A - z I)^-1 and |z' - z| <= h,

    ||(A - z' I)^-1|| <= (||R|| + h ||R^2|| + ... + h^7 ||R^8||) / (1 - h^8 ||R^8||),

so an arc is clear as soon as this is below 1 / delta; arcs that are not are halved. Large matrices make do
with sigma_min(A - z' I) >= sigma_min(A - z I) - h, which needs triangular solves only: A is given in its
complex Schur form T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack as _lapack

Complex = NDArray[Any]  # complex128; NumPy's stubs lose track of it
LAPACK: Any = _lapack  # built at import: no stubs

DENSE = 48  # up to this order an SVD of the whole stack is cheaper than inverse iteration
BUDGET = 4000  # evaluations of sigma_min for one circle, small matrices
BUDGET_LARGE = 1500  # large ones
ALLOWANCE = 4000  # large ones, for all circles of one matrix together: seconds at 500 x 500
CROWDED = 20.0  # out of budget, a large matrix must clear the level by this factor instead


@dataclass
class Allowance:
    """What is left to spend on the circles of one large matrix. Spent, no more of them are called clear."""

    left: int = ALLOWANCE


def smallest_singular_values(T: Complex, z: Complex) -> NDArray[Any]:
    """sigma_min(T - z I) for each z, T upper triangular."""
    n = T.shape[0]
    if n <= DENSE:
        shifted = T[None] - z[:, None, None] * np.eye(n)
        return np.linalg.svd(shifted, compute_uv=False)[:, -1]
    return np.array([_inverse_iteration(T, zi) for zi in z])


def _inverse_iteration(T: Complex, z: complex, steps: int = 12) -> float:
    n = T.shape[0]
    shifted = np.array(T, order="F")
    shifted[np.diag_indices(n)] -= z
    x = np.exp(1j * np.arange(n) ** 2) / np.sqrt(n)  # any start that is orthogonal to nothing in particular
    growth = 0.0
    for _ in range(steps):
        x, info = LAPACK.ztrtrs(shifted, x, trans=2)
        y, info2 = LAPACK.ztrtrs(shifted, x)
        size = np.linalg.norm(y)
        if info or info2 or not np.isfinite(size) or size == 0.0:
            return 0.0
        before, growth = growth, float(np.sqrt(size))
        x = y / size
        if abs(growth - before) <= 1e-2 * growth:
            break
    return 1.0 / growth


def clear_of_circle(
    T: Complex, radius: float, level: float, *, half: bool = False, allowance: Allowance | None = None
) -> bool:
    """Whether sigma_min(T - z I) > level all along |z| = radius; `half`: the spectrum is symmetric."""
    allowance = allowance or Allowance()
    arc = np.pi if half else 2 * np.pi
    moduli, angles = np.abs(np.diag(T)), np.angle(np.diag(T))
    if T.shape[0] <= 1:
        return bool(np.all(np.abs(moduli - radius) > level))
    dense = T.shape[0] <= DENSE
    near = np.argsort(np.abs(moduli - radius))[: 8 if dense else 32]
    probes = radius * np.exp(1j * np.r_[0.0, np.pi, angles[near]])  # where it fails if it fails: look here first
    if smallest_singular_values(T, probes).min() <= level:
        return False
    pieces = 16
    h = np.full(pieces, arc / pieces / 2)
    mid = (2 * np.arange(pieces) + 1) * arc / pieces / 2
    spent, lowest = 0, np.inf
    while mid.size:
        spent += mid.size
        if not dense:
            allowance.left -= mid.size
            if allowance.left < 0:
                return False
        if spent > (BUDGET if dense else BUDGET_LARGE) or h[0] < 1e-15:
            return not dense and lowest > CROWDED * level
        z = radius * np.exp(1j * mid)
        if dense:
            clear = _arcs_clear(T, z, radius * h, level)
            hit = np.any(smallest_singular_values(T, z[~clear]) <= level)
        else:
            f = smallest_singular_values(T, z)
            lowest = min(lowest, float(f.min()))
            clear, hit = f - radius * h > level, lowest <= level
        if hit:
            return False
        mid, h = mid[~clear], h[~clear] / 2
        mid, h = np.r_[mid - h, mid + h], np.r_[h, h]
    return True


def _arcs_clear(T: Complex, z: Complex, h: NDArray[np.float64], level: float) -> NDArray[np.bool_]:
    """For each z: whether sigma_min(T - z' I) > level for all |z' - z| <= h, by the series above."""
    try:
        R = np.linalg.inv(T[None] - z[:, None, None] * np.eye(T.shape[0]))
    except np.linalg.LinAlgError:
        return np.zeros(z.size, dtype=bool)
    with np.errstate(over="ignore", invalid="ignore"):
        power, bound = R, np.linalg.norm(R, axis=(1, 2))
        for j in range(1, 8):
            power = power @ R
            last = np.linalg.norm(power, axis=(1, 2))
            bound = bound + h**j * last
        rest = 1.0 - h**8 * last
        return (rest > 0) & (bound * level < rest)
