"""Samples as they come: gaps, missing values, uneven times.

    t_l = t_0 + l dt    with some l missing     the trajectory is cut at the gaps, and no pair is formed across one
    any other times                             a cubic spline through the samples, read off every dt; it is said so

A spline invents what is faster than the samples; `OptimisedDMD` takes uneven times as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

from koopsim.files.masks import unmasked

Array = NDArray[Any]
Pieces = tuple[list[Array], list[float], tuple[str, ...]]  # samples, first times, what to say of them
EVEN = 0.02  # share of dt that a clock may be off and its samples still count as even
MANY = 100  # samples, from which the clock may be off by as much more as their number's root
ALONE = 0.1  # share of dt that a single step may be off, of however many samples
GAP = 4.0  # steps without a sample that a spline is not drawn across
BENT = 4  # samples that a cubic spline is drawn through
ROUNDING = 1e-9  # of a step: a last sample that is there to this is read off


@dataclass(frozen=True)
class Regular:
    """Pieces with a sample every `dt`, and in words what was done to get them."""

    pieces: list[Array]
    starts: list[float]  # the time of each piece's first sample
    dt: float
    said: tuple[str, ...] = ()


def without_gaps(values: Any) -> list[Array]:
    """The stretches of rows that are all finite; those of a single row are left out."""
    z = np.asarray(unmasked(values))
    return [z[a:b] for a, b in whole_rows(z)]


def whole_rows(z: Array) -> list[tuple[int, int]]:
    """(first row, row after the last) of each of those stretches."""
    if len(z) < 2:
        raise ValueError(f"a trajectory needs two samples; got {len(z)}")
    whole = np.isfinite(z).all(axis=1)
    edges = np.flatnonzero(np.diff(np.r_[False, whole, False].astype(int))).tolist()
    found = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a > 1]
    if not found:
        raise ValueError(f"no two neighbouring samples of {len(z)} are without {unusable(z)}")
    return found


def unusable(z: Array) -> str:
    """In words, what of z is no number: an infinity is not a value that nobody measured."""
    kinds = {"missing": np.isnan(z).any(), "infinite": np.isinf(z).any()}
    return " or ".join(name for name, some in kinds.items() if some) + " values"


def regular(times: Any, values: Any, dt: float | None = None) -> Regular:
    """Even pieces from rows at `times`. Rows with a missing value count as not sampled; dt None: the median step."""
    t, z, said = _sampled(times, values)
    step = float(np.median(np.diff(t))) if dt is None else float(dt)
    if not step > 0:
        raise ValueError(f"dt must be > 0; got {dt}")
    counts = np.maximum(1, np.round(np.diff(t) / step))  # of steps from each sample to the next
    mean = float((t[-1] - t[0]) / counts.sum()) if dt is None else step
    if _is_even(t, counts, mean):
        step = mean
        pieces, starts, note = _between_gaps(t, z, counts > 1)
    else:
        pieces, starts, note = _splines(t, z, step)
    kept = [i for i, piece in enumerate(pieces) if len(piece) > 1]
    if not kept:
        raise ValueError("no two neighbouring samples are left between the gaps")
    alone = len(pieces) - len(kept)
    said += note + ((f"{alone} samples alone between gaps are left out",) if alone else ())
    return Regular([pieces[i] for i in kept], [starts[i] for i in kept], step, said)


def _sampled(times: Any, values: Any) -> tuple[NDArray[np.float64], Array, tuple[str, ...]]:
    """(times, rows, what to say of those that are left out), of the rows that are whole; times increase."""
    t, z = np.asarray(unmasked(times), dtype=np.float64), np.asarray(unmasked(values))
    if t.shape != (len(z),):
        raise ValueError(f"{len(z)} samples need as many times; got shape {t.shape}")
    z = z.reshape(len(z), -1)  # a single series is a column
    whole = np.isfinite(z).all(axis=1) & np.isfinite(t)
    missing = int(np.sum(~whole))
    wrong = unusable(np.column_stack([t, z])) if missing else ""
    t, z = t[whole], z[whole]
    if t.size < 2:
        raise ValueError(f"a trajectory needs two samples; {t.size} have no {wrong or 'missing values'}")
    steps = np.diff(t)
    if steps.min() <= 0:
        at = int(np.argmax(steps <= 0))
        raise ValueError(f"times must increase; {t[at + 1]:g} follows {t[at]:g}")
    return t, z, (f"{missing} rows with {wrong} are left out",) if missing else ()


def _is_even(t: NDArray[np.float64], counts: NDArray[np.float64], step: float) -> bool:
    """Whether samples so many steps apart were taken at t: all of them by the clock, and each after the one before."""
    off = np.abs((t - t[0]) / step - np.r_[0.0, counts.cumsum()]).max()
    alone = np.abs(np.diff(t) / step - 1)[counts == 1].max(initial=0.0)
    return off <= EVEN * max(1.0, np.sqrt(t.size / MANY)) and alone <= ALONE


def _between_gaps(t: NDArray[np.float64], z: Array, apart: NDArray[np.bool_]) -> Pieces:
    gaps = int(np.sum(apart))
    said = (f"{gaps} gaps; no pair is formed across one",) if gaps else ()
    return _cut(z, apart), [float(part[0]) for part in _cut(t, apart)], said


def _splines(t: NDArray[np.float64], z: Array, step: float) -> Pieces:
    """What a cubic spline has every `step`, where the samples are close enough to draw one."""
    steps = np.diff(t)
    pieces, starts, apart = [], [], steps > GAP * step
    for t_, z_ in zip(_cut(t, apart), _cut(z, apart), strict=True):
        if t_.size >= BENT:
            grid = np.arange(t_[0], t_[-1] + ROUNDING * step, step)
            pieces.append(CubicSpline(t_, z_)(grid))
            starts.append(float(t_[0]))
    uneven = f"{steps.min():.3g} to {steps.max():.3g}"
    return pieces, starts, (f"uneven times ({uneven}): a cubic spline, read off every {step:.4g}",)


def _cut(rows: Array, after: NDArray[np.bool_]) -> list[Array]:
    return np.split(rows, np.flatnonzero(after) + 1)
