"""How much the entries of a matrix are to be believed.

`noise` is relative: A = A0 + E with ||E||_F <= noise ||A||_F. Left out, it is the rounding of the entries' own type,

    float16, float32, complex64     2 eps of that type       about 2e-3, 2.4e-7
    float64, complex128, integers   64 n eps64               about 1.4e-14 n

and nothing else: float64 entries that happen to be float32 numbers are believed to all their digits, with a hint in
the reasons. The float64 floor applies to any `noise` given: computing a Schur form costs that much.

Rounding is relative to each entry, so it stays what it is in other units. A matrix whose observables come in very
different units is therefore balanced first: D^-1 A D with powers of two on the diagonal of D, which is exact
(Osborne 1960; Parlett & Reinsch 1969). Rows that nothing couples back to, where LAPACK leaves the units alone, are
brought down to the size of the diagonal. A noise that was given is one in the units given: then nothing is balanced.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

EPS64 = float(np.finfo(np.float64).eps)
FEW_BITS = 12  # numbers that fit in so many binary digits were written down, not rounded
SWEEPS = 12
WORTH = 0.7  # a change of units must bring row and column together below this share of what they were
GAIN = 0.25  # and all of them the norm of the matrix below this share; else it stays in the units given
ONE_WAY = 0.1  # of the largest entry on the diagonal: what a coupling that nothing answers is measured against
ROWS = 64 * EPS64  # rounding, relative to ||A|| and for each row
SMALLEST = 1e-120  # of a diagonal that units are measured against: what it balances to can be squared
APART = 1e-290  # units further apart than this are not exact
SINGLE = "All entries are float32 numbers; if they were rounded to that, say so with noise=2.4e-7."


@dataclass(frozen=True)
class Noise:
    """The relative noise, where it comes from, and whether someone declared it."""

    level: float
    source: str
    declared: bool
    rounding: bool  # nothing but float64 rounding, whose bound is far from attained


def effective_noise(A: NDArray[Any], noise: float | None) -> Noise:
    """The relative noise to use, and in words where it comes from."""
    floor = ROWS * len(A)
    if noise is not None:
        if not isinstance(noise, Real) or not np.isfinite(noise) or not 0 <= noise < 1:
            raise ValueError(f"noise must be a number in [0, 1), relative to ||A||; got {noise!r}")
        if noise >= floor:
            return Noise(float(noise), "as given", declared=True, rounding=False)
        return Noise(floor, "float64 rounding, more than was given", declared=True, rounding=True)
    if A.dtype in (np.float16, np.float32, np.complex64):
        level = max(2 * float(np.finfo(A.dtype).eps), floor)
        return Noise(level, f"the entries are {A.dtype} numbers", declared=False, rounding=False)
    return Noise(floor, "float64 rounding", declared=False, rounding=True)


def could_be_float32(A: NDArray[Any]) -> bool:
    """Whether float64 entries are all float32 numbers and some of them need most of its digits."""
    parts = np.concatenate([np.real(A).ravel(), np.imag(A).ravel()]) if np.iscomplexobj(A) else A.ravel()
    with np.errstate(over="ignore", under="ignore"):
        if not np.array_equal(parts.astype(np.float32).astype(np.float64), parts):
            return False
    mantissa, _ = np.frexp(parts)
    scaled = mantissa * 2.0**FEW_BITS
    return bool(np.any(scaled != np.round(scaled)))


def balanced(A: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """(D^-1 A D, the diagonal of D), powers of two; D is all ones where that gains nothing."""
    n = len(A)
    size = np.abs(A)
    floor = ONE_WAY * max(float(np.diagonal(size).max()), SMALLEST)
    size = size.copy()
    np.fill_diagonal(size, 0.0)
    exponent = np.zeros(n, dtype=int)
    for _ in range(SWEEPS):
        moved = False
        for i in range(n):
            column, row = np.hypot(size[:, i].max(), floor), np.hypot(size[i].max(), floor)
            shift = round(0.5 * (np.log2(row) - np.log2(column)))  # their ratio may underflow
            if shift and column * 2.0**shift + row * 2.0**-shift < WORTH * (column + row):
                exponent[i] += shift
                size[:, i] *= 2.0**shift
                size[i] *= 2.0**-shift
                moved = True
        if not moved:
            break
    D = 2.0 ** (exponent - exponent.max())
    if not exponent.any() or not np.all(D > APART):
        return A, np.ones(n)
    scaled = A * D / D[:, None]
    back = scaled * D[:, None] / D
    smaller = float(np.linalg.norm(scaled)) < GAIN * float(np.linalg.norm(A))
    return (scaled, D) if smaller and np.array_equal(back, A) else (A, np.ones(n))
