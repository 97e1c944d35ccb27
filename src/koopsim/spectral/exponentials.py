"""Trajectories as sums of exponentials: eigenvalues with errors that shrink with the samples.

    z_l = u + sum_j b_j lambda_j^l + noise,         lambda_j shared by all trajectories, u and b_j an own for each

A regression of each sample on the one before sees noise on both sides and finds every eigenvalue too small; a fit of
the whole run does not (optimised DMD: Askham & Kutz 2018, by variable projection: Golub & Pereyra 1973). It starts
from the shift invariance of the Hankel matrix's singular vectors (ESPRIT: Roy & Kailath 1989), and the number of
exponentials is the one of least BIC. The error of log lambda is that of least squares,

    sigma^2 (J^T J)^-1,      of order noise / (amplitude m^(3/2)) on the circle,

widened where what is left over is not white, and by as much as the fit foretells worse than it fits. What a fit is good
for is seen on samples it was not given (`foretold`), by whether the halves of the runs agree (`drift`), and in each
column by itself (`unseen`): the largest columns, by their units, decide what least squares looks at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .variable_projection import Terms, refined, residual

Array = NDArray[Any]  # float64
MOST_SAMPLES = 2000  # of one trajectory; longer ones are thinned
MOST_RUNS = 24  # trajectories that are fitted together
MOST_DIRECTIONS = 6  # principal directions of the state
MOST = 16  # eigenvalues beside the constant
ROUGH = 8  # steps of Newton's method while the number is looked for
PATIENCE = 4  # more eigenvalues that do not lower the BIC before it stops
WINDOW = 240  # numbers in a row of the Hankel matrix
ENERGY = 1e-9  # directions with less than this share of the variance are left out
STILL = 0.02  # a real exponential that changes by less than this over the run is the constant
DOUBTED = 4.0  # standard errors that the growths of two halves may differ by
ASIDE = 4.0  # times their spread: beyond, directions that were left out are away from zero
ROUNDING = 1e-13  # no growth is known better, and no rest in units of the largest sample
SHARE = 0.7  # of each trajectory is fitted when the rest is to be foretold
FEWEST = 4  # samples of a trajectory, or of its half, that can be fitted
DETERMINED = 3  # numbers for each unknown; with fewer, no more exponentials are tried
EXACT = 1e-26  # of unit variance, left over: less is rounding, and no better
LAGS = (1, 2)  # at which a column that the fit leaves over may be seen to be no noise: any pair is, at one of them
LEVEL = 1e-10  # of the largest number in a column: what moves less may be rounding
LOWER = 1e-9  # by which a BIC must be lower to be
AT_REST = 1e-14  # of the largest sample: what moves less does not
GONE = 1e-3  # eigenvalues below this are noise: nothing is left of them after a step
REAL = 1e-9  # imaginary parts below this are none
STEEPEST = (-5.0, 20.0, 0.5)  # growth a step at the start of a fit: at least; at most in all, and a step more
TINY = 1e-150  # no column is divided by less
DEPENDENT = 1e-12  # of the largest eigenvalue of a Gram matrix: directions below it are not known
FLAT = 1e-10  # the same of singular values of a Jacobian
COLOURED = 0.99  # what is left over counts as correlated by at most this much
RANGE = (-700.0, 50.0)  # of exponents that are foretold: e^709 is the largest number there is


@dataclass(frozen=True)
class Exponentials:
    """log lambda = growth + i angle for each; `paired` stands for its conjugate too, `flipped` is negative."""

    growth: Array
    angle: Array
    paired: NDArray[np.bool_]
    flipped: NDArray[np.bool_]
    error: Array  # standard error of `growth`
    drift: Array  # by how much `growth` differs between the halves of the runs, beyond its errors there
    amplitude: Array  # root mean square of each term over the data, in units of the data's
    rest: Array  # (runs, directions): u
    rest_error: float  # root mean square standard error of u
    aside: float  # how far from zero the data stay in the directions in which they hardly move; 0: as far as is known
    noise: float  # root mean square of what is left over, in units of the data's
    foretold: float  # the same on samples that were not fitted, in units of what the fit left over; at best about 1
    explained: float  # share of the variance of those samples that was foretold
    length: int  # samples of the longest trajectory
    scale: float  # by which the data were divided
    unseen: float = 0.0  # share of a column's own spread that is left over and is no white noise, of the worst column

    @property
    def eigenvalues(self) -> NDArray[Any]:
        """One of each conjugate pair, a step of the data each."""
        return np.exp(self.growth + 1j * self.angle) * np.where(self.flipped, -1.0, 1.0)


def fit_exponentials(trajectories: list[Array]) -> Exponentials | None:
    """The best fit, None where nothing moves or too few samples are there to tell."""
    prepared = _prepared(trajectories)
    if prepared is None:
        return None
    runs, aside, scale, stride = prepared
    total, longest = sum(z.size for z in runs), max(len(z) for z in runs)
    best, lowest, tried = None, np.inf, 0
    V = _singular_vectors(runs)
    for order in range(1, min(MOST, V.shape[1]) + 1):
        start = _shift_invariant(V, order, runs[0].shape[1], longest)
        if start is None:
            continue
        unknowns = start.vector.size + len(runs) * runs[0].shape[1] * (1 + int(np.sum(1 + start.paired)))
        if total < DETERMINED * unknowns:
            break
        terms, left = refined(runs, start, ROUGH)
        criterion = total * np.log(max(left / total, EXACT)) + unknowns * np.log(total)
        tried += 1
        if criterion < lowest - LOWER:
            best, lowest, tried = (terms, left, unknowns), criterion, 0
        if tried >= PATIENCE:
            break
    if best is None:
        return None
    terms = refined(runs, best[0])[0]
    found = _described(runs, terms, best[2], scale, stride)
    return replace(found, aside=aside, unseen=_unseen(_thinned(trajectories)[0], terms))


def in_own_units(trajectories: list[Array]) -> list[Array]:
    """Every column that moves, divided by its spread."""
    stacked = np.concatenate(trajectories)
    spread = np.where(_moving(stacked), stacked.std(axis=0), 1.0)
    return [z / spread for z in trajectories]


def _moving(stacked: Array) -> NDArray[np.bool_]:
    """Which columns move by more than their rounding."""
    return stacked.std(axis=0) > LEVEL * np.abs(stacked).max(axis=0)


def _unseen(runs: list[Array], terms: Terms) -> float:
    """Of what these exponentials leave over of each column: the largest share of its spread that is no white noise."""
    stacked = np.concatenate(runs)
    moving = _moving(stacked)
    if not np.any(moving):
        return 0.0
    left = []
    for z in in_own_units([z[:, moving] for z in runs]):
        Phi = terms.columns(len(z))[0]
        left.append(z - Phi @ np.linalg.lstsq(Phi, z, rcond=DEPENDENT)[0])
    power = sum(np.sum(r**2, axis=0) for r in left) + TINY
    lagged = [np.abs(sum(np.sum(r[k:] * r[:-k], axis=0) for r in left)) / power for k in LAGS]
    coloured = np.max(lagged, axis=0) > DOUBTED / np.sqrt(len(stacked))
    return float(np.max(np.where(coloured, np.sqrt(power / len(stacked)), 0.0)))


def _prepared(trajectories: list[Array]) -> tuple[list[Array], float, float, int] | None:
    """(principal directions of the thinned runs, what is beside them, the unit of both, the thinning)."""
    runs, largest, stride = _thinned(trajectories)
    if not runs:
        return None
    stacked = np.concatenate(runs)
    moving = np.concatenate([z - z[0] for z in runs])
    if not np.any(np.abs(moving) > AT_REST):
        return None
    mean = stacked.mean(axis=0)
    spread = stacked - mean
    s, Vt = np.linalg.svd(spread, full_matrices=False)[1:]
    keep = min(MOST_DIRECTIONS, int(np.sum(s**2 > ENERGY * np.sum(s**2))))
    size = np.sqrt(np.sum(s[:keep] ** 2) / (len(spread) * keep))
    beside = mean - (mean @ Vt[:keep].T) @ Vt[:keep]
    aside = float(np.linalg.norm(beside)) / np.sqrt(keep)
    if aside <= ASIDE * np.sqrt(np.sum(s[keep:] ** 2) / len(spread)) + ROUNDING:
        aside = 0.0
    return [z @ Vt[:keep].T / size for z in runs], aside / float(size), largest * float(size), stride


def _thinned(trajectories: list[Array]) -> tuple[list[Array], float, int]:
    """(the runs that are fitted, in units of the largest number in them; that number; the thinning)."""
    runs = sorted((np.asarray(z, float) for z in trajectories), key=len, reverse=True)[:MOST_RUNS]
    largest = max(float(np.abs(z).max()) for z in runs)
    stride = -(-len(runs[0]) // MOST_SAMPLES)
    return [z[::stride] / largest for z in runs if len(z) >= FEWEST * stride] if largest > 0 else [], largest, stride


def _singular_vectors(runs: list[Array]) -> Array:
    """Right singular vectors of the Hankel matrix, strongest first."""
    d, longest = runs[0].shape[1], max(len(z) for z in runs)
    q = max(2, min(WINDOW // d, longest // 3))
    rows = [np.lib.stride_tricks.sliding_window_view(z, (q, d)).reshape(-1, q * d) for z in runs if len(z) >= q]
    H = np.concatenate(rows)
    return np.linalg.svd(H, full_matrices=False)[2].T


def _shift_invariant(V: Array, order: int, d: int, length: int) -> Terms | None:
    """The exponentials of the leading `order` vectors; None where a conjugate pair is cut in two."""
    U = V[:, :order]
    if len(U) - d < order:
        return None
    w = np.linalg.eigvals(np.linalg.lstsq(U[:-d], U[d:], rcond=None)[0])
    w = w[np.abs(w) > GONE]
    upper, real = w[w.imag > REAL], w[np.abs(w.imag) <= REAL].real
    if np.sum(w.imag < -REAL) != upper.size:
        return None
    real = real[(real < 0) | (np.abs(np.log(np.abs(real))) * length > STILL)]
    every = np.r_[upper, real]
    if not every.size:
        return None
    least, most, more = STEEPEST
    growth = np.clip(np.log(np.abs(every)), least, most / length + more)
    paired = np.r_[np.ones(upper.size, bool), np.zeros(real.size, bool)]
    return Terms(growth, np.where(paired, np.angle(every), 0.0), paired, ~paired & (every.real < 0))


def _described(runs: list[Array], terms: Terms, unknowns: int, scale: float, stride: int) -> Exponentials:
    variance, widened, errors, B = _uncertainty(runs, terms, unknowns)
    shares, rests, rest_errors = [], [], []
    for z, b in zip(runs, B, strict=True):
        Phi, where = terms.columns(len(z))
        shares.append([np.sum((Phi[:, c : c + w] @ b[c : c + w]) ** 2) for c, w in where])
        rests.append(b[0])
        rest_errors += [widened * _rest_variance(Phi, where, b[:, d], terms.paired) for d in range(b.shape[1])]
    foretold, explained = _foretold(runs, terms, variance)
    total = sum(z.size for z in runs)
    amplitude = np.sqrt(np.sum(shares, axis=0) / total)
    errors = np.maximum(
        errors, ROUNDING * np.maximum(1.0, amplitude)
    )  # one much larger than the data
    errors = errors * max(1.0, foretold)  # where samples not fitted are further off, what is left over is no noise
    known = max(float(np.sqrt(max(0.0, np.mean(rest_errors)))), ROUNDING * max(float(np.abs(z).max()) for z in runs))
    return Exponentials(
        terms.growth / stride, terms.angle / stride, terms.paired, terms.flipped, errors / stride,
        _drift(runs, terms) / stride, amplitude, np.array(rests),
        known, 0.0, float(np.sqrt(variance)), foretold, explained,
        max(len(z) for z in runs) * stride, scale,
    )  # fmt: skip


def _rest_variance(Phi: Array, where: list[tuple[int, int]], b: Array, paired: NDArray[np.bool_]) -> float:
    """Variance of u beside unit noise, when the exponentials are as unknown as their amplitudes."""
    l = np.arange(len(Phi))
    slopes = [l * (Phi[:, c : c + w] @ b[c : c + w]) for c, w in where]
    slopes += [l * (Phi[:, c] * b[c + 1] - Phi[:, c + 1] * b[c]) for (c, _), p in zip(where, paired, strict=True) if p]
    M = np.column_stack([Phi, *slopes])
    M = M / np.maximum(np.linalg.norm(M, axis=0), TINY)
    return float(np.linalg.pinv(M.T @ M, rcond=DEPENDENT)[0, 0]) / len(Phi)


def _uncertainty(runs: list[Array], terms: Terms, unknowns: int) -> tuple[float, float, Array, list[Array]]:
    """(variance of what is left over, the same widened for its colour, errors of the growths, amplitudes)."""
    r, J, B = residual(runs, terms)
    left = float(r @ r)
    variance = left / max(r.size - unknowns, 1)
    lagged, at = 0.0, 0
    for z in runs:
        part = r[at : at + z.size].reshape(z.shape)
        lagged, at = lagged + float(np.sum(part[1:] * part[:-1])), at + z.size
    colour = float(np.clip(lagged / left if left > 0 else 0.0, 0.0, COLOURED))
    widened = variance * (1 + colour) / (1 - colour)
    size = np.maximum(np.linalg.norm(J, axis=0), TINY)
    covariance = widened * np.linalg.pinv((J / size).T @ (J / size)) / np.outer(size, size)
    return variance, widened, np.sqrt(np.abs(np.diag(covariance))[: terms.growth.size]), B


def _drift(runs: list[Array], terms: Terms) -> Array:
    """By how much the growths in the two halves of the runs differ beyond their errors: zero for true exponentials.

    A step of Newton's method from the common fit is enough to see it, and is not lost where a half is noise alone.
    """
    found = []
    for half in ([z[: len(z) // 2] for z in runs], [z[len(z) // 2 :] for z in runs]):
        if min(len(z) for z in half) < FEWEST:
            return np.full(terms.growth.size, np.inf)
        unknowns = terms.vector.size + len(half) * half[0].shape[1] * (1 + int(np.sum(1 + terms.paired)))
        try:
            r, J, _ = residual(half, terms)
            step = -np.linalg.lstsq(J, r, rcond=FLAT)[0]
            found.append((step[: terms.growth.size], _uncertainty(half, terms, unknowns)[2]))
        except np.linalg.LinAlgError:
            return np.full(terms.growth.size, np.inf)
    (first, e1), (second, e2) = found
    return np.maximum(np.abs(first - second) - DOUBTED * np.hypot(e1, e2), 0.0)


def _foretold(runs: list[Array], terms: Terms, variance: float) -> tuple[float, float]:
    """How well a fit to the first part of each run foretells the rest of it."""
    cut = [max(FEWEST, int(SHARE * len(z))) for z in runs]
    early = [z[:c] for z, c in zip(runs, cut, strict=True)]
    terms, left = refined(early, terms)
    if not np.isfinite(left):
        return np.inf, 0.0
    amplitudes = residual(early, terms)[2]
    wrong, seen, count = 0.0, 0.0, 0
    for z, c, B in zip(runs, cut, amplitudes, strict=True):
        late = z[c:]
        if not len(late):
            continue
        Phi = _continued(terms, c, len(z))
        wrong += float(np.sum((late - Phi @ B) ** 2))
        seen += float(np.sum((late - z.mean(axis=0)) ** 2))
        count += late.size
    left = float(np.sqrt(wrong / max(count, 1)))
    return left / max(float(np.sqrt(variance)), ROUNDING), 1.0 - wrong / seen if seen > 0 else 0.0


def _continued(terms: Terms, fitted: int, m: int) -> Array:
    """The columns of the first `fitted` samples, in their units, on samples `fitted` to m."""
    l = np.arange(fitted, m)
    out = [np.ones(l.size)]
    for g, a, pair, flip in zip(terms.growth, terms.angle, terms.paired, terms.flipped, strict=True):
        size = np.exp(np.clip(g * (l - (fitted - 1 if g > 0 else 0)), *RANGE))
        alone = np.where(l % 2, -size, size) if flip else size
        out += [size * np.cos(a * l), size * np.sin(a * l)] if pair else [alone]
    return np.column_stack(out)
