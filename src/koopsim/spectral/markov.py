"""Finite Markov chains: what a transition matrix does in the long run.

    pi P = pi,   P row-stochastic                 one stationary law pi for each closed class of states

A set of states that the chain cannot leave and can go all round in is a closed class: an ergodic component. It is found
in the graph of P, not among eigenvalues near 1, so it is exact. In a class of period p the eigenvalues of modulus 1 are
the p-th roots of unity (a cycle of p sets); the next modulus is the rate at which the class mixes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags_array, eye_array, issparse
from scipy.sparse.csgraph import breadth_first_order, connected_components
from scipy.sparse.linalg import ArpackNoConvergence, eigs, splu

Array = NDArray[Any]
Sparse = Any  # csr_matrix: scipy's stubs do not know its shape
DENSE = 400  # states up to which LAPACK is quicker than Arnoldi
STOCHASTIC = 1e-9  # rows must sum to 1 to this
STATIONARY = 1e-7  # || pi P - pi ||_1 that is accepted
ACCURACIES = (1e-10, 1e-6, 1e-3)  # of eigenvalues by Arnoldi, relative: the first that it reaches
TINY = 1e-14  # laws are known to rounding: below it they say nothing
BASIS = 60  # vectors that Arnoldi's method keeps for a law,
BASIS_EACH = 6  # and for each of several eigenvalues
RESTARTS = 60
POLISH = 4  # steps of the chain after Arnoldi: rounding, and what it left of the other eigenvectors
ALIKE = 9  # decimal places in which moduli are compared


@dataclass(frozen=True)
class MarkovChain:
    """Closed classes, their laws and their spectra; what `markov_chain(P)` returns."""

    matrix: Any  # P, sparse, row-stochastic
    classes: tuple[NDArray[np.intp], ...]  # the states of each closed class, the class with most states first
    laws: Array  # (classes, states): stationary laws, each zero outside its class
    periods: tuple[int, ...]
    spectra: tuple[Array, ...]  # leading eigenvalues of each class, its 1 first

    @property
    def mixing_rates(self) -> Array:
        """Modulus of the second eigenvalue of each class: 0 forgets at once, 1 never does."""
        return np.array([float(np.abs(w[1])) if len(w) > 1 else 0.0 for w in self.spectra])

    def absorption(self) -> Array:
        """(classes, states): the probability of ending in each class, from each state."""
        out = np.zeros_like(self.laws)
        for row, states in zip(out, self.classes, strict=True):
            row[states] = 1.0
        passing = np.flatnonzero(out.sum(axis=0) == 0)
        if passing.size:
            Q = csr_matrix(self.matrix)[passing]
            into = Q @ out.T
            out[:, passing] = splu((eye_array(passing.size) - Q[:, passing]).tocsc()).solve(into).T
        return out


def markov_chain(P: Any, count: int = 10) -> MarkovChain:
    """The long run of a chain; `count` leading eigenvalues a class are computed."""
    P = csr_matrix(P, dtype=np.float64) if not issparse(P) else csr_matrix(P).astype(np.float64)
    rows, n = P.shape
    if rows != n or n < 1:
        raise ValueError(f"a transition matrix is square; got {P.shape}")
    off = np.abs(np.asarray(P.sum(axis=1)).ravel() - 1)
    if not np.all(np.isfinite(P.data)) or np.any(P.data < 0) or off.max() > STOCHASTIC:
        raise ValueError("a transition matrix has nonnegative rows that sum to 1; divide each row by its sum")
    P.eliminate_zeros()
    classes = sorted(closed_classes(P), key=len, reverse=True)
    laws, periods, spectra = np.zeros((len(classes), n)), [], []
    for row, states in zip(laws, classes, strict=True):
        block = csr_matrix(P[states][:, states])
        row[states] = stationary_law(block)
        periods.append(period(block))
        spectra.append(leading(block, row[states], periods[-1], count))
    return MarkovChain(P, tuple(classes), laws, tuple(periods), tuple(spectra))


def closed_classes(P: Sparse) -> list[NDArray[np.intp]]:
    """Strongly connected sets of states without a way out."""
    number, label = connected_components(P, directed=True, connection="strong")
    edges = P.tocoo()
    leaving = np.unique(label[edges.row[label[edges.row] != label[edges.col]]])
    order = np.argsort(label, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(label[order])) + 1)
    return [groups[i] for i in range(number) if i not in set(leaving.tolist())]


def stationary_law(P: Sparse) -> Array:
    """pi of an irreducible chain."""
    n, _ = P.shape
    if n <= DENSE:
        A = np.eye(n) - P.toarray().T
        A[-1] = 1.0
        pi = np.linalg.solve(A, np.eye(n)[-1])
    else:  # the lazy chain (I + P) / 2 has the same law, and no other eigenvalue of modulus 1
        lazy = (0.5 * (eye_array(n) + P.T)).tocsr()
        pi = np.real(eigs(lazy, 1, which="LM", v0=np.full(n, 1.0 / n), ncv=BASIS)[1][:, 0])
        pi = pi / pi.sum()
        for _ in range(POLISH):
            pi = lazy @ np.maximum(pi, 0.0)
    pi = np.maximum(pi, 0.0)
    pi /= pi.sum()
    error = float(np.abs(P.T @ pi - pi).sum())
    if error > STATIONARY:
        raise ValueError(f"no stationary law was found to {STATIONARY:.0e} (error {error:.0e}); use fewer boxes")
    return pi


def period(P: Sparse) -> int:
    """The greatest common divisor of all cycle lengths of an irreducible chain: levels of a walk from one state."""
    order, before = breadth_first_order(P, 0)
    level = np.zeros(len(order), dtype=np.int64)
    for state in order[1:]:
        level[state] = level[before[state]] + 1
    edges = P.tocoo()
    return int(np.gcd.reduce(level[edges.row] + 1 - level[edges.col])) or 1


def leading(P: Sparse, pi: Array, cycle: int, count: int) -> Array:
    """The eigenvalues of largest modulus, the one at 1 first; nan where Arnoldi found none but that.

    In the coordinates D^1/2 P D^-1/2, D = diag(pi), the chain has norm 1, so that eigenvalues are well conditioned (and
    stay real where the chain is reversible).
    """
    n, _ = P.shape
    if cycle >= count:  # the roots of unity: a whole circle of them, on which Arnoldi would never end
        w = np.exp(2j * np.pi * np.arange(cycle) / cycle)
    else:
        root = np.sqrt(np.maximum(pi, TINY))
        M = csr_matrix(diags_array(root) @ P @ diags_array(1 / root))
        w = np.linalg.eigvals(M.toarray()) if n <= max(DENSE, BASIS_EACH * count) else _arnoldi(M, count)
    w = np.asarray(w, dtype=complex)
    w = w[np.lexsort((np.abs(np.angle(w)), -np.round(np.abs(w), ALIKE)))][:count]
    first = int(np.argmin(np.abs(w - 1)))
    return np.concatenate([w[first : first + 1], np.delete(w, first)])


def _arnoldi(M: Sparse, count: int) -> Array:
    n, _ = M.shape
    start = np.random.default_rng(0).standard_normal(n)
    solve: Any = eigs  # nor that its tolerance is a number
    for accuracy in ACCURACIES:
        try:
            return solve(
                M, count, v0=start, ncv=BASIS_EACH * count, maxiter=RESTARTS, tol=accuracy, return_eigenvectors=False
            )
        except ArpackNoConvergence as error:  # a continuum of eigenvalues: what was found of it, or a coarser look
            if len(error.eigenvalues) >= 2:
                return error.eigenvalues
    return np.array([1.0, np.nan])


def scaled_rows(counts: Sparse) -> Sparse:
    """Each row divided by its sum."""
    return csr_matrix(diags_array(1.0 / np.asarray(counts.sum(axis=1)).ravel()) @ counts)
