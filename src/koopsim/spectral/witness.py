"""A matrix within the noise that has the verdict exactly.

"What may be on the unit circle is on it" is an assumption about each cluster. That all of them can be there at
once, within the noise, is a claim about one matrix A + E:

    W_i E V_i = D_i,     D_i = what the block B_i is taken to be - B_i,     for every cluster on the circle

- E = sum of V_i D_i W_i meets this exactly, but pays ||P_i|| for each cluster.
- The smallest E has the form sum of W_i^H L_i V_i^H, the L_i from a Gram matrix. It is right to first order; the
  clusters are isolated well enough (`clusters.py`) that a fifth of the noise is kept for the rest.

The angle of a rotation is free: only its modulus is taken to be 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag, cho_factor, cho_solve, polar

from .resolvent import Complex
from .structure import Finding

FIRST_ORDER = 1.25  # factor on a distance that holds to first order
LARGEST_GRAM = 1600  # conditions, k_i^2 for each cluster; beyond that only the first E is tried


def witness_distance(findings: list[Finding], mirrored: list[bool], enough: float) -> float:
    """An upper bound, in Frobenius norm, on the distance to a matrix with all these clusters on the circle.

    `mirrored`: the cluster stands for its complex conjugate too. The quick bound is returned when below `enough`.
    """
    conditions = [
        c for f, both in zip(findings, mirrored, strict=True) for c in ((_condition(f), _condition(f, True))[: 1 + both])
    ]
    if not conditions:
        return 0.0
    V, W = np.hstack([c.V for c in conditions]), np.vstack([c.W for c in conditions])
    quick = float(np.linalg.norm(np.hstack([c.V @ c.D for c in conditions]) @ W))
    if quick <= enough or sum(c.D.size for c in conditions) > LARGEST_GRAM:
        return quick
    return min(quick, FIRST_ORDER * _smallest(conditions, V, W))


class Condition(NamedTuple):
    """W E V = D + theta turn, for some real theta."""

    V: Complex
    W: Complex
    D: Complex
    turn: Complex  # zero where the eigenvalue is given, not only its modulus


def _condition(f: Finding, conjugate: bool = False) -> Condition:
    V, W, B = f.block.V, f.block.W, f.block.B
    target = np.asarray(polar(B)[0]) if f.kind == "torus" else f.eigenvalue * np.eye(len(B))
    turn = 1j * target if f.kind == "rotating" else np.zeros_like(target)
    condition = Condition(V, W, target - B, turn)
    return Condition(*(M.conj() for M in condition)) if conjugate else condition


def _smallest(conditions: list[Condition], V: Complex, W: Complex) -> float:
    """The least ||E||_F that meets the conditions: d^H G^-1 d, and the best theta."""
    sizes = [len(c.D) for c in conditions]
    starts = np.cumsum([0, *sizes[:-1]])
    row = np.concatenate([np.repeat(np.arange(k), k) + s for k, s in zip(sizes, starts, strict=True)])
    column = np.concatenate([np.tile(np.arange(k), k) + s for k, s in zip(sizes, starts, strict=True)])
    gram = (W @ W.conj().T)[np.ix_(row, row)] * (V.conj().T @ V)[np.ix_(column, column)].T
    d = np.concatenate([c.D.ravel() for c in conditions])
    T = block_diag(*(c.turn.reshape(-1, 1) for c in conditions))
    T = T[:, np.any(T != 0, axis=0)]
    try:
        solved = cho_solve(cho_factor(gram), np.column_stack([d, T]))
    except np.linalg.LinAlgError:
        return np.inf
    theta = np.linalg.lstsq((T.conj().T @ solved[:, 1:]).real, -(T.conj().T @ solved[:, 0]).real, rcond=None)[0]
    square = ((d + T @ theta).conj() @ (solved[:, 0] + solved[:, 1:] @ theta)).real
    return float(np.sqrt(max(0.0, square)))
