"""Does phi_{l+1} = A phi_l settle, oscillate or blow up?                   paper, section 3.2, appendix A

    origin          rho(A) < 1                                              case (i)
    fixed-point     on the unit circle only 1, semisimple                   case (ii)    lim A^l = P_1
    invariant-set   on the unit circle semisimple, -1 or pairs among them   case (iii)
    divergent       rho(A) > 1, or a defective eigenvalue on the circle     case (iv)
    undecided       the noise leaves more than one of these open

A is believed to within a relative noise (`noise.py`), in balanced units where none was declared. Circles that no
eigenvalue can cross at that noise (`resolvent.py`) settle what is inside and what is outside; what remains is gathered
into clusters that the noise cannot mix (`clusters.py`), and each is decided as a whole (`structure.py`). One cluster
certainly outside, or defective, is divergence whatever the others are; else one unclear cluster leaves all undecided.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from koopsim.files.masks import unmasked

from .assembly import Evidence, assemble
from .clusters import ISOLATION, SchurForm, extract, isolate, schur_form
from .constant import discount
from .noise import SINGLE, balanced, could_be_float32, effective_noise
from .resolvent import DENSE, Circles
from .structure import CLEAR, SNAP, SNAP_ROUNDING, Finding, classify
from .verdict import Verdict

ENOUGH = 16  # clusters described once it is certain that some eigenvalue is outside
CIRCLES = 8  # how many gaps in the moduli are tried for a circle that no eigenvalue can cross
ODD = 1e-3  # couplings below this share of the whole depend on the units of the observables
OTHER_UNITS = "Beside the diagonal the coupling is so small that it may be rounding, in odd units of the observables."
LARGEST = 4000  # rows of a sparse matrix that is written out
LARGEST_ENTRY = 1e150  # squares of larger ones overflow
THREADS = 100  # rows from which LAPACK would start threads: it gains nothing from them, and loses much on shared cores
SHARE = 0.25  # of what may be spent on proofs, for circles that would only spare the clusters some work
PLACES = (0.5, 0.25, 0.75)  # in a gap between moduli: where a circle is tried


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
        Square matrix, real or complex, dense or (up to 4,000 rows) SciPy sparse.
    noise
        Relative size of the error the entries may carry, ||E||_F <= noise ||A||_F. Default: the rounding of
        the entries' own type, float64 or float32, after balancing by powers of two.
    constant
        The observable that is constant, as its index in phi or as the vector c with c.phi = 1. Its
        eigenvalue 1 says nothing about the state and is discounted: see `Verdict.discount`.
    strict
        Only say what holds for every matrix within the noise: an eigenvalue that may be on the unit circle
        is not taken to be on it, and the verdict is then undecided.
    """
    A = _checked(A)
    with threadpool_limits(1) if len(A) > THREADS else nullcontext():
        return _analyze(A, noise, constant, strict)


def _analyze(A: NDArray[Any], noise: float | None, constant: Any, strict: bool) -> Verdict:
    belief = effective_noise(A, noise)
    A = A.astype(np.complex128 if np.iscomplexobj(A) else np.float64)
    if np.abs(A).max() > LARGEST_ENTRY:
        raise ValueError(f"analyze needs entries below 1e150; the largest is {np.abs(A).max():.1e}")
    hint = [SINGLE] if belief.rounding and could_be_float32(A) else []
    A, units = (A, np.ones(len(A))) if belief.declared else balanced(A)
    believed = belief.level * float(np.linalg.norm(A))
    form = schur_form(A)
    coupling = float(np.linalg.norm(np.triu(form.T, 1)))
    dropped = coupling if coupling <= believed else 0.0
    if dropped:  # a normal matrix, to within the noise: take it as one
        form = form.as_normal()
    delta = believed + dropped
    findings, notes, escaped = examine_clusters(form, delta, SNAP_ROUNDING if belief.rounding else SNAP)
    other = "" if np.all(units == 1) else ", in units balanced by powers of two"
    notes.insert(
        0, f"Noise {belief.level:.1e} ({belief.source}): the matrix is believed to {delta:.1e} in norm{other}."
    )
    verdict = assemble(Evidence(form, findings, [*notes, *hint], escaped, belief, believed, dropped))
    verdict = replace(verdict, residuals=_residuals(form))
    if verdict.case == "divergent" and not verdict.certain and not belief.declared and not _coupled(A):
        verdict = replace(verdict.withheld(), reasons=(*verdict.reasons, OTHER_UNITS))
    if strict and not verdict.certain:
        verdict = verdict.withheld()
    if constant is not None:
        verdict = discount(verdict, constant, delta, units=units)
    return verdict if np.all(units == 1) else verdict.in_coordinates(np.diag(units), np.diag(1 / units))


def _coupled(A: NDArray[Any]) -> bool:
    """Whether A is more than a diagonal: rounding errors in odd units can look like the coupling of a Jordan block."""
    return float(np.linalg.norm(A - np.diag(np.diag(A)))) > ODD * float(np.linalg.norm(A))


