"""Least squares that is fed in pieces and loses no digits.

    F = [U | phi(X) | phi(Y) | Z | 1] = Q R      only R is kept: O(N^2) memory for any number of samples

A new piece is factored (`factor.py`), stacked under R and factored again (TSQR). Everything EDMD needs is in R:

    K = argmin ||phi(X) K + U B - phi(Y)||,     A = K^T          phi(f(z)) = A phi(z) + B^T u
    residual of (lambda, v) = ||phi(Y) v - lambda phi(X) v|| / ||phi(X) v||     ResDMD, Colbrook & Townsend

A stream keeps all of R. Where the samples can be seen again, the rows of phi(X) are enough, and the misfit
phi(Y) - phi(X) K is measured on them when a residual is first asked for.

Control inputs U come first, so that the rows of R below theirs are those of the same problem with what U explains
taken out of it (Frisch & Waugh): K is had from them as if there were no U. K is computed in observables psi that are
orthonormal over the samples: phi R11^-1, or by the SVD of R11 with columns of unit root mean square where a `rank` or
`ridge` is asked for or R11 is ill-conditioned; then directions below `rtol`, or beyond `rank`, are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs, solve_triangular

from .factor import Columns, householder, leading_rows, qr_rows
from .snapshots import above_noise

Array = NDArray[Any]  # float64, or complex128 for complex states
EPS = float(np.finfo(np.float64).eps)
IN_SPAN = 1e-9  # the constant function is in the span of the dictionary when fitted to this
ROUNDING = 4 * EPS  # of the largest singular value, for each column: directions below it are none
GOOD = 1e-6  # reciprocal condition above which R11 is divided by as it is


class Triangle:
    """R of the QR factorisation of all rows seen; `leading`: of its rows only those that belong to U and phi(X)."""

    def __init__(self, device: str | None = None, leading: bool = False) -> None:
        self.R: Any = None
        self.rows = 0
        self.device = device
        self.leading = leading

    def add(self, columns: Columns) -> None:
        """Append the rows of [lead | image | state | 1]."""
        self.rows += columns.rows
        fresh = (leading_rows if self.leading else householder)(columns, self.device)
        if self.R is not None:
            fresh = qr_rows(np.vstack([self.R, fresh]), self.device)
            if self.leading:
                a = columns.lead.shape[1]
                outside = np.linalg.norm(fresh[a:, -1])
                kept = fresh[:a]  # fewer where the first blocks are short
                fresh = np.vstack([kept, np.zeros((a + 1 - len(kept), fresh.shape[1]), fresh.dtype)])
                fresh[a, -1] = outside
        self.R = fresh

    def square(self) -> Array:
        """R as a square matrix, also when fewer rows than columns were seen."""
        rows, columns = self.R.shape
        return np.pad(self.R, ((0, columns - rows), (0, 0))) if rows < columns else self.R


@dataclass(frozen=True)
class Settings:
    """How directions of the lifted data are dropped or damped; `scaled`: in units of each column's size."""

    ridge: float = 0.0
    rank: Any = None  # a number, None (all) or "auto"
    rtol: float | None = None
    scaled: bool = True
    width: int | None = None  # observables, where these are more than the columns of R11


@dataclass(frozen=True)
class Solution:
    """psi = phi `down` are `rank` whitened observables, phi = psi `up`; psi(f(z)) = psi(z) `core` + u `control`."""

    core: Array  # (r, r)
    up: Array  # (r, N)
    down: Array  # (N, r)
    decode: Array  # (r, d): z = psi decode
    control: Array  # (p, r)
    constant: Array | None  # 1 = psi constant, if the constant is in the span
    frame: Array  # (N, r): psi(X) in the orthonormal basis that the samples have; its columns are orthonormal
    image: Array  # (N, r): psi(Y) there, what the control explains taken out
    rest: Array | Callable[[], Array]  # (k, r): psi(Y) outside of that basis, or what measures it
    spectrum: Array | None = None

    @cached_property
    def after(self) -> Array:
        """(rows, r): psi(Y), in a basis that begins with that of psi(X)."""
        return np.vstack([self.image, self.rest() if callable(self.rest) else self.rest])

    @cached_property
    def now(self) -> Array:
        """(rows, r): psi(X), in the same basis."""
        return np.pad(self.frame, ((0, len(self.after) - len(self.frame)), (0, 0)))

    @cached_property
    def singular_values(self) -> Array:
        """Of phi(X) over the samples, each observable in units of its root mean square, in the directions kept."""
        if self.spectrum is not None:
            return self.spectrum
        return np.linalg.svd(self.up / np.linalg.norm(self.up, axis=0), compute_uv=False)

    @property
    def relative_residual(self) -> float:
        """Of the fit as a whole."""
        return self.misfit(np.eye(len(self.core)), self.core)

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
class ColumnLayout:
    """Which columns of R are what: `controls`, `observables` twice, the states, unless these are observables, and 1."""

    controls: int
    observables: int
    state_columns: Array | None = None  # where among the observables the states are


