"""Does phi_{l+1} = A phi_l settle, oscillate or blow up?                   paper, section 3.2, appendix A

    origin          rho(A) < 1                                              case (i)
    fixed-point     on the unit circle only 1, semisimple                   case (ii)    lim A^l = P_1
    invariant-set   on the unit circle semisimple, -1 or pairs among them   case (iii)
    divergent       rho(A) > 1, or a defective eigenvalue on the circle     case (iv)
    undecided       the noise leaves more than one of these open

A is believed to within a relative noise (`noise.py`). Circles that no eigenvalue can cross at that noise
(`resolvent.py`) settle what is inside and what is outside; what remains is gathered into clusters that the
noise cannot mix (`clusters.py`), and each is decided as a whole (`structure.py`). One cluster certainly
outside, or defective, is divergence whatever the others are; else one unclear cluster leaves all undecided.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from .assembly import assemble
from .clusters import isolate, schur_form
from .noise import effective_noise
from .resolvent import LAPACK, Allowance, Complex, clear_of_circle
from .structure import CLEAR, SNAP, SNAP_ROUNDING, Finding, classify
from .verdict import Verdict

ENOUGH = 16  # clusters described once it is certain that some eigenvalue is outside
CIRCLES = 8  # how many gaps in the moduli are tried for a circle that no eigenvalue can cross


def analyze(
    A: ArrayLike,
    noise: float | None = None,
    constant: int | Sequence[float] | NDArray | None = None,
    strict: bool = False,
) -> Verdict:
    """Classify phi_{l+1} = A phi_l into the paper's four cases, or say that it cannot be decided.

    Parameters
    ----------
    A
        Square matrix, real or complex.
    noise
        Relative size of the error the entries may carry, ||E||_F <= noise ||A||_F. Default: float64
        rounding, or float32 rounding if the entries look like float32 numbers.
    constant
        The observable that is constant, as its index in phi or as the vector c with c.phi = 1. Its
        eigenvalue 1 says nothing about the state and is discounted: see `Verdict.discount`.
    strict
        Only say what holds for every matrix within the noise: an eigenvalue that may be on the unit circle
        is not taken to be on it, and the verdict is then undecided.
    """
    A = _checked(A)
    # LAPACK gains nothing from threads here, and loses much where the cores are shared
    with threadpool_limits(1) if A.shape[0] > 100 else nullcontext():
        return _analyze(A, noise, constant, strict)


def _analyze(A: NDArray[Any], noise: float | None, constant: Any, strict: bool) -> Verdict:
    level, origin = effective_noise(A, noise)
    A = A.astype(np.complex128 if np.iscomplexobj(A) else np.float64)
    if np.abs(A).max() > 1e150:
        raise ValueError(f"analyze needs entries below 1e150; the largest is {np.abs(A).max():.1e}")
    believed = level * float(np.linalg.norm(A))
    T, Q, conjugate = schur_form(A)
    coupling = float(np.linalg.norm(np.triu(T, 1)))
    if coupling <= believed:  # a normal matrix, to within the noise: take it as one
        T, dropped = np.asfortranarray(np.diag(np.diag(T))), coupling
    else:
        dropped = 0.0
    delta = believed + dropped
    snap = SNAP_ROUNDING if origin.startswith("float64") else SNAP
    findings, notes, escaped = examine(T, Q, delta, conjugate, snap)
    notes.insert(0, f"Noise {level:.1e} ({origin}): the matrix is believed to {delta:.1e} in norm.")
    verdict = assemble(T, Q, conjugate, findings, notes, level, escaped, believed, dropped)
    verdict = replace(verdict, residuals=eigen_residuals(A, T, Q))
    if strict and not verdict.certain:
        verdict = verdict.withheld()
    return verdict if constant is None else verdict.discount(constant, delta)


def examine(
    T: Complex, Q: Complex, delta: float, conjugate: NDArray[np.intp] | None, snap: float = SNAP
) -> tuple[list[Finding], list[str], bool]:
    """Clusters that may be on or outside the circle, each with what it is; whether some are outside."""
    w, n, half = np.diag(T), T.shape[0], conjugate is not None
    moduli = np.abs(w)
    allowance = Allowance()
    outer = _outer_circle(T, moduli, delta, half, allowance)
    notes = []
    if outer is not None:
        count = int(np.sum(moduli > outer))
        notes.append(
            f"{count} of {n} eigenvalues lie outside |z| = {outer:.9g} for every matrix within the noise; "
            f"the largest modulus is {moduli.max():.9g}."
        )
    inner = _inner_circle(T, moduli, delta, half, allowance)
    if inner is not None and np.any(moduli <= inner):
        count = int(np.sum(moduli <= inner))
        notes.append(f"{count} of {n} eigenvalues lie inside |z| = {inner:.9g} for every matrix within the noise.")
    open_ = [int(i) for i in np.argsort(np.abs(moduli - 1)) if inner is None or moduli[i] > inner]
    findings: list[Finding] = []
    taken: set[int] = set()
    for i in open_:
        if i in taken or (conjugate is not None and int(conjugate[i]) in taken):
            continue
        if outer is not None and len(findings) >= ENOUGH:
            break
        seed = (i,) if conjugate is None or w[i].imag >= 0 else (int(conjugate[i]),)
        block = isolate(T, Q, delta, seed, conjugate)
        overlap = [f for f in findings if set(f.block.indices) & _with_mirror(block.indices, conjugate)]
        while overlap:
            union = set(block.indices).union(*(f.block.indices for f in overlap))
            findings = [f for f in findings if f not in overlap]
            block = isolate(T, Q, delta, tuple(_with_mirror(union, conjugate)), conjugate)
            overlap = [f for f in findings if set(f.block.indices) & _with_mirror(block.indices, conjugate)]
        symmetric = conjugate is not None and {int(conjugate[j]) for j in block.indices} == set(block.indices)
        findings.append(classify(block, delta, symmetric, snap))
        taken |= _with_mirror(block.indices, conjugate)
    return findings, notes, outer is not None


def _with_mirror(indices, conjugate: NDArray[np.intp] | None) -> set[int]:
    return set(indices) | (set() if conjugate is None else {int(conjugate[i]) for i in indices})


def _outer_circle(T: Complex, moduli: NDArray, delta: float, half: bool, allowance: Allowance) -> float | None:
    """Some r >= 1 with eigenvalues of every A0 outside it."""
    edges = np.r_[1.0, np.sort(moduli[moduli > 1])]
    gaps = np.diff(edges)
    for i in np.argsort(-gaps)[:CIRCLES]:
        if gaps[i] > 2 * CLEAR * delta:
            for r in (edges[i] + gaps[i] / 2, edges[i]):
                if clear_of_circle(T, float(r), CLEAR * delta, half=half, allowance=allowance):
                    return float(r)
    return None


def _inner_circle(T: Complex, moduli: NDArray, delta: float, half: bool, allowance: Allowance) -> float | None:
    """The outermost r <= 1, among those tried, with as many eigenvalues of every A0 inside as of A."""
    if clear_of_circle(T, 1.0, CLEAR * delta, half=half, allowance=allowance):
        return 1.0
    edges = np.r_[1.0, np.sort(moduli[moduli < 1])[::-1], 0.0]
    gaps = edges[:-1] - edges[1:]
    wide = np.flatnonzero(gaps > 2 * CLEAR * delta)
    for i in np.unique(np.r_[wide[:CIRCLES], wide[np.argsort(-gaps[wide])][:CIRCLES]]):
        for share in (0.5, 0.25, 0.75):
            r = float(edges[i] - share * gaps[i])
            if clear_of_circle(T, r, CLEAR * delta, half=half, allowance=allowance):
                return r
    return None


def eigen_residuals(A: NDArray, T: Complex, Q: Complex) -> NDArray[np.float64]:
    """||A x - lambda x|| / (||A||_F ||x||) for each eigenvalue: how well the computed pair fits A."""
    n, size = A.shape[0], float(np.linalg.norm(A)) or 1.0
    X = np.zeros((n, n), complex)
    tiny = np.finfo(float).eps * size
    for i in range(n):
        X[i, i] = 1.0
        if i:
            M = np.array(T[:i, :i], order="F")
            M[np.diag_indices(i)] -= T[i, i]
            d = np.diagonal(M).copy()
            M[np.diag_indices(i)] = np.where(np.abs(d) < tiny, tiny, d)
            x = LAPACK.ztrtrs(M, -T[:i, i])[0]
            if np.abs(x).max() < 1e150:  # else a long Jordan block: keep the Schur vector
                X[:i, i] = x
                X[: i + 1, i] /= np.linalg.norm(X[: i + 1, i])
    X = Q @ X
    return np.linalg.norm(A @ X - X * np.diag(T), axis=0) / size


def _checked(A: ArrayLike) -> NDArray:
    A = np.asarray(A)
    if A.dtype.kind not in "fcbiu":
        try:
            A = A.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"analyze needs a matrix of numbers; got dtype {A.dtype}") from None
    if A.dtype.kind in "biu":
        A = A.astype(np.float64)
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise ValueError(f"analyze needs a square matrix; got shape {A.shape}")
    if A.shape[0] == 0:
        raise ValueError("analyze needs at least one row; got an empty matrix")
    if not np.all(np.isfinite(A)):
        raise ValueError(
            f"analyze needs finite entries; {int(np.sum(~np.isfinite(A)))} of {A.size} are NaN or infinite"
        )
    return A
