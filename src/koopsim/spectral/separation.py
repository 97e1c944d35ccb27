"""How far two triangular blocks are from sharing an eigenvalue, as noise sees it.

    sep(T11, T22) = min over X of ||T11 X - X T22||_F / ||X||_F

Small operators are written out and given to an SVD. Large ones are solved: the power method on the inverse and
its adjoint finds 1 / sep from below, to about a percent.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .resolvent import LAPACK, Complex, smallest_singular_values

WRITTEN_OUT = 64  # unknowns up to which an SVD of the whole operator is cheaper
NARROW = 6  # rows up to which a triangular solve for each is quicker than LAPACK's trsyl
STEPS = 12

Solve = Callable[[Complex], Complex]


def separation(T11: Complex, T22: Complex) -> float:
    """The smallest singular value of X -> T11 X - X T22."""
    k, rest = T11.shape[0], T22.shape[0]
    if k == 1:
        return float(smallest_singular_values(T22, T11.ravel())[0])
    if k * rest <= WRITTEN_OUT:
        operator = np.kron(np.eye(rest), T11) - np.kron(T22.T, np.eye(k))
        return float(np.linalg.svd(operator, compute_uv=False)[-1])
    solve, solve_adjoint = _by_rows(T11, T22) if k <= NARROW else _by_trsyl(T11, T22)
    X = np.exp(1j * np.arange(k * rest) ** 2).reshape(k, rest) / np.sqrt(k * rest)
    growth = 0.0
    for _ in range(STEPS):
        Z = solve(solve_adjoint(X))
        size = float(np.linalg.norm(Z))
        if not 0.0 < size < 1e150:
            return 0.0
        before, growth = growth, np.sqrt(size)
        X = Z / size
        if abs(growth - before) <= 1e-2 * growth:
            break
    return float(1.0 / growth)


def _by_trsyl(T11: Complex, T22: Complex) -> tuple[Solve, Solve]:
    def solve(C: Complex, conjugate: str = "N") -> Complex:
        X, scale, _ = LAPACK.ztrsyl(T11, T22, C, trana=conjugate, tranb=conjugate, isgn=-1)
        return X / scale if scale > 1e-150 else np.full_like(X, np.inf)

    return solve, lambda C: solve(C, "C")


def _by_rows(T11: Complex, T22: Complex) -> tuple[Solve, Solve]:
    """Row i of T11 X - X T22 = C is x_i (t_ii I - T22) = c_i - sum over j > i of t_ij x_j; last row first."""
    k, diagonal = T11.shape[0], np.diag_indices(T22.shape[0])
    shifted = []
    for i in range(k):
        M = np.array(-T22, order="F")
        M[diagonal] += T11[i, i]
        shifted.append(M)

    def row(i: int, c: Complex, trans: int) -> Complex:
        x, failed = LAPACK.ztrtrs(shifted[i], c, trans=trans)
        return np.full_like(x, np.inf) if failed else x

    def solve(C: Complex) -> Complex:
        X = np.empty_like(C)
        for i in reversed(range(k)):
            X[i] = row(i, C[i] - T11[i, i + 1 :] @ X[i + 1 :], 1)
        return X

    def solve_adjoint(C: Complex) -> Complex:  # T11^H X - X T22^H = C, first row first
        X = np.empty_like(C)
        for i in range(k):
            X[i] = row(i, (C[i] - T11[:i, i].conj() @ X[:i]).conj(), 0).conj()
        return X

    return solve, solve_adjoint
