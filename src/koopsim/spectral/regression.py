"""Least squares that is fed in pieces and loses no digits.

    F = [U | phi(X) | phi(Y) | Z | 1] = Q R      only R is kept: O(N^2) memory for any number of samples

A new piece is factored (`factor.py`), stacked under R and factored again (TSQR). Everything EDMD needs is in R:

    K = argmin ||phi(X) K + U B - phi(Y)||,     A = K^T          phi(f(z)) = A phi(z) + B^T u
    residual of (lambda, v) = ||phi(Y) v - lambda phi(X) v|| / ||phi(X) v||     ResDMD, Colbrook & Townsend

Control inputs U come first, so that the rows of R below theirs are those of the same problem with what U explains
taken out of it (Frisch & Waugh): K is had from them as if there were no U. K is computed in observables psi that are
orthonormal over the samples: phi R11^-1, or by the SVD of R11 with columns of unit root mean square where a `rank` or
`ridge` is asked for or R11 is ill-conditioned; then directions below `rtol`, or beyond `rank`, are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs, solve_triangular

from .factor import Columns, qr_rows, triangle

Array = NDArray[Any]  # float64, or complex128 for complex states
EPS = float(np.finfo(np.float64).eps)
IN_SPAN = 1e-9  # the constant function is in the span of the dictionary when fitted to this
GOOD = 1e-6  # reciprocal condition above which R11 is divided by as it is


class Triangle:
    """R of the QR factorisation of all rows seen."""

    def __init__(self, device: str | None = None) -> None:
        self.R: Any = None
        self.rows = 0
        self.device = device

    def add(self, columns: Columns) -> None:
        """Append the rows of [lead | image | state | 1]."""
        self.rows += columns.rows
        fresh = triangle(columns, self.device)
        self.R = fresh if self.R is None else qr_rows(np.vstack([self.R, fresh]))

    def square(self, columns: int) -> Array:
        """R as a square matrix, also when fewer rows than columns were seen."""
        assert self.R is not None
        return np.pad(self.R, ((0, columns - self.R.shape[0]), (0, 0))) if self.R.shape[0] < columns else self.R


@dataclass(frozen=True)
class Settings:
    """How directions of the lifted data are dropped or damped; `scaled`: in units of each column's size."""

    ridge: float = 0.0
    rank: int | None = None
    rtol: float | None = None
    scaled: bool = True


@dataclass(frozen=True)
class Solution:
    """psi = phi `down` are `rank` whitened observables, phi = psi `up`; psi(f(z)) = psi(z) `core` + u `control`."""

    core: Array  # (r, r)
    up: Array  # (r, N)
    down: Array  # (N, r)
    decode: Array  # (r, d): z = psi decode
    control: Array  # (p, r)
    constant: Array | None  # 1 = psi constant, if the constant is in the span
    now: Array  # (rows, r): psi(X), seen in the orthonormal basis of the samples; its columns are orthogonal
    after: Array  # (rows, r): psi(Y), what the control explains taken out
    spectrum: Array | None = None

    @cached_property
    def singular_values(self) -> Array:
        """Of phi(X) over the samples, each observable in units of its root mean square, in the directions kept."""
        if self.spectrum is not None:
            return self.spectrum
        return np.linalg.svd(self.up / np.linalg.norm(self.up, axis=0), compute_uv=False)

    @property
    def relative_residual(self) -> float:
        """Of the fit as a whole."""
        return self.misfit(np.eye(self.core.shape[0]), self.core)

    def residuals(self, eigenvalues: NDArray, vectors: NDArray) -> Array:
        """ResDMD residual of each pair (lambda, v), v in terms of psi."""
        x, y = self.now @ vectors, self.after @ vectors
        size = np.linalg.norm(x, axis=0)
        return np.linalg.norm(y - x * eigenvalues, axis=0) / np.where(size > 0, size, 1.0)

    def misfit(self, basis: Array, core: Array) -> float:
        """||chi(Y) - chi(X) core|| / ||chi(Y)|| for the observables chi = psi basis."""
        x, y = self.now @ basis, self.after @ basis
        size = np.linalg.norm(y)
        return float(np.linalg.norm(y - x @ core) / size) if size > 0 else 0.0


