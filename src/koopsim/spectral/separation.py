"""How far two triangular blocks are from sharing an eigenvalue, as noise sees it: never more than it is.

    sep(T11, T22) = min over X of ||T11 X - X T22||_F / ||X||_F

Small operators are written out and given to an SVD. For large ones row i of T11 X - X T22 = C is

    x_i (t_ii I - T22) = c_i - sum over j > i of t_ij x_j,      s_i = ||(t_ii I - T22)^-1||,

so ||x_i|| <= s_i (||c_i|| + sum |t_ij| ||x_j||): with S = diag(s) and N the moduli of T11 above its diagonal,
1 / sep <= ||(I - S N)^-1 S||. An eigenvalue alone has sep = 1 / s_1.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from .resolvent import Allowance, Complex, smallest_singular_values

WRITTEN_OUT = 256  # unknowns up to which an SVD of the whole operator is cheaper


def separation(T11: Complex, T22: Complex, allowance: Allowance | None = None) -> float:
    """A lower bound of the smallest singular value of X -> T11 X - X T22; 0 where the allowance is spent."""
    k, rest = len(T11), len(T22)
    if k > rest:  # the same operator, adjoint and with the blocks exchanged
        T11, T22, k, rest = T22[::-1, ::-1].T, T11[::-1, ::-1].T, rest, k
    if k > 1 and k * rest <= WRITTEN_OUT:
        operator = np.kron(np.eye(rest), T11) - np.kron(T22.T, np.eye(k))
        return float(np.linalg.svd(operator, compute_uv=False)[-1])
    if allowance is not None and not all(allowance.spend(rest) for _ in range(k)):
        return 0.0
    smallest = smallest_singular_values(T22, np.diag(T11))
    if k == 1 or smallest.min() == 0.0:
        return float(smallest.min())
    S = np.diag(1.0 / smallest)
    with np.errstate(over="ignore"):
        bound = solve_triangular(np.eye(k) - S @ np.abs(np.triu(T11, 1)), S)
    size = float(np.linalg.norm(bound, 2)) if np.all(np.isfinite(bound)) else np.inf
    return 1.0 / size
