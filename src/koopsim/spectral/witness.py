"""A matrix within the noise that has the verdict exactly.

"What may be on the unit circle is on it" is an assumption about each cluster. That all of them can be there at
once, within the noise, is a claim about one matrix A + E:

    W_i E V_i = D_i,     D_i = what the block B_i is taken to be - B_i,     for every cluster on the circle

- E = sum of V_i D_i W_i meets this, and puts the clusters there exactly, but pays ||P_i|| for each.
- The smallest E that meets it is W^H L V^H, L block diagonal, from a Gram matrix. It puts the clusters there to
  first order; what is missing is small, and added the first way on the clusters of A + E.

The angle of a rotation is free: only its modulus is taken to be 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag, cho_factor, cho_solve, polar

from .clusters import extract, schur_form
from .noise import EPS64
from .resolvent import Complex
from .structure import Finding

LARGEST_GRAM = 1600  # conditions, k_i^2 for each cluster; beyond that only the first E is tried


class Condition(NamedTuple):
    """W E V = D + theta turn, for some real theta."""

    V: Complex
    W: Complex
    D: Complex
    turn: Complex  # zero where the eigenvalue is given, not only its modulus


def witness_distance(
    T: Complex, Q: Complex, conjugate: NDArray[np.intp] | None, findings: list[Finding], mirrored: list[bool],
    enough: float,
) -> float:  # fmt: skip
    """An upper bound, in Frobenius norm, on the distance to a matrix with all these clusters on the circle.

    `mirrored`: the cluster stands for its complex conjugate too. The quick bound is returned when below `enough`.
    """
    conditions = []
    for f, both in zip(findings, mirrored, strict=True):
        one = condition(f.kind, f.eigenvalue, f.block.V, f.block.W, f.block.B)
        conditions += [one, Condition(*(M.conj() for M in one))] if both else [one]
    if not conditions:
        return 0.0
    quick = float(np.linalg.norm(sum(c.V @ c.D @ c.W for c in conditions)))
    normal = np.count_nonzero(T) == np.count_nonzero(np.diagonal(T))  # then the first E is the smallest
    if quick <= enough or normal or sum(c.D.size for c in conditions) > LARGEST_GRAM:
        return quick
    E = smallest(conditions)
    if not np.all(np.isfinite(E)):
        return quick
    A = Q @ T @ Q.conj().T + E
    T, Q, _ = schur_form(A if conjugate is None else np.real(A))
    left, rounding = dict(enumerate(np.diag(T))), len(T) * EPS64 * float(np.linalg.norm(T))
    for f, both in zip(findings, mirrored, strict=True):
        chosen = sorted(left, key=lambda i, mu=f.eigenvalue: abs(left[i] - mu))[: len(f.block.indices)]
        for i in chosen:
            del left[i]
        block = extract(T, Q, tuple(chosen))
        _, _, D, _ = condition(f.kind, f.eigenvalue, block.V, block.W, block.B)
        if np.linalg.norm(D) > rounding * block.norm:  # else it is there, as far as a Schur form can tell
            term = block.V @ D @ block.W
            E = E + (term + term.conj() if both else term)
    distance = float(np.linalg.norm(E))
    return min(quick, distance) if np.isfinite(distance) else quick


def condition(kind: str, eigenvalue: complex, V: Complex, W: Complex, B: Complex) -> Condition:
    """What puts a block on the circle: at 1 or -1, at its own angle, or at a unitary matrix."""
    one = np.eye(len(B))
    if kind == "torus":
        target = np.asarray(polar(B)[0])
    elif kind == "rotating":
        mean = np.trace(B) / len(B)
        target = mean / abs(mean) * one
    else:
        target = eigenvalue * one
    return Condition(V, W, target - B, 1j * target if kind == "rotating" else np.zeros_like(B))


def smallest(conditions: list[Condition]) -> Complex:
    """The E of least ||E||_F that meets the conditions; infinite where they are not independent."""
    V, W = np.hstack([c.V for c in conditions]), np.vstack([c.W for c in conditions])
    sizes = [len(c.D) for c in conditions]
    starts = np.cumsum([0, *sizes[:-1]])
    row = np.concatenate([np.repeat(np.arange(k), k) + s for k, s in zip(sizes, starts, strict=True)])
    column = np.concatenate([np.tile(np.arange(k), k) + s for k, s in zip(sizes, starts, strict=True)])
    gram = (W @ W.conj().T)[np.ix_(row, row)] * (V.conj().T @ V)[np.ix_(column, column)].T
    d = np.concatenate([c.D.ravel() for c in conditions])
    turns: Any = block_diag(*(c.turn.reshape(-1, 1) for c in conditions))
    turns = turns[:, np.any(turns != 0, axis=0)]
    try:
        solved = cho_solve(cho_factor(gram), np.column_stack([d, turns]))
    except np.linalg.LinAlgError:
        return np.full((V.shape[0],) * 2, np.inf)
    normal = (turns.conj().T @ solved[:, 1:]).real
    theta = np.linalg.lstsq(normal, -(turns.conj().T @ solved[:, 0]).real, rcond=None)[0]
    L = np.zeros((len(W), len(W)), complex)
    L[row, column] = solved[:, 0] + solved[:, 1:] @ theta
    return W.conj().T @ L @ V.conj().T


def jordan_distance(f: Finding, real: bool) -> float | None:
    """The same for one Jordan block of size 2, to first order; None for larger ones, where none is looked for.

    Two numbers of the block B have to change: its mean, to what it is taken to be, and its discriminant, to zero.
    Both are linear in E to first order, with the slopes G: tr(G^T W E V). `real`: E must be.
    """
    V, W, B = f.block.V, f.block.W, f.block.B
    if len(B) != 2:
        return None
    mean, half = np.trace(B) / 2, (B[0, 0] - B[1, 1]) / 2
    slopes = np.eye(2) / 2, np.array([[half, B[1, 0]], [B[0, 1], -half]])
    F = np.array([(W.T @ G @ V.T).ravel() for G in slopes])
    turning = f.eigenvalue.imag != 0  # then the angle is free, and only the modulus of the mean is given
    d = np.array([f.eigenvalue - mean, -(half**2 + B[0, 1] * B[1, 0])])
    if turning:
        turn = (mean / abs(mean)).conjugate()
        F[0], d[0] = turn * F[0], 1 - abs(mean)
    size = np.maximum(np.linalg.norm(F, axis=1), np.finfo(float).tiny)
    F, d = F / size[:, None], d / size
    if real:
        skip = 1 if turning else 0
        F, d = np.vstack([F.real, F.imag[skip:]]), np.r_[d.real, d.imag[skip:]]
    return float(np.linalg.norm(np.linalg.lstsq(F, d, rcond=1e-8)[0]))
