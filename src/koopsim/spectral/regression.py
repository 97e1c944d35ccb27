"""Least squares that is fed in pieces and loses no digits.

    F = [phi(X) | phi(Y) | Z | 1] = Q R      only R is kept: O(N^2) memory for any number of samples

A new piece is stacked under R and factored again (TSQR). Gram matrices would square the condition number;
R does not. Everything EDMD needs is in R:

    K = argmin ||phi(X) K - phi(Y)||,     A = K^T          phi(f(z)) = A phi(z)
    residual of (lambda, v) = ||phi(Y) v - lambda phi(X) v|| / ||phi(X) v||     ResDMD, Colbrook & Townsend

K is computed through the SVD of R11 with its columns scaled to unit root mean square: directions below
`rtol`, or beyond `rank`, are dropped, `ridge` damps the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .resolvent import LAPACK

Array = NDArray[Any]  # float64
EPS = float(np.finfo(np.float64).eps)
IN_SPAN = 1e-9  # the constant function is in the span of the dictionary when fitted to this


class Triangle:
    """R of the QR factorisation of all rows seen."""

    def __init__(self) -> None:
        self.R: Any = None
        self.rows = 0

    def add(self, *columns: Array) -> None:
        """Append the rows of [columns_1 | columns_2 | ...]."""
        rows = columns[0].shape[0]
        self.rows += rows
        above = 0 if self.R is None else self.R.shape[0]
        width = sum(c.shape[1] for c in columns)
        stacked = np.empty((above + rows, width), order="F")  # as LAPACK wants it: factored in place
        if self.R is not None:
            stacked[:above] = self.R
        start = 0
        for c in columns:
            stacked[above:, start : start + c.shape[1]] = c
            start += c.shape[1]
        factored = LAPACK.dgeqrf(stacked, overwrite_a=1, lwork=64 * width)[0]
        self.R = np.triu(factored[: min(width, above + rows)])

    def square(self, columns: int) -> Array:
        """R as a square matrix, also when fewer rows than columns were seen."""
        assert self.R is not None
        return np.pad(self.R, ((0, columns - self.R.shape[0]), (0, 0))) if self.R.shape[0] < columns else self.R


@dataclass(frozen=True)
class Solution:
    """psi = phi `down` are `rank` whitened observables, phi = psi `up`; psi(f(z)) = psi(z) `core`."""

    core: Array  # (r, r)
    up: Array  # (r, N)
    down: Array  # (N, r)
    decode: Array  # (r, d): z = psi decode
    constant: Array | None  # 1 = psi constant, if the constant is in the span
    singular_values: Array
    R11: Array
    R12: Array
    R22: Array

    @property
    def relative_residual(self) -> float:
        """Of the fit as a whole."""
        return self.misfit(np.eye(self.core.shape[0]), self.core)

    def residuals(self, eigenvalues: NDArray, vectors: NDArray) -> Array:
        """ResDMD residual of each pair (lambda, v), v in terms of psi."""
        v = self.down @ vectors
        x = self.R11 @ v
        top, bottom = self.R12 @ v - x * eigenvalues, self.R22 @ v
        size = np.linalg.norm(x, axis=0)
        error = np.hypot(np.linalg.norm(top, axis=0), np.linalg.norm(bottom, axis=0))
        return error / np.where(size > 0, size, 1.0)

    def misfit(self, basis: Array, core: Array) -> float:
        """||chi(Y) - chi(X) core|| / ||chi(Y)|| for the observables chi = psi basis."""
        down = self.down @ basis
        x, y, rest = self.R11 @ down, self.R12 @ down, self.R22 @ down
        size = np.hypot(np.linalg.norm(y), np.linalg.norm(rest))
        return float(np.hypot(np.linalg.norm(y - x @ core), np.linalg.norm(rest)) / size) if size > 0 else 0.0


def solve(triangle: Triangle, N: int, d: int, ridge: float, rank: int | None, rtol: float | None) -> Solution:
    """The Koopman matrix and the state decoder from R."""
    R, m = triangle.square(2 * N + d + 1), triangle.rows
    R11, R12, R1z, R1c = R[:N, :N], R[:N, N : 2 * N], R[:N, 2 * N : -1], R[:N, -1]
    scale = np.linalg.norm(R11, axis=0) / np.sqrt(m)
    scale[scale == 0] = 1.0
    U, s, Vt = np.linalg.svd(R11 / scale)
    cutoff = (4 * N * EPS if rtol is None else rtol) * s[0]
    r = max(1, int(np.sum(s > cutoff)))
    r = r if rank is None else min(r, rank)
    U, s, Vt = U[:, :r], s[:r], Vt[:r]
    down = Vt.T / scale[:, None] / s * np.sqrt(m)
    up = (Vt * scale) * s[:, None] / np.sqrt(m)
    damp = (s**2 / (s**2 + ridge * m))[:, None]
    core = damp * (U.T @ R12 @ down) / np.sqrt(m)
    c = U.T @ R1c
    missing = np.hypot(np.linalg.norm(R1c - U @ c), np.linalg.norm(R[N:, -1])) / np.sqrt(m)
    R22 = R[N : 2 * N, N : 2 * N]
    return Solution(
        core=core,
        up=up,
        down=down,
        decode=damp * (U.T @ R1z) / np.sqrt(m),
        constant=c / np.sqrt(m) if missing < IN_SPAN else None,
        singular_values=s / np.sqrt(m),
        R11=R11,
        R12=R12,
        R22=R22,
    )
