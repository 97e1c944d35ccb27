"""How far two triangular blocks are from sharing an eigenvalue, as noise sees it: never more than it is.

    sep(T11, T22) = min over X of ||T11 X - X T22||_F / ||X||_F

Small operators are written out and given to an SVD. For large ones there are two bounds of 1 / sep. One is for a block
whose eigenvalues are close together, T11 = mu I + N say: T11 X - X T22 = C is X = (C - N X) R, R = (mu I - T22)^-1,

    X = C R - N C R^2 + N^2 C R^3 - ... +- N^s X R^s,
    1 / sep <= (||R|| + ||N|| ||R^2|| + ... + ||N^(s-1)|| ||R^s||) / (1 - ||N^s|| ||R^s||).

The other takes one row of X after the other. Row i of T11 X - X T22 = C is

    x_i (t_ii I - T22) = c_i - sum over j > i of t_ij x_j,      s_i = ||(t_ii I - T22)^-1||,

so ||x_i|| <= s_i (||c_i|| + sum |t_ij| ||x_j||): with S = diag(s) and M the moduli of T11 above its diagonal,
1 / sep <= ||(I - S M)^-1 S||. An eigenvalue alone has sep = 1 / s_1.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from .resolvent import BLAS, DENSE, Allowance, Complex, inverse, smallest_singular_values

TERMS = 8  # of the series
SMALL = 0.1  # a rest of it that needs no further term
WRITTEN_OUT = 256  # unknowns up to which an SVD of the whole operator is cheaper


def separation(T11: Complex, T22: Complex, allowance: Allowance | None = None, enough: float = 0.0) -> float:
    """A lower bound of the smallest singular value of X -> T11 X - X T22.

    0 where the allowance is spent, or as soon as nothing as large as `enough` will come out.
    """
    if len(T11) > len(T22):  # the same operator, adjoint and with the blocks exchanged
        T11, T22 = _exchanged(T11, T22)
    k, rest = len(T11), len(T22)
    if k > 1 and k * rest <= WRITTEN_OUT:
        operator = np.kron(np.eye(rest), T11) - np.kron(T22.T, np.eye(k))
        return float(np.linalg.svd(operator, compute_uv=False)[-1])
    close = (T11, T22) if _spread(T11) <= _spread(T22) else _exchanged(T11, T22)
    bound = by_series(*close, allowance, enough) if k > 1 else 0.0
    return bound if bound and rest > DENSE else max(bound, by_rows(T11, T22, allowance, enough))


def by_series(T11: Complex, T22: Complex, allowance: Allowance | None = None, enough: float = 0.0) -> float:
    """The bound for a T11 with eigenvalues that are close together; 0 where the series does not end."""
    mu = np.trace(T11) / len(T11)
    N = T11 - mu * np.eye(len(T11))
    R = inverse(T22, mu)
    power, left, size, total = R, N, 1.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for term in range(1, TERMS + 1):
            grown = float(np.linalg.norm(power))
            total += size * grown
            size = float(np.linalg.norm(left))
            if size * grown < (SMALL if term < TERMS else 1.0):
                return (1.0 - size * grown) / total
            if not total * enough < 1.0 or (allowance is not None and not allowance.spend(len(T22))):
                return 0.0
            power, left = BLAS.ztrmm(1.0, R, power), left @ N
    return 0.0


def by_rows(T11: Complex, T22: Complex, allowance: Allowance | None = None, enough: float = 0.0) -> float:
    """The bound by the rows of X, the last ones first, for a T11 that is small or nearly diagonal."""
    k, bound = len(T11), np.inf
    smallest = np.zeros(k)
    known = k
    while known:
        first = max(0, min(known - 1, 2 * known - k))  # twice as many rows each time
        if allowance is not None and not all(allowance.spend(len(T22)) for _ in range(known - first)):
            return 0.0
        smallest[first:known] = smallest_singular_values(T22, np.diag(T11)[first:known])
        known = first
        if k == 1 or smallest[known:].min() == 0.0:
            return float(smallest.min())
        S = np.diag(1.0 / smallest[known:])
        with np.errstate(over="ignore"):
            grown = solve_triangular(np.eye(k - known) - S @ np.abs(np.triu(T11[known:, known:], 1)), S)
        bound = 1.0 / float(np.linalg.norm(grown, 2)) if np.all(np.isfinite(grown)) else 0.0
        if bound <= enough:
            return 0.0
    return bound


def _exchanged(T11: Complex, T22: Complex) -> tuple[Complex, Complex]:
    return T22[::-1, ::-1].T, T11[::-1, ::-1].T


def _spread(T: Complex) -> float:
    w = np.diag(T)
    return float(np.abs(w - w.mean()).max())