Measure = Callable[[Array, Array, Array], Array]  # (down, core, control) -> root of the misfit's Gram matrix, (k, r)


def solve(held: Triangle, layout: ColumnLayout, settings: Settings, measure: Measure | None = None) -> Solution:
    """The Koopman matrix, the control's, and the state decoder from R."""
    p, N, m = layout.controls, layout.observables, held.rows
    R = held.square()
    R11, R12, R22 = R[p : p + N, p : p + N], R[p : p + N, p + N : p + 2 * N], R[p + N : p + 2 * N, p + N : p + 2 * N]
    U, s, up, down = _whiten(R11, m, settings)
    image = R12 @ down / np.sqrt(m)
    frame = np.eye(N, s.size) if U is None else U
    fitted = image if U is None else U.conj().T @ image
    damp = np.ones((s.size, 1)) if not settings.ridge else (s**2 / (s**2 + settings.ridge * m))[:, None]
    core = damp * fitted
    above = R[:p, p : p + N] @ down / np.sqrt(m)  # the part of psi(X) along the control

    def control(core: Array) -> Array:
        explained = R[:p, p + N : p + 2 * N] @ down - np.sqrt(m) * above @ core
        return np.linalg.lstsq(R[:p, :p], explained, rcond=None)[0] if p else np.zeros((0, s.size), dtype=core.dtype)

    def measured() -> Array:
        assert measure is not None
        return measure(down, fitted, control(fitted))

    states = R[:, p + 2 * N : -1] if layout.state_columns is None else R[:, p + layout.state_columns]
    decode, _ = _coefficients(above, frame, states[: p + N] / np.sqrt(m))
    c, missing = _coefficients(above, frame, R[: p + N, -1] / np.sqrt(m))
    missing = np.hypot(missing, np.linalg.norm(R[p + N :, -1]) / np.sqrt(m))
    return Solution(
        core=core,
        up=up,
        down=down,
        decode=damp * decode,
        control=control(core),
        constant=c if missing < IN_SPAN else None,
        frame=frame,
        image=image if measure is None else frame @ fitted,
        rest=R22 @ down / np.sqrt(m) if measure is None else measured,
        spectrum=None if U is None else s / np.sqrt(m),
    )


def _whiten(R11: Array, m: int, settings: Settings) -> tuple[Array | None, Array, Array, Array]:
    """U (None: the identity), singular values, and up, down with R11 = sqrt(m) U up, R11 down = sqrt(m) U."""
    N = len(R11)
    scale = _sizes(R11) / np.sqrt(m) if settings.scaled else np.ones(N)
    scale[scale == 0] = 1.0
    plain = not settings.ridge and settings.rank is None and settings.rtol is None
    if plain:
        (trcon,) = get_lapack_funcs(("trcon",), (R11,))
        if trcon(R11 / scale)[0] > GOOD:
            return None, np.ones(N), R11 / np.sqrt(m), solve_triangular(R11, np.eye(N)) * np.sqrt(m)
    U, s, Vt = np.linalg.svd(R11 / scale, full_matrices=False)
    cutoff = (ROUNDING * N if settings.rtol is None else settings.rtol) * s[0]
    r = max(1, int(np.sum(s > cutoff)))
    if settings.rank == "auto":
        r = min(r, above_noise(s, min(m, settings.width or N) / max(m, settings.width or N)))
    elif settings.rank is not None:
        r = min(r, settings.rank)
    U, s, Vt = U[:, :r], s[:r], Vt[:r]
    safe = np.where(s > 0, s, 1.0)
    return U, s, (Vt * scale) * s[:, None] / np.sqrt(m), Vt.conj().T / scale[:, None] / safe * np.sqrt(m)


def _sizes(R: Array) -> Array:
    """Norms of the columns; squares of 1e-200 would vanish."""
    largest = np.abs(R).max(axis=0)
    safe = np.where(largest > 0, largest, 1.0)
    return safe * np.linalg.norm(R / safe, axis=0)


def _coefficients(above: Array, psi: Array, target: Array) -> tuple[Array, float]:
    """c with [above; psi] c = target, psi's columns orthonormal; and what is left of the target."""
    p = len(above)
    if not p:
        c = psi.conj().T @ target
    else:
        c = np.linalg.lstsq(np.vstack([above, psi]), target, rcond=None)[0]
    return c, float(np.linalg.norm(target - np.vstack([above, psi]) @ c))