@dataclass(frozen=True)
class Layout:
    """Which columns of R are what: `controls`, `observables`, then the states, unless these are observables."""

    controls: int
    observables: int
    states: int
    state_columns: Array | None = None  # where among the observables the states are

    @property
    def width(self) -> int:
        return self.controls + 2 * self.observables + (self.states if self.state_columns is None else 0) + 1


def solve(held: Triangle, layout: Layout, settings: Settings) -> Solution:
    """The Koopman matrix, the control's, and the state decoder from R."""
    p, N, m = layout.controls, layout.observables, held.rows
    R = held.square(layout.width)
    R11, R12, R22 = R[p : p + N, p : p + N], R[p : p + N, p + N : p + 2 * N], R[p + N : p + 2 * N, p + N : p + 2 * N]
    U, s, up, down = _whiten(R11, m, settings)
    damp = np.ones((s.size, 1)) if not settings.ridge else (s**2 / (s**2 + settings.ridge * m))[:, None]
    after = np.vstack([R12 @ down, R22 @ down]) / np.sqrt(m)
    core = damp * (after[:N] if U is None else U.conj().T @ after[:N])
    above = R[:p, p : p + N] @ down / np.sqrt(m)  # the part of psi(X) along the control
    now = np.vstack([np.eye(N, s.size) if U is None else U, np.zeros((R22.shape[0], s.size))])
    states = R[:, p + 2 * N : -1] if layout.state_columns is None else R[:, p + layout.state_columns]
    decode, _ = _coefficients(above, now[:N], states[: p + N] / np.sqrt(m))
    c, missing = _coefficients(above, now[:N], R[: p + N, -1] / np.sqrt(m))
    missing = np.hypot(missing, np.linalg.norm(R[p + N :, -1]) / np.sqrt(m))
    B = np.linalg.lstsq(R[:p, :p], R[:p, p + N : p + 2 * N] @ down - np.sqrt(m) * above @ core, rcond=None)[0]
    return Solution(
        core=core,
        up=up,
        down=down,
        decode=damp * decode,
        control=B,
        constant=c if missing < IN_SPAN else None,
        now=now,
        after=after,
        spectrum=None if U is None else s / np.sqrt(m),
    )


def _whiten(R11: Array, m: int, settings: Settings) -> tuple[Array | None, Array, Array, Array]:
    """U (None: the identity), singular values, and up, down with R11 = sqrt(m) U up, R11 down = sqrt(m) U."""
    N = R11.shape[0]
    scale = np.linalg.norm(R11, axis=0) / np.sqrt(m) if settings.scaled else np.ones(N)
    scale[scale == 0] = 1.0
    plain = not settings.ridge and settings.rank is None and settings.rtol is None
    if plain:
        (trcon,) = get_lapack_funcs(("trcon",), (R11,))
        if trcon(R11 / scale)[0] > GOOD:
            return None, np.ones(N), R11 / np.sqrt(m), solve_triangular(R11, np.eye(N)) * np.sqrt(m)
    U, s, Vt = np.linalg.svd(R11 / scale, full_matrices=False)
    cutoff = (4 * N * EPS if settings.rtol is None else settings.rtol) * s[0]
    r = max(1, int(np.sum(s > cutoff)))
    r = r if settings.rank is None else min(r, settings.rank)
    U, s, Vt = U[:, :r], s[:r], Vt[:r]
    safe = np.where(s > 0, s, 1.0)
    return U, s, (Vt * scale) * s[:, None] / np.sqrt(m), Vt.conj().T / scale[:, None] / safe * np.sqrt(m)


def _coefficients(above: Array, psi: Array, target: Array) -> tuple[Array, float]:
    """c with [above; psi] c = target, psi's columns orthonormal; and what is left of the target."""
    p = above.shape[0]
    if not p:
        c = psi.conj().T @ target
    else:
        c = np.linalg.lstsq(np.vstack([above, psi]), target, rcond=None)[0]
    return c, float(np.linalg.norm(target - np.vstack([above, psi]) @ c))