def examine_clusters(form: SchurForm, delta: float, snap: float = SNAP) -> tuple[list[Finding], list[str], bool]:
    """Clusters that may be on or outside the circle, each with what it is; whether some are outside."""
    moduli = np.abs(form.eigenvalues)
    outer = _outer_circle(form, moduli, delta)
    notes = []
    if outer is not None:
        count = int(np.sum(moduli > outer))
        notes.append(
            f"{count} of {form.n} eigenvalues lie outside |z| = {outer:.9g} for every matrix within the noise; "
            f"the largest modulus is {moduli.max():.9g}."
        )
    inner = _inner_circle(form, moduli, delta)
    if inner is not None and np.any(moduli <= inner):
        count = int(np.sum(moduli <= inner))
        notes.append(f"{count} of {form.n} eigenvalues lie inside |z| = {inner:.9g} for every matrix within the noise.")
    undecided = [int(i) for i in np.argsort(np.abs(moduli - 1)) if inner is None or moduli[i] > inner]
    findings = _classified(form, undecided, delta, snap, ENOUGH if outer is not None else None)
    left = set(undecided).difference(*(form.with_mirror(f.block.indices) for f in findings))
    if left and outer is None:
        notes.append(f"{len(left)} of {form.n} eigenvalues, together, lie inside for every matrix within the noise.")
    return findings, notes, outer is not None


def _classified(form: SchurForm, indices: list[int], delta: float, snap: float, enough: int | None) -> list[Finding]:
    """The clusters these eigenvalues belong to; those that turn out to overlap are joined."""
    findings: list[Finding] = []
    taken: set[int] = set()
    for i in indices:
        if form.with_mirror((i,)) & taken:
            continue
        if enough is not None and len(findings) >= enough:
            break
        if enough is None and len(findings).bit_count() == 1 and _inside(form, set(range(form.n)) - taken, delta):
            break
        above = i if form.conjugate is None or form.eigenvalues[i].imag >= 0 else int(form.conjugate[i])
        block = isolate(form, delta, (above,))
        while form.with_mirror(block.indices) & taken:
            mine = form.with_mirror(block.indices)
            overlap = [f for f in findings if mine & form.with_mirror(f.block.indices)]
            taken -= {i for f in overlap for i in form.with_mirror(f.block.indices)}
            union = mine.union(*(f.block.indices for f in overlap))
            findings = [f for f in findings if f not in overlap]
            block = isolate(form, delta, form.with_mirror(union))
        findings.append(classify(block, delta, form.symmetric(block), snap, form.allowance))
        taken |= form.with_mirror(block.indices)
    return findings


def _inside(form: SchurForm, rest: set[int], delta: float) -> bool:
    """Whether these eigenvalues of a large matrix, as one cluster, are inside for every matrix within the noise."""
    w = form.eigenvalues[list(rest)]
    if form.n <= DENSE or form.normal or np.abs(w).max() + CLEAR * delta >= 1:
        return False
    block = extract(form, tuple(sorted(rest)))
    isolated = ISOLATION * block.norm * delta < block.separation
    return isolated and Circles(block.B, form.real, form.allowance).clear(1.0, CLEAR * block.error(delta))


def _outer_circle(form: SchurForm, moduli: NDArray, delta: float) -> float | None:
    """Some r >= 1 with eigenvalues of every A0 outside it."""
    edges = np.r_[1.0, np.sort(moduli[moduli > 1])]
    gaps = np.diff(edges)
    keep = (1 - SHARE) * form.allowance.left
    for i in np.argsort(-gaps)[:CIRCLES]:
        if gaps[i] > 2 * CLEAR * delta:
            for r in (edges[i] + gaps[i] / 2, edges[i]):
                if form.circles.clear(float(r), CLEAR * delta, keep):
                    return float(r)
    return None


def _inner_circle(form: SchurForm, moduli: NDArray, delta: float) -> float | None:
    """The outermost r <= 1, among those tried, with as many eigenvalues of every A0 inside as of A."""
    if form.circles.clear(1.0, CLEAR * delta):
        return 1.0
    edges = np.r_[1.0, np.sort(moduli[moduli < 1])[::-1], 0.0]
    gaps = edges[:-1] - edges[1:]
    keep = (1 - SHARE) * form.allowance.left
    wide = np.flatnonzero(gaps > 2 * CLEAR * delta)
    for i in np.unique(np.r_[wide[:CIRCLES], wide[np.argsort(-gaps[wide])][:CIRCLES]]):
        for share in PLACES:
            r = float(edges[i] - share * gaps[i])
            if form.circles.clear(r, CLEAR * delta, keep):
                return r
    return None


def _residuals(form: SchurForm) -> NDArray[np.float64]:
    """||A x - lambda x|| / ||A||_F for each eigenvalue: how well the computed pair fits A."""
    if form.normal:
        return np.zeros(form.n)
    size = float(np.linalg.norm(form.T))
    found = form.basis.residuals / size
    return np.where(np.isfinite(found), found, np.linalg.norm(np.triu(form.T, 1), axis=0) / size)


def _checked(A: Any) -> NDArray:
    if hasattr(A, "tocsr"):  # SciPy sparse, matrix or array
        if max(A.shape) > LARGEST:
            raise ValueError(
                f"analyze needs all eigenvalues, so it writes sparse matrices out, up to {LARGEST:,} rows; got "
                f"{' x '.join(f'{k:,}' for k in A.shape)}: give it P.T @ A @ P for a basis P of what is in question"
            )
        A = A.toarray()
    try:
        A = np.asarray(unmasked(A))
    except ValueError:
        raise ValueError("analyze needs a square matrix; got rows of different lengths") from None
    if A.dtype.kind not in "fcbiu":
        try:
            A = A.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"analyze needs a matrix of numbers; got dtype {A.dtype}") from None
    if A.dtype.kind in "biu":
        A = A.astype(np.float64)
    if A.ndim != 2 or len(A) != A.shape[1]:
        raise ValueError(f"analyze needs a square matrix; got shape {A.shape}")
    if len(A) == 0:
        raise ValueError("analyze needs at least one row; got an empty matrix")
    if not np.all(np.isfinite(A)):
        raise ValueError(
            f"analyze needs finite entries; {int(np.sum(~np.isfinite(A)))} of {A.size} are NaN or infinite"
        )
    return A
