"""A^l for any l, without powers of A.

    A^l = sum over clusters  V f_l(B) W          paper, appendix A, block by block

    on the circle, semisimple    f_l = exp(2 pi i l t)             t = angle in turns      eq. (15)
    on the circle, defective     f_l = sum_j C(l, j) mu^(l-j) N^j  N = B - mu I, N^s = 0   eq. (13), pairs: eq. (14)
    elsewhere                    f_l = B^l by scaled squaring: the logarithm of the size is carried apart

A rotation is known to as many digits as its angle: after l steps the phase is off by l times the error of
the angle. The product l t is reduced modulo one in integers, so that nothing is added to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import comb, lcm, log

import numpy as np

from .resolvent import Complex

VANISHED = -5000.0  # logarithm of a size that is zero, transients and all
NEXT_TO_NOTHING = -800.0  # the same beside another size: exp of it is zero
RECOGNISE = 1e-13  # turns: an angle is never known better than this
BY_CHANCE = 1e-4  # a fraction p / q is recognised while fewer than this share of all angles are as near to one


@dataclass(frozen=True)
class Propagator:
    """One term V f_l(B) W. `turns` is None for a block that is powered as it stands."""

    V: Complex
    W: Complex
    B: Complex
    turns: Fraction | None = None
    index: int = 1  # size of the largest Jordan block
    mirrored: bool = False  # add the complex conjugate term (real matrix, block in the upper half plane)
    error: float = 0.0  # of B

    def scaled(self, l: int) -> tuple[Complex, float]:
        """f_l(B) as (M, s) with f_l(B) = M exp(s)."""
        k = len(self.B)
        if self.turns is None:
            return scaled_power(self.B, l)
        mu = phase(self.turns)
        M, N, power = np.zeros((k, k), complex), self.B - mu * np.eye(k), np.eye(k, dtype=complex)
        top = max((log(comb(l, j)) for j in range(self.index) if j <= l), default=0.0)
        for j in range(min(self.index, l + 1)):
            M = M + np.exp(log(comb(l, j)) - top) * phase(self.turns * (l - j)) * power
            power = power @ N
        return M, top


def turns_of(mu: complex, error: float = 0.0) -> Fraction:
    """Angle of mu by atan2, in turns; a simple fraction of a turn that it may be, given its error, it is.

    Of all angles a share of about 2 q^2 e is within e of a fraction with a denominator up to q: so q is bounded.
    """
    t = Fraction(float(np.arctan2(mu.imag, mu.real) / (2 * np.pi)))
    within = max(RECOGNISE, error / (2 * np.pi))
    simple = t.limit_denominator(max(1, int((BY_CHANCE / within) ** 0.5)))
    return simple if abs(simple - t) <= within else t


def period_of(turns: list[Fraction]) -> int | None:
    """Common period of the rotations, None when one of them is not a simple fraction of a turn."""
    if not all(map(recognised, turns)):
        return None
    return lcm(*(t.denominator for t in turns)) if turns else 1


def recognised(turns: Fraction) -> bool:
    """Whether an angle was taken to be a simple fraction of a turn: its phase is then exact after any l."""
    return turns.denominator**2 * RECOGNISE <= BY_CHANCE


def phase(turns: Fraction) -> complex:
    """exp(2 pi i t), exact at multiples of a quarter turn."""
    t = turns % 1
    quarter, rest = divmod(t * 4, 1)
    return complex(np.exp(1j * np.pi / 2 * float(rest))) * (1, 1j, -1, -1j)[int(quarter)]


def scaled_power(B: Complex, l: int) -> tuple[Complex, float]:
    """B^l = M exp(s) by repeated squaring with the size kept in s."""
    k = len(B)
    M, s = np.eye(k, dtype=complex), 0.0
    square, t = B.astype(complex), 0.0
    while l:
        size = np.linalg.norm(square)
        if size == 0.0:
            return np.zeros((k, k), complex), 0.0
        square, t = square / size, t + log(size)
        if t < 0 and s + t < VANISHED:  # the powers still to come only make it smaller
            return np.zeros((k, k), complex), 0.0
        if l & 1:
            M, s = M @ square, s + t
            size = np.linalg.norm(M)
            if size == 0.0:
                return np.zeros((k, k), complex), 0.0
            M, s = M / size, s + log(size)
        square, t, l = square @ square, 2 * t, l >> 1
    return M, s


def total(terms: list[Propagator], l: int, phi0: np.ndarray | None, real: bool) -> tuple[np.ndarray, float]:
    """sum of V f_l(B) W (phi0) as (M, s): the value is M exp(s)."""
    parts: list[tuple[np.ndarray, float]] = []
    for term in terms:
        M, s = term.scaled(l)
        right = term.W if phi0 is None else term.W @ phi0
        value = term.V @ (M @ right)
        if term.mirrored:
            left = term.W.conj() if phi0 is None else term.W.conj() @ phi0
            value = value + term.V.conj() @ (M.conj() @ left)
        if np.any(value):
            parts.append((np.real(value) if real else value, s))
    if not parts:
        n = len(terms[0].V)
        shape = (n, n) if phi0 is None else (n, *phi0.shape[1:])
        return np.zeros(shape, float if real else complex), 0.0
    top = max(s for _, s in parts)
    result = sum(np.exp(max(s - top, NEXT_TO_NOTHING)) * value for value, s in parts)
    return np.asarray(result), top
