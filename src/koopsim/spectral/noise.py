"""How much the entries of a matrix are to be believed.

`noise` is relative: A = A0 + E with ||E||_F <= noise ||A||_F. Left out, it is read off the entries:

    float32, or float64 whose entries are all float32 numbers    2 eps32         about 2.4e-7
    other float64                                                64 n eps64      about 1.4e-14 n

Integers, halves, quarters and other numbers of few binary digits are float32 numbers too; a matrix of those
alone was written down, not rounded, and counts as float64. The float64 floor applies to any `noise` given:
computing a Schur form costs that much.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

EPS32 = float(np.finfo(np.float32).eps)
EPS64 = float(np.finfo(np.float64).eps)
FEW_BITS = 12  # numbers that fit in so many binary digits are taken as exact


def effective_noise(A: NDArray[Any], noise: float | None) -> tuple[float, str]:
    """The relative noise to use, and in words where it comes from."""
    floor = 64 * A.shape[0] * EPS64
    if noise is not None:
        if isinstance(noise, complex) or not np.isfinite(noise) or not 0 <= noise < 1:
            raise ValueError(f"noise must be a number in [0, 1), relative to ||A||; got {noise!r}")
        return max(float(noise), floor), "as given" if noise >= floor else "float64 rounding, more than was given"
    if looks_like_float32(A):
        return max(2 * EPS32, floor), "the entries are float32 numbers"
    return floor, "float64 rounding"


def looks_like_float32(A: NDArray[Any]) -> bool:
    """Whether all entries are float32 numbers and some of them need most of its digits."""
    if A.dtype in (np.float16, np.float32, np.complex64):
        return True
    parts = np.concatenate([np.real(A).ravel(), np.imag(A).ravel()]) if np.iscomplexobj(A) else A.ravel()
    parts = parts.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        same = np.array_equal(parts.astype(np.float32).astype(np.float64), parts)
    if not same:
        return False
    mantissa, _ = np.frexp(parts)
    scaled = mantissa * 2.0**FEW_BITS
    return bool(np.any(scaled != np.round(scaled)))
