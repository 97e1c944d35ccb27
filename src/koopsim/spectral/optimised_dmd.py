"""Optimised DMD with bagging: all samples fitted at once, at whatever times they were taken.

    min over mu, B of || X - Phi(mu) B ||,   Phi_lj = exp(mu_j t_l)              Askham & Kutz 2018
    mu, mode and forecast as means over fits of random subsets, with their spread   BOP-DMD: Sashidhar & Kutz 2022

Regressing each sample on the one before puts noise on both sides and makes every eigenvalue too small; here noise is on
one side. B is solved for exactly at each mu (variable projection, Golub & Pereyra 1973), with Kaufman's Jacobian

    d/dmu_j of the residual = -(I - Phi Phi^+) t exp(mu_j t) B_j.

Rates of real data are kept in conjugate pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from koopsim.files.masks import unmasked

from .delays import windows
from .intake import require_squares
from .sampling import regular

Array = Any  # of numbers; NumPy's stubs lose .real of an NDArray[Any]
REAL = 1e-6  # a rate whose turn over all the samples is below this share of a radian is real
GROWTH = 300.0  # exponents beyond this over the samples are no description of them
FLAT = 1e-12  # of the largest singular value: directions below it are none
CLOSE = 1e-13  # relative, of rates and squares: where Levenberg and Marquardt's method ends,
EVALUATIONS = 200  # or after so many
GONE = 1e-12  # an eigenvalue below this is taken for it: zero has no logarithm
RAN_AWAY = 10.0  # median deviations
TOGETHER = 1e-9  # rates this close agree, whatever the median


class OptimisedDMD(BaseEstimator):
    """`n_modes` exponentials (a conjugate pair counts as two) through one trajectory.

    Parameters
    ----------
    n_modes
        How many exponentials; they may be more than the columns of X.
    bags
        Fits of random subsets; 0: none, and no spread.
    share
        Of the samples in each subset.
    seed
        Of the subsets.
    """

    def __init__(self, n_modes: int = 2, bags: int = 0, share: float = 0.6, seed: int = 0):
        self.n_modes = n_modes
        self.bags = bags
        self.share = share
        self.seed = seed

    def fit(self, X: Any, y: Any = None, times: Any = None) -> OptimisedDMD:
        """X (m, d), real or complex; times (m,), uneven or not, None: 0, 1, 2, ... Rows with NaN are left out."""
        Z, t = self._checked(X, times)
        self.n_features_in_, self.complex_ = Z.shape[1], np.iscomplexobj(Z)
        self._origin, self._span = float(t[0]), float(t[-1] - t[0])
        tau = (t - t[0]) / self._span
        U, s, _ = np.linalg.svd(Z, full_matrices=False)
        p = max(1, min(self.n_modes, int(np.sum(s > FLAT * s[0]))))
        Y = U[:, :p] * s[:p]  # the fit sees the leading directions; modes are fitted to all columns at the end
        start = _Rates.of(_first_guess(Y, tau, self.n_modes), self.complex_)
        whole = _fit(Y, tau, start)
        rng, found = np.random.default_rng(self.seed), []
        size = max(2 * self.n_modes, round(self.share * len(tau)))
        for _ in range(self.bags):
            rows = np.sort(rng.choice(len(tau), min(size, len(tau)), replace=False))
            found.append(_fit(Y[rows], tau[rows], whole).values)
        bag = np.array(found) if found else whole.values[None]
        kept = _agreeing(bag)
        order = np.lexsort((-np.imag(whole.values), np.abs(np.imag(whole.values))))
        self._bag = bag[kept][:, order] / self._span
        self.rates_ = self._bag.mean(axis=0)
        self.rates_std_ = np.hypot(self._bag.real.std(axis=0), self._bag.imag.std(axis=0))
        B = _weights(t - t[0], self.rates_, Z)
        self.amplitudes_ = np.linalg.norm(B, axis=1)
        self.modes_ = (B / np.where(self.amplitudes_ > 0, self.amplitudes_, 1.0)[:, None]).T
        self._bag_B = [_weights(t - t[0], mu, Z) for mu in self._bag]
        left = Z - self.predict(t)
        self.relative_residual_ = float(np.linalg.norm(left) / (np.linalg.norm(Z) or 1.0))
        return self

    def _checked(self, X: Any, times: Any) -> tuple[Array, Array]:
        Z = np.asarray(unmasked(X))
        Z = Z[:, None] if Z.ndim == 1 else Z
        if Z.ndim != 2 or Z.dtype.kind not in "fciub":
            raise ValueError(f"a trajectory is an (m, d) array of numbers; got shape {Z.shape} of {Z.dtype}")
        Z = Z.astype(np.complex128 if Z.dtype.kind == "c" else np.float64)
        t = np.arange(len(Z), dtype=np.float64) if times is None else np.asarray(unmasked(times), dtype=np.float64)
        if t.shape != (len(Z),):
            raise ValueError(f"{len(Z)} samples need as many times; got shape {t.shape}")
        if self.n_modes < 1 or self.bags < 0 or not 0 < self.share <= 1:
            raise ValueError(
                f"n_modes >= 1, bags >= 0 and 0 < share <= 1 are needed; got {self.n_modes}, {self.bags}, {self.share}"
            )
        whole = np.isfinite(Z).all(axis=1) & np.isfinite(t)
        Z, t = Z[whole], t[whole]
        if len(Z) < 2 * self.n_modes:
            raise ValueError(f"{self.n_modes} modes need {2 * self.n_modes} samples at least; got {len(Z)}")
        if np.diff(t).min() <= 0:
            raise ValueError("times must increase")
        require_squares(Z)
        if not np.any(Z):
            raise ValueError("the trajectory is zero everywhere; there is nothing to fit")
        return Z, t

    @property
    def frequencies_(self) -> Array:
        """Turns a unit of time."""
        check_is_fitted(self, "rates_")
        return np.imag(self.rates_) / (2 * np.pi)

    @property
    def growth_rates_(self) -> Array:
        """Exponential growth a unit of time."""
        check_is_fitted(self, "rates_")
        return np.real(self.rates_)

    def predict(self, times: Any) -> Array:
        """(len(times), d): the sum of exponentials at any times, before, between or after the samples."""
        check_is_fitted(self, "rates_")
        t = np.atleast_1d(np.asarray(times, dtype=np.float64)) - self._origin
        out = (np.exp(np.outer(t, self.rates_)) * self.amplitudes_) @ self.modes_.T
        return out if self.complex_ else np.real(out)

    def forecast(self, times: Any) -> tuple[Array, Array]:
        """Mean and standard deviation over the bags, (len(times), d) each."""
        check_is_fitted(self, "rates_")
        t = np.atleast_1d(np.asarray(times, dtype=np.float64)) - self._origin
        found = np.array([np.exp(np.outer(t, w)) @ B for w, B in zip(self._bag, self._bag_B, strict=True)])
        found = found if self.complex_ else np.real(found)
        return self.predict(times), np.sqrt(np.mean(np.abs(found - found.mean(axis=0)) ** 2, axis=0))


@dataclass(frozen=True)
class _Rates:
    """mu in units of 1 / span: `pairs` a + ib with b > 0 and their conjugates, then `single` ones, real or any."""

    pairs: Array
    single: Array
    free: bool  # single rates are complex

    @staticmethod
    def of(mu: Array, free: bool) -> _Rates:
        if free:
            return _Rates(np.empty(0, complex), mu, True)
        upper = mu[np.imag(mu) > REAL]
        real = np.real(mu[np.abs(np.imag(mu)) <= REAL])
        missing = mu.size - 2 * upper.size - real.size  # conjugates that were cut off
        if missing < 0:
            upper, missing = upper[:-1], missing + 2
        return _Rates(upper, np.r_[real, np.zeros(max(0, missing))].astype(complex), False)

    @property
    def values(self) -> Array:
        return np.r_[self.pairs, self.pairs.conj(), self.single]

    @property
    def vector(self) -> Array:
        tail = [self.single.real, self.single.imag] if self.free else [self.single.real]
        return np.concatenate([self.pairs.real, self.pairs.imag, *tail])

    def at(self, x: Array) -> _Rates:
        k, n = self.pairs.size, self.single.size
        single = _held(x[:n]) + 1j * x[n:] if self.free else _held(x[2 * k :]) + 0j  # free: no pairs
        return _Rates(_held(x[:k]) + 1j * x[k : 2 * k], single, self.free)


def _held(growth: Array) -> Array:
    return np.clip(growth, -GROWTH, GROWTH)


def _fit(Y: Array, tau: Array, start: _Rates) -> _Rates:
    """Levenberg and Marquardt from `start`."""
    k, n = start.pairs.size, start.single.size

    def parts(x: Array) -> tuple[Array, Array, Array]:
        mu = start.at(x).values
        Phi = np.exp(np.outer(tau, mu))
        Q, R = np.linalg.qr(Phi)
        return Q, np.linalg.lstsq(R, Q.conj().T @ Y, rcond=None)[0], Phi

    def residual(x: Array) -> Array:
        Q, _, _ = parts(x)
        return _stacked(Y - Q @ (Q.conj().T @ Y))

    def jacobian(x: Array) -> Array:
        Q, B, Phi = parts(x)
        slope = tau[:, None] * Phi

        def column(*terms: tuple[int, complex]) -> Array:
            D = sum(np.outer(weight * slope[:, j], B[j]) for j, weight in terms)
            return -_stacked(D - Q @ (Q.conj().T @ D))

        growth = [column((j, 1), (k + j, 1)) for j in range(k)]
        turn = [column((j, 1j), (k + j, -1j)) for j in range(k)]
        alone = [column((2 * k + j, 1)) for j in range(n)]
        turned = [column((j, 1j)) for j in range(n)] if start.free else []
        return np.column_stack([*growth, *turn, *alone, *turned])

    slope: Any = jacobian  # SciPy's stubs want a string
    found = least_squares(residual, start.vector, slope, method="lm", xtol=CLOSE, ftol=CLOSE, max_nfev=EVALUATIONS)
    return start.at(found.x)


def _stacked(residual: Array) -> Array:
    flat = residual.ravel()
    return np.r_[flat.real, flat.imag] if np.iscomplexobj(flat) else flat


def _first_guess(Y: Array, tau: Array, count: int) -> Array:
    """Rates of a linear system by the trapezoidal rule, or of a Hankel matrix where there are more than columns."""
    if count <= Y.shape[1]:
        step = np.diff(tau)[:, None]
        slope, middle = np.diff(Y, axis=0) / step, (Y[1:] + Y[:-1]) / 2
        return np.linalg.eigvals(np.linalg.lstsq(middle, slope, rcond=None)[0])
    even = regular(tau, Y)
    longest = max(even.pieces, key=len)
    past = min(max(2 * count, len(longest) // 3), len(longest) - 2)
    H = windows(longest, past)
    V = np.linalg.svd(H[:-1] if len(H) > 2 else H, full_matrices=False)[2][:count].conj().T
    X = H @ V
    w = np.linalg.eigvals(np.linalg.lstsq(X[:-1], X[1:], rcond=None)[0])
    return np.log(np.where(np.abs(w) > GONE, w, GONE).astype(complex)) / even.dt  # of a negative number, too


def _weights(t: Array, mu: Array, Z: Array) -> Array:
    """B with exp(mu t) B = Z."""
    return np.linalg.lstsq(np.exp(np.outer(t, mu)), Z.astype(complex), rcond=None)[0]


def _agreeing(bag: Array) -> NDArray[np.bool_]:
    """Fits that did not run away: within ten median deviations of the median."""
    middle = np.median(bag.real, axis=0) + 1j * np.median(bag.imag, axis=0)
    off = np.abs(bag - middle).max(axis=1)
    return off <= RAN_AWAY * np.median(off) + TOGETHER
