"""Putting the clusters together: the case, the limit, and the terms of A^l.

    cesaro limit = P_1,      rotation = sum over clusters on the circle of mu P,      paper, eq. (6) and (7)

One cluster certainly outside or defective decides for divergence; else one unclear cluster decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import polar, schur

from .clusters import Block, extract
from .noise import EPS64
from .powers import Propagator, period_of, phase, turns_of
from .resolvent import Complex
from .structure import SNAP, Finding
from .verdict import Case, JordanBlock, Projector, Rotation, Snap, Verdict
from .witness import jordan_distance, witness_distance

WELL_WITHIN = 0.5  # of the noise: closer than this, a witness need not be looked for any further
FIRST_ORDER = 0.8  # of the noise, for a distance that holds to first order only
ROUNDING = 8 * EPS64  # what computing the distance may add to it, relative to ||A|| and for each row
ASSUMED = "This rests on the assumption that what may be on the unit circle, given the noise, is on it"
WITNESS = "; a matrix {distance:.1e} from this one, less than the noise, has it there."
TOO_FAR = (
    "Each of these could be on the unit circle, which would make it {case}, but for all at once the nearest matrix "
    "found is {distance:.1e} away, further than the noise."
)


def assemble(
    T: Complex,
    Q: Complex,
    conjugate: NDArray[np.intp] | None,
    findings: list[Finding],
    notes: list[str],
    noise: float,
    escaped: bool,
    believed: float,
    dropped: float,
) -> Verdict:
    """Put the clusters' findings together; what may be on the circle must be able to be there all at once.

    `believed` is the noise as a norm, `dropped` the norm of what was already taken off A to make it normal.
    """
    n, real = T.shape[0], conjugate is not None
    kinds = {f.kind for f in findings}
    case: Case
    if escaped or kinds & {"outside", "defective"}:
        case = "divergent"
    elif "unclear" in kinds:
        case = "undecided"
    elif kinds & {"flipping", "rotating", "torus"}:
        case = "invariant-set"
    else:
        case = "fixed-point" if "fixed" in kinds else "origin"
    on_circle = [f for f in findings if f.kind in ("fixed", "flipping", "rotating", "torus")]
    distance = 0.0 if case == "origin" or escaped or "outside" in kinds else None
    if case in ("fixed-point", "invariant-set"):
        both = [_mirrored(f.block, conjugate) for f in on_circle]
        added = witness_distance(T, Q, conjugate, on_circle, both, WELL_WITHIN * believed)
        distance = float(np.hypot(dropped, added))
        if distance > believed * (1 / (1 - noise) + ROUNDING * n / noise):  # noise is relative to the larger matrix
            case, notes = "undecided", [*notes, TOO_FAR.format(case=case, distance=distance)]
            distance = None
    fixed = tuple(i for f in findings if f.kind == "fixed" for i in f.block.indices)
    flipping = tuple(i for f in findings if f.kind == "flipping" for i in f.block.indices)
    rotating = tuple(r for f in findings if f.kind in ("rotating", "torus") for r in _rotations(f, T, conjugate))
    terms = [t for f in on_circle for t in _propagate(f, _mirrored(f.block, conjugate))]
    turns = [t.turns for t in terms if t.turns is not None]
    rotation = _sum_of_products(terms, [phase(t) for t in turns], n)
    still = [t for t in terms if t.turns == 0]
    cesaro = _sum_of_products(still, [1.0] * len(still), n)
    if case == "divergent" and distance is None:  # by a Jordan block alone: one of them has to be within the noise
        found = (jordan_distance(f, real) for f in findings if f.kind == "defective")
        tried = list(takewhile(lambda d: d is not None and d > FIRST_ORDER * believed, found))
        if len(tried) == sum(f.kind == "defective" for f in findings):
            case, notes = "undecided", [*notes, TOO_FAR.format(case=case, distance=min(d or 0.0 for d in tried))]
    bounded = case in ("origin", "fixed-point", "invariant-set")
    if real:
        rotation, cesaro = np.real(rotation), np.real(cesaro)
    assumption = ""
    if distance:
        assumption = ASSUMED + WITNESS.format(distance=distance)
    elif case in ("fixed-point", "invariant-set") or (case == "divergent" and distance is None):
        assumption = ASSUMED + "."
    reasons = [
        *notes,
        *dict.fromkeys(f"{f.reason[0].upper()}{f.reason[1:]}." for f in findings if _telling(f, case)),
        assumption,
    ]
    return Verdict(
        case=case,
        certain=case == "origin" or escaped or "outside" in kinds,
        noise=noise,
        distance=None if distance is None else distance * noise / believed if believed else 0.0,
        snapped=tuple(_snap(f, conjugate) for f in findings if f.kind not in ("inside", "outside", "unclear")),
        eigenvalues=np.diag(T).copy(),
        fixed=fixed,
        flipping=flipping,
        rotating=rotating,
        defective=tuple(JordanBlock(mu, s) for f in findings for mu in _both(f, conjugate) for s in f.sizes),
        projectors=tuple(_projector(f, conjugate) for f in findings if f.kind != "inside"),
        limit=cesaro if case in ("origin", "fixed-point") else None,
        cesaro=cesaro if bounded else None,
        rotation=rotation if bounded else None,
        period=period_of(turns) if bounded else None,
        reasons=tuple(r for r in reasons if r),
        _terms=(T, Q, conjugate, tuple(findings)),
    )


def _snap(f: Finding, conjugate: NDArray[np.intp] | None) -> Snap:
    w = np.diag(f.block.B)
    off = float(np.abs(np.abs(w) - 1).max()) if f.kind == "torus" else abs(f.block.mean - f.eigenvalue)
    return Snap(_projector(f, conjugate).indices, f.block.mean, f.eigenvalue, off, f.error)


def _sum_of_products(terms: list[Propagator], mu: Sequence[complex], n: int) -> NDArray:
    """sum of mu V W, with the mirror images."""
    if not terms:
        return np.zeros((n, n), complex)
    V = np.concatenate([m * t.V for m, t in zip(mu, terms, strict=True)], axis=1)
    W = np.concatenate([t.W for t in terms])
    mirrored = np.concatenate([np.full(t.V.shape[1], t.mirrored) for t in terms])
    return V @ W + (V[:, mirrored] @ W[mirrored]).conj()


def _telling(f: Finding, case: Case) -> bool:
    return f.kind != "inside" and not (case == "divergent" and f.kind == "unclear")


def _mirrored(block: Block, conjugate: NDArray[np.intp] | None) -> bool:
    return conjugate is not None and {int(conjugate[i]) for i in block.indices} != set(block.indices)


def _both(f: Finding, conjugate: NDArray[np.intp] | None) -> tuple[complex, ...]:
    return (f.eigenvalue, f.eigenvalue.conjugate()) if _mirrored(f.block, conjugate) else (f.eigenvalue,)


def _projector(f: Finding, conjugate: NDArray[np.intp] | None) -> Projector:
    b, mirrored = f.block, _mirrored(f.block, conjugate)
    indices = (
        b.indices if conjugate is None or not mirrored else b.indices + tuple(int(conjugate[i]) for i in b.indices)
    )
    return Projector(
        f.kind,
        f.eigenvalue,
        indices,
        b.norm,
        b.separation,
        f.error,
        b.V,
        b.W,
        mirrored,
        conjugate is not None,
    )


def _rotations(f: Finding, T: Complex, conjugate: NDArray[np.intp] | None) -> list[Rotation]:
    out = []
    for i in f.block.indices:
        mu = f.eigenvalue if f.kind == "rotating" else complex(T[i, i] / abs(T[i, i]))
        if conjugate is not None and mu.imag < 0 and int(conjugate[i]) in f.block.indices:
            continue
        pair = (i,) if conjugate is None or conjugate[i] == i else (i, int(conjugate[i]))
        out.append(Rotation(pair, mu, float(np.arctan2(mu.imag, mu.real))))
    return out


def _propagate(f: Finding, mirrored: bool) -> list[Propagator]:
    V, W, B = f.block.V, f.block.W, f.block.B
    if f.kind in ("fixed", "flipping", "rotating"):
        return [Propagator(V, W, B, turns_of(f.eigenvalue), 1, mirrored)]
    if f.kind == "defective":
        return [Propagator(V, W, B, turns_of(f.eigenvalue), max(f.sizes), mirrored)]
    if f.kind == "torus":  # nearly unitary: as many rotations as it has eigenvectors
        S, X = schur(np.asarray(polar(B)[0]), output="complex")[:2]
        terms = []
        for j, mu in enumerate(np.diag(S)):
            near = next((t for t in (1.0, -1.0) if abs(mu - t) <= SNAP * f.error), None)
            x = X[:, j : j + 1]
            terms.append(
                Propagator(V @ x, x.conj().T @ W, S[j : j + 1, j : j + 1], turns_of(complex(near or mu)), 1, mirrored)
            )
        return terms
    return [Propagator(V, W, B, None, 1, mirrored)]


def all_terms(
    T: Complex, Q: Complex, conjugate: NDArray[np.intp] | None, findings: tuple[Finding, ...]
) -> list[Propagator]:
    """Every term of A^l: the clusters, and one block for all that was not looked at closer."""
    terms: list[Propagator] = []
    covered: set[int] = set()
    for f in findings:
        covered |= set(f.block.indices)
        if conjugate is not None:
            covered |= {int(conjugate[i]) for i in f.block.indices}
        terms += _propagate(f, _mirrored(f.block, conjugate))
    rest = tuple(i for i in range(T.shape[0]) if i not in covered)
    if rest:
        block = extract(T, Q, rest)
        terms.append(Propagator(block.V, block.W, block.B))
    return terms
