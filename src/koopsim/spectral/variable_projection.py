"""A given number of exponentials through whole runs, by least squares (variable projection: Golub & Pereyra 1973).

    min over lambda of  || z - Phi(lambda) B ||,      B = Phi^+ z solved for at each lambda

    d/dtheta of what is left over = -(I - Phi Phi^+) (dPhi/dtheta) B                       Kaufman 1975

Real terms: lambda may be negative; pairs are written with a cosine and a sine, so all numbers are real.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Array = NDArray[Any]  # float64
STEPS = 30  # of Newton's method
VANISHED = -700.0  # exponent of what is next to nothing
DEPENDENT = 1e-12  # of the largest singular value: columns closer than this have no amplitudes of their own
CLOSE = 1e-12  # relative, of the parameters: where it ends,
LEVEL = 1e-10  # or of the sum of squares


@dataclass(frozen=True)
class Terms:
    """The parameters alone: growth, angle (zero unless paired), and which are pairs and which are negative."""

    growth: Array
    angle: Array
    paired: NDArray[np.bool_]
    flipped: NDArray[np.bool_]

    @property
    def vector(self) -> Array:
        return np.r_[self.growth, self.angle[self.paired]]

    def moved(self, vector: Array) -> Terms:
        k = self.growth.size
        angle = np.zeros(k)
        angle[self.paired] = vector[k:]
        return replace(self, growth=vector[:k], angle=angle)

    def columns(self, m: int) -> tuple[Array, list[tuple[int, int]]]:
        """(m, 1 + ...): the constant, then one column for a real term and two for a pair; where each term's are."""
        l = np.arange(m)
        out, where = [np.ones(m)], []
        for g, a, pair, flip in zip(self.growth, self.angle, self.paired, self.flipped, strict=True):
            size = np.exp(np.maximum(g * (l - (m - 1 if g > 0 else 0)), VANISHED))  # at most one, growing or not
            where.append((len(out), 2 if pair else 1))
            if pair:
                out += [size * np.cos(a * l), size * np.sin(a * l)]
            else:
                out.append(np.where(l % 2, -size, size) if flip else size)
        return np.column_stack(out), where


def residual(runs: list[Array], terms: Terms) -> tuple[Array, Array, list[Array]]:
    """(what is left over, its derivative by the parameters (Kaufman's), amplitudes of each run)."""
    k, pairs = terms.growth.size, np.flatnonzero(terms.paired)
    left, slope, amplitudes = [], [], []
    for z in runs:
        Phi, where = terms.columns(len(z))
        Q, R = np.linalg.qr(Phi)
        B = np.linalg.lstsq(R, Q.T @ z, rcond=DEPENDENT)[0]
        left.append((z - Phi @ B).ravel())
        amplitudes.append(B)
        l = np.arange(len(z))[:, None]
        J = np.zeros((z.size, k + pairs.size))
        for j, (c, width) in enumerate(where):
            change = l * (Phi[:, c : c + width] @ B[c : c + width])
            J[:, j] = -(change - Q @ (Q.T @ change)).ravel()
        for i, j in enumerate(pairs):
            c = where[j][0]
            change = l * (Phi[:, c : c + 1] @ B[c + 1 : c + 2] - Phi[:, c + 1 : c + 2] @ B[c : c + 1])
            J[:, k + i] = -(change - Q @ (Q.T @ change)).ravel()
        slope.append(J)
    return np.concatenate(left), np.concatenate(slope), amplitudes


def refined(runs: list[Array], start: Terms, steps: int = STEPS) -> tuple[Terms, float]:
    """(terms of least squares, their sum of squares)."""
    cache: dict[bytes, tuple[Array, Array]] = {}
    total = sum(z.size for z in runs)

    def both(vector: Array) -> tuple[Array, Array]:
        key = vector.tobytes()
        if key not in cache:
            cache.clear()
            try:
                cache[key] = residual(runs, start.moved(vector))[:2]
            except np.linalg.LinAlgError:  # a step too far: an infinite residual makes least_squares take a shorter one
                cache[key] = np.full(total, np.inf), np.zeros((total, vector.size))
        return cache[key]

    if not np.isfinite(both(start.vector)[0]).all():
        return start, np.inf

    slope: Any = lambda v: both(v)[1]  # noqa: E731
    found = least_squares(
        lambda v: both(v)[0], start.vector, jac=slope, x_scale="jac", max_nfev=steps, xtol=CLOSE, ftol=LEVEL
    )
    return start.moved(found.x), float(2 * found.cost)
