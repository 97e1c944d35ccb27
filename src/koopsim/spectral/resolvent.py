"""How far a matrix is from having an eigenvalue on a circle.

    sigma_min(A - z I) > delta  for all |z| = r
        =>  every A0 with ||A0 - A|| <= delta has as many eigenvalues inside |z| = r as A has

This is the one fact behind every certain answer of `analysis.py` (Trefethen & Embree, *Spectra and
Pseudospectra*, ch. 2). From points to arcs: with R = (A - z I)^-1 and |z' - z| <= h,

    ||(A - z' I)^-1|| <= (||R|| + h ||R^2|| + ... + h^7 ||R^8||) / (1 - h^8 ||R^8||),

so an arc is clear as soon as this is below 1 / delta; arcs that are not are halved. Large matrices are first put to
their eigenvectors (`eigenbasis.py`), and where those prove nothing to sigma_min(A - z' I) >= 1 / ||R||_F - h, or to the
series where that leads nowhere near an eigenvalue. Each of these is a bound, none an estimate: what cannot be shown
within the allowance is not called clear. A is given in its complex Schur form T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas as _blas
from scipy.linalg import lapack as _lapack

from .eigenbasis import Complex, EigenBasis, eigenbasis

LAPACK: Any = _lapack  # built at import: no stubs
BLAS: Any = _blas

DENSE = 48  # up to this order an SVD of the whole stack is cheaper than anything else
BUDGET = 4000  # evaluations for one circle, small matrices
ALLOWANCE = 1.2e11  # large ones: n^3 an inverse, for all that is asked about one matrix
HOPELESS = 0.1  # of the inverses that a circle needs at the present pace there must be enough left for
PROBES = 8  # points where a large matrix fails if it fails
PIECES = 16  # arcs that the circle of a small matrix is first cut into
SHORTEST = 1e-15  # half an arc, below which none is halved
STRIDE = 0.9  # of what is clear: how far beyond it the next point of a large matrix is
NEARER = 0.7  # times as far, where what is clear shrinks
TERMS = 8  # of the series for an arc
NEARBY = 0.02  # of the way to the nearest eigenvalue: where the resolvent alone tells of less, its powers are asked
HALVINGS = 40  # while looking for the longest arc that a series clears


@dataclass
class Allowance:
    """What is left to spend on proofs about one large matrix. Spent, nothing more is called clear."""

    left: float = ALLOWANCE

    @property
    def spent(self) -> bool:
        return self.left < 0

    def spend(self, n: int) -> bool:
        """Whether there is enough for one more inverse of order n."""
        self.left -= float(n) ** 3
        return self.left >= 0


def is_diagonal(T: Complex) -> bool:
    return np.count_nonzero(T) == np.count_nonzero(np.diagonal(T))


def smallest_singular_values(T: Complex, z: Complex) -> NDArray[Any]:
    """sigma_min(T - z I) for each z, T upper triangular: exact for small T, a lower bound 1 / ||R||_F for large."""
    n = len(T)
    if n <= DENSE:
        shifted = T[None] - z[:, None, None] * np.eye(n)
        return np.linalg.svd(shifted, compute_uv=False)[:, -1]
    return np.array([_from_inverse(T, zi) for zi in z])


def inverse(T: Complex, z: complex) -> Complex:
    """(T - z I)^-1 of a triangular T; infinite where z is one of its eigenvalues."""
    shifted = np.array(T, order="F", dtype=complex)
    shifted[np.diag_indices(len(T))] -= z
    R, info = LAPACK.ztrtri(shifted, overwrite_c=1)
    return np.full_like(R, np.inf) if info else R


def _from_inverse(T: Complex, z: complex) -> float:
    with np.errstate(over="ignore"):
        size = float(np.linalg.norm(inverse(T, z)))
    return 1.0 / size if np.isfinite(size) else 0.0


def singular_value_at_most(T: Complex, z: complex, steps: int = 6) -> float:
    """An upper bound of sigma_min(T - z I) by inverse iteration: it shows that a circle is not clear."""
    n = len(T)
    shifted = np.array(T, order="F")
    shifted[np.diag_indices(n)] -= z
    x = np.exp(1j * np.arange(n) ** 2) / np.sqrt(n)  # any start that is orthogonal to nothing in particular
    growth = 0.0
    for _ in range(steps):
        x, info = LAPACK.ztrtrs(shifted, x, trans=2)
        y, info2 = LAPACK.ztrtrs(shifted, x)
        with np.errstate(over="ignore"):
            size = np.linalg.norm(y)
        if info or info2 or not np.isfinite(size) or size == 0.0:
            return 0.0
        growth = float(np.sqrt(size))
        x = y / size
    return 1.0 / growth


class Circles:
    """One matrix, asked about circles: T in Schur form, `half` where its spectrum is symmetric."""

    def __init__(self, T: Complex, half: bool, allowance: Allowance | None = None, basis: EigenBasis | None = None):
        self.T, self.arc = T, np.pi if half else 2 * np.pi
        self.moduli, self.angles = np.abs(np.diag(T)), np.angle(np.diag(T))
        self.allowance = allowance or Allowance()
        self._basis = basis

    def clear(self, radius: float, level: float, keep: float = 0.0) -> bool:
        """Proof that sigma_min(T - z I) > level all along |z| = radius; False where there is none.

        `keep`: what is to be left of the allowance.
        """
        if is_diagonal(self.T):
            return bool(np.all(np.abs(self.moduli - radius) > level))
        if len(self.T) <= DENSE:
            probes = self._probes(radius, PROBES)
            return smallest_singular_values(self.T, probes).min() > level and self._small(radius, level)
        if self._basis is None:
            self._basis = eigenbasis(self.T)
        return self._basis.clear_of_circle(radius, level, self.arc) or self._large(radius, level, keep)

    def _probes(self, radius: float, count: int) -> Complex:
        near = np.argsort(np.abs(self.moduli - radius))[:count]
        return radius * np.exp(1j * np.r_[0.0, np.pi, self.angles[near]])  # where it fails if it fails

    def _arcs(self) -> tuple[NDArray[Any], NDArray[Any]]:
        half = self.arc / PIECES / 2
        return (2 * np.arange(PIECES) + 1) * half, np.full(PIECES, half)

    def _small(self, radius: float, level: float) -> bool:
        middle, h = self._arcs()
        spent = 0
        while middle.size:
            spent += middle.size
            if spent > BUDGET or h[0] < SHORTEST:
                return False
            z = radius * np.exp(1j * middle)
            clear = _arcs_clear(self.T, z, radius * h, level)
            if np.any(smallest_singular_values(self.T, z[~clear]) <= level):
                return False
            middle, h = middle[~clear], h[~clear] / 2
            middle, h = np.r_[middle - h, middle + h], np.r_[h, h]
        return True

    def _large(self, radius: float, level: float, keep: float = 0.0) -> bool:
        if any(singular_value_at_most(self.T, z) <= level for z in self._probes(radius, PROBES)):
            return False
        n = len(self.T)
        angle = reached = step = 0.0
        while reached < self.arc:
            if not self.allowance.spend(n) or self.allowance.left < keep:
                return False
            clear = self._reach(radius * np.exp(1j * angle), level) / radius  # either side of the angle
            if clear * (self.allowance.left - keep) < HOPELESS * n**3 * (self.arc - reached):
                return False
            if angle - clear <= reached:
                reached, step = angle + clear, clear
            else:  # it shrinks along the way: look nearer
                step = NEARER * min(step, clear)
            angle = reached + STRIDE * step
        return True

    def _reach(self, z: complex, level: float) -> float:
        """Some h with sigma_min(T - z' I) > level for all |z' - z| <= h; not positive where none is found."""
        power = R = inverse(self.T, z)
        with np.errstate(all="ignore"):
            sizes = [np.linalg.norm(R)]
            alone = 1.0 / sizes[0] if np.isfinite(sizes[0]) else 0.0
            if alone <= level or alone >= NEARBY * np.abs(np.diag(self.T) - z).min():
                return float(alone - level)
            while len(sizes) < TERMS and self.allowance.spend(len(R)):
                power = BLAS.ztrmm(1.0, R, power)
                sizes.append(np.linalg.norm(power))
            least, most = alone - level, sizes[-1] ** (-1.0 / len(sizes))
            for _ in range(HALVINGS):
                h = (least + most) / 2
                least, most = (h, most) if _series_clear(sizes, h, level) else (least, h)
        return float(least)


def clear_of_circle(T: Complex, radius: float, level: float, *, half: bool = False) -> bool:
    """One question about one matrix: see `Circles`."""
    return Circles(T, half).clear(radius, level)


def _arcs_clear(T: Complex, z: Complex, h: NDArray[np.float64], level: float) -> NDArray[np.bool_]:
    """For each z: whether sigma_min(T - z' I) > level for all |z' - z| <= h, by the series above."""
    try:
        R = np.linalg.inv(T[None] - z[:, None, None] * np.eye(len(T)))
    except np.linalg.LinAlgError:
        return np.zeros(z.size, dtype=bool)
    with np.errstate(over="ignore", invalid="ignore"):
        power, sizes = R, [np.linalg.norm(R, axis=(1, 2))]
        for _ in range(1, TERMS):
            power = power @ R
            sizes.append(np.linalg.norm(power, axis=(1, 2)))
        return _series_clear(sizes, h, level)


def _series_clear(sizes: list[Any], h: Any, level: float) -> Any:
    """The series above from the sizes of R, R^2, ...: whether it is below 1 / level at a distance of h."""
    bound = sum(h**j * size for j, size in enumerate(sizes))
    rest = 1.0 - h ** len(sizes) * sizes[-1]
    return (rest > 0) & (bound * level < rest)
