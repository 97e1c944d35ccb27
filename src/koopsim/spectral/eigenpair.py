"""One eigenvalue of a large triangular matrix, without moving the others.

    T x = lambda x,   y T = lambda y,   ||x|| = 1,   y x = 1,      P = x y,   ||P|| = ||y||

Both vectors come by substitution. Reordering the Schur form (`clusters.py`) gives the same, but touches all of
T: with hundreds of eigenvalues on the circle that is the whole cost. The separation from the rest is

    sep = 1 / ||K^-1||,    K = T - lambda I seen from x-perp to x-perp,
    K^-1 b = the solution of (T - lambda I) u = b - x (y b), less its part along x,

and the power method on K^-1 K^-H needs triangular solves only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .resolvent import LAPACK, Complex

STEPS = 12  # of the power method; it stops when a step changes the estimate by less than a percent


class Eigenpair(NamedTuple):
    """Right and left vector of one eigenvalue, scaled as above; `norm` is infinite where they are orthogonal."""

    x: Complex
    y: Complex
    norm: float
    separation: float


def eigenpair(T: Complex, i: int) -> Eigenpair:
    """x, y, ||P|| and sep of the i-th eigenvalue of the upper triangular T."""
    n = T.shape[0]
    M = np.array(T, order="F")
    M[np.diag_indices(n)] -= T[i, i]
    x, y = np.zeros(n, complex), np.zeros(n, complex)
    x[i] = y[i] = 1.0  # x is zero below i and y above it, so y x = 1
    failed = 0
    if i:
        x[:i], failed = LAPACK.ztrtrs(M[:i, :i], -T[:i, i])
    if i + 1 < n and not failed:
        y[i + 1 :], failed = LAPACK.ztrtrs(M[i + 1 :, i + 1 :], -T[i, i + 1 :], trans=1)
    if failed or not (np.abs(x).max() < 1e150 and np.abs(y).max() < 1e150):
        return Eigenpair(x, y, np.inf, 0.0)
    size = np.linalg.norm(x)
    x, y = x / size, y * size
    M[i, :] = M[:, i] = 0.0
    M[i, i] = 1.0  # of the solutions, the one with u_i = 0
    return Eigenpair(x, y, float(np.linalg.norm(y)), _separation(M, x, y, i))


def _separation(M: Complex, x: Complex, y: Complex, i: int) -> float:
    """1 / ||K^-1||; M is T - lambda I with row and column i taken out of it."""
    n = x.size
    b = np.exp(1j * np.arange(n) ** 2) / np.sqrt(n)  # any start that is orthogonal to nothing in particular
    growth = 0.0
    for _ in range(STEPS):
        b = b - x * (x.conj() @ b)
        b[i] = 0.0
        u = LAPACK.ztrtrs(M, b, trans=2)[0]
        u = u - y.conj() * (x.conj() @ u)  # K^-H b
        u = u - x * (y @ u)
        u[i] = 0.0
        v = LAPACK.ztrtrs(M, u)[0]
        v = v - x * (x.conj() @ v)  # K^-1 K^-H b
        size = float(np.linalg.norm(v))
        if not 0.0 < size < 1e300:
            return 0.0
        before, growth = growth, np.sqrt(size)
        b = v / size
        if abs(growth - before) <= 1e-2 * growth:
            break
    return 1.0 / float(growth)
