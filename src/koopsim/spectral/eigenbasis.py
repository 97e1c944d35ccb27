"""All eigenvectors of a triangular matrix at once, and what they prove about its resolvent.

    T X = X D,   Y X = I,      ||(T - z I)^-1|| <= sum_i p_i / |lambda_i - z|,      p_i = ||x_i|| ||y_i||

The two halves of T give X and Y by products of matrices alone: with T = [T1 C; 0 T2],

    X = [X1  X1 Z; 0  X2],   Y = [Y1  -Z Y2; 0  Y2],   Z_ij = -(Y1 C X2)_ij / (d1_i - d2_j).

Nothing is taken on trust. What Y X - I came out as is in the p_i, and with `slack` = max ||T x_i - lambda_i x_i||

    T - z = (I + (T X - X D) (D - z)^-1 X^-1) X (D - z) X^-1,      so ||(T - z I)^-1|| <= bound / (1 - slack * bound).

An eigenvector matrix that is too ill conditioned, a Jordan block say, proves nothing; then others have to
(`resolvent.py`, `separation.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Complex = NDArray[Any]  # complex128; NumPy's stubs lose track of it
EPS = float(np.finfo(np.float64).eps)
ARCS = 64  # a circle is first cut into so many
EVALUATIONS = 30_000_000  # of p / |lambda - z| for one circle


@dataclass(frozen=True, eq=False)
class EigenBasis:
    """Columns of X have length one, Y X = I; `slack` bounds each ||T x_i - lambda_i x_i||."""

    eigenvalues: Complex
    X: Complex
    Y: Complex
    norms: NDArray[np.float64]  # p_i, each a little too large rather than too small
    residuals: NDArray[np.float64]  # ||T x_i - lambda_i x_i||
    slack: float

    def isolation(self, i: int) -> float:
        """A noise that leaves one eigenvalue, and no more, in a disc about lambda_i.

        Its radius is r = 2 p_i (noise + slack). No other lambda_j is nearer than 2 r, so that along it the bound is
        p_i / r and at most twice what the others have in the centre: together below 1 / (noise + slack).
        """
        gap = np.abs(self.eigenvalues - self.eigenvalues[i])
        gap[i] = np.inf
        if not np.isfinite(self.slack):
            return 0.0
        with np.errstate(divide="ignore"):
            others = 1.0 / np.sum(self.norms / gap)
        return float(min(others, gap.min() / self.norms[i])) / 4 - self.slack

    def clear_of_circle(self, radius: float, level: float, arc: float) -> bool:
        """Proof that sigma_min(T - z I) > level along |z| = radius, angles 0 to `arc`; False where there is none."""
        target = 1.0 / (level + self.slack)
        if not np.isfinite(self.slack):
            return False
        w, p = self.eigenvalues, self.norms
        with np.errstate(divide="ignore", over="ignore"):  # by the moduli alone; infinite where one is on the circle
            if np.sum(p / np.abs(np.abs(w) - radius)) < target:
                return True
        h = np.full(ARCS, arc / ARCS / 2)
        middle = (2 * np.arange(ARCS) + 1) * arc / ARCS / 2
        spent = 0
        while middle.size:
            spent += middle.size * w.size
            if spent > EVALUATIONS:
                return False
            distance = np.abs(w[None] - radius * np.exp(1j * middle)[:, None])
            with np.errstate(divide="ignore"):
                if np.any((p / distance).sum(axis=1) >= target):
                    return False
                nearest = np.maximum(distance - radius * h[:, None], 0.0)
                clear = (p / nearest).sum(axis=1) < target
            middle, h = middle[~clear], h[~clear] / 2
            middle, h = np.r_[middle - h, middle + h], np.r_[h, h]
        return True


def eigenbasis(T: Complex) -> EigenBasis:
    """Of an upper triangular T."""
    n, w = len(T), np.diag(T)
    size = float(np.linalg.norm(T)) or 1.0
    with np.errstate(all="ignore"):
        X, Y = _halves(T, w, EPS * size)
        length = np.linalg.norm(X, axis=0)
        X, Y = X / length, Y * length[:, None]
        residuals = np.linalg.norm(T @ X - X * w, axis=0)
        slack = float(residuals.max()) + n * EPS * size
        left, root = np.linalg.norm(Y, axis=1), np.sqrt(n)
        wrong = np.linalg.norm(Y @ X - np.eye(n), axis=1) + n * EPS * root * left
        all_wrong = float(np.linalg.norm(wrong))
        norms = left + wrong * (float(np.linalg.norm(Y)) / (1 - all_wrong) if all_wrong < 0.5 else np.inf)
    if not np.isfinite(slack) or not np.all(np.isfinite(norms)):
        slack, norms = np.inf, np.full(n, np.inf)
    return EigenBasis(w, X, Y, norms, residuals, slack)


def _halves(T: Complex, w: Complex, tiny: float) -> tuple[Complex, Complex]:
    n = w.size
    if n == 1:
        return np.ones((1, 1), complex), np.ones((1, 1), complex)
    k = n // 2
    X1, Y1 = _halves(T[:k, :k], w[:k], tiny)
    X2, Y2 = _halves(T[k:, k:], w[k:], tiny)
    gap = w[:k, None] - w[None, k:]
    Z = -(Y1 @ T[:k, k:] @ X2) / np.where(np.abs(gap) < tiny, tiny, gap)
    X, Y = np.zeros((n, n), complex), np.zeros((n, n), complex)
    X[:k, :k], X[:k, k:], X[k:, k:] = X1, X1 @ Z, X2
    Y[:k, :k], Y[:k, k:], Y[k:, k:] = Y1, -Z @ Y2, Y2
    return X, Y
