"""A matrix within the noise that has the verdict exactly.

"What may be on the unit circle is on it" is an assumption about each cluster. That all of them can be there at
once, within the noise, is a claim about one matrix A + E:

    W_i E V_i = D_i,     D_i = what the block B_i is taken to be - B_i,     for every cluster on the circle

- E = sum of V_i D_i W_i meets this, and puts the clusters there exactly, but pays ||P_i|| for each.
- The smallest E that meets it is W^H L V^H, L block diagonal, from a Gram matrix. It puts the clusters there to
  first order; what is missing is small, and added the first way on the clusters of A + E.

The angle of a rotation is free: only its modulus is taken to be 1. Jordan blocks are in `jordan.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag, cho_factor, cho_solve, polar

from .clusters import Block, SchurForm, extract, schur_form
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


def witness_distance(form: SchurForm, findings: list[Finding], enough: float) -> float:
    """An upper bound, in Frobenius norm, on the distance to a matrix with all these clusters as they are taken to be.

    The quick bound is returned when below `enough`.
    """
    conditions = []
    for f in findings:
        one = condition(f, f.block)
        conditions += [one, Condition(*(M.conj() for M in one))] if form.mirrored(f.block) else [one]
    if not conditions:
        return 0.0
    quick = float(np.linalg.norm(np.hstack([c.V @ c.D for c in conditions]) @ np.vstack([c.W for c in conditions])))
    if quick <= enough or form.normal or sum(c.D.size for c in conditions) > LARGEST_GRAM:
        return quick  # of a normal matrix it is the smallest
    E = smallest(conditions)
    if not np.all(np.isfinite(E)):
        return quick
    distance = float(np.linalg.norm(E + missing(form, findings, E)))
    return min(quick, distance) if np.isfinite(distance) else quick


def missing(form: SchurForm, findings: list[Finding], E: Complex) -> Complex:
    """What A + E still lacks, put right on its own clusters."""
    A = form.Q @ form.T @ form.Q.conj().T + E
    moved = schur_form(np.real(A) if form.real else A)
    left = dict(enumerate(moved.eigenvalues))
    rounding = form.n * EPS64 * float(np.linalg.norm(form.T))
    more = np.zeros_like(A)
    for f in findings:
        chosen = sorted(left, key=lambda i, mu=f.eigenvalue: abs(left[i] - mu))[: len(f.block.indices)]
        for i in chosen:
            del left[i]
        block = extract(moved, tuple(chosen))
        D = condition(f, block).D
        if np.linalg.norm(D) > rounding * block.norm:  # else it is there, as far as a Schur form can tell
            term = block.V @ D @ block.W
            more = more + (term + term.conj() if form.mirrored(f.block) else term)
    return more


def condition(f: Finding, block: Block) -> Condition:
    """What puts a block on the circle: at 1 or -1, at its own angle, or at a unitary matrix."""
    B = block.B
    one = np.eye(len(B))
    turning = f.kind == "rotating"
    mean = np.trace(B) / len(B)
    mu = mean / abs(mean) if turning else f.eigenvalue
    target = np.asarray(polar(B)[0]) if f.kind == "torus" else mu * one
    return Condition(block.V, block.W, target - B, 1j * mu * one if turning else np.zeros_like(B))


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
    try:
        solved = cho_solve(cho_factor(gram), np.column_stack([d, turns]))
    except np.linalg.LinAlgError:
        return np.full((len(V),) * 2, np.inf)
    normal = (turns.conj().T @ solved[:, 1:]).real
    theta = np.linalg.lstsq(normal, -(turns.conj().T @ solved[:, 0]).real, rcond=None)[0]
    L = np.zeros((len(W), len(W)), complex)
    L[row, column] = solved[:, 0] + solved[:, 1:] @ theta
    return W.conj().T @ L @ V.conj().T
