"""Putting the clusters together: the case, the limit, and the terms of A^l.

    cesaro limit = P_1,      rotation = sum over clusters on the circle of mu P,      paper, eq. (7) and (8)

One cluster certainly outside or defective decides for divergence; else one unclear cluster decides nothing. What is
taken to be on the circle must be able to be there all at once: a matrix within the noise has to be found
(`witness.py`), else the answer is undecided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import polar, schur

from .clusters import SchurForm, extract
from .jordan import jordan_distance
from .noise import EPS64, Noise
from .powers import Propagator, period_of, phase, turns_of
from .structure import SNAP, SNAP_ROUNDING, Finding
from .verdict import Case, JordanBlock, Projector, Rotation, Snap, Verdict
from .witness import witness_distance

WELL_WITHIN = 0.5  # of the noise: closer than this, a witness need not be looked for any further
ROUNDING = 8 * EPS64  # what computing the distance may add to it, relative to ||A|| and for each row
BOUNDED = ("origin", "fixed-point", "invariant-set")
ON_CIRCLE = ("fixed", "flipping", "rotating", "torus")
ASSUMED = (
    "This rests on the assumption that what may be on the unit circle, given the noise, is on it; a matrix "
    "{distance:.1e} from this one, less than the noise, has it there."
)
TOO_FAR = (
    "Each of these could be on the unit circle, which would make it {case}, but for all at once the nearest matrix "
    "found is {distance:.1e} away, further than the noise."
)


@dataclass(frozen=True)
class Evidence:
    """What is known of A when it comes to deciding."""

    form: SchurForm
    findings: list[Finding]
    notes: list[str]
    escaped: bool  # some eigenvalue is outside for every matrix within the noise
    noise: Noise
    believed: float  # the noise as a norm
    dropped: float  # the norm of what was already taken off A to make it normal

    @property
    def certain(self) -> bool:
        """Whether the case that `suggested` gives needs no assumption."""
        kinds = {f.kind for f in self.findings}
        return self.escaped or "outside" in kinds or kinds <= {"inside"}

    @property
    def suggested(self) -> Case:
        """The case, if all that may be on the circle is there."""
        kinds = {f.kind for f in self.findings}
        if self.escaped or kinds & {"outside", "defective"}:
            return "divergent"
        if "unclear" in kinds:
            return "undecided"
        if kinds & {"flipping", "rotating", "torus"}:
            return "invariant-set"
        return "fixed-point" if "fixed" in kinds else "origin"

    def of_kind(self, *kinds: str) -> list[Finding]:
        return [f for f in self.findings if f.kind in kinds]

    def indices(self, kind: str) -> tuple[int, ...]:
        """Of the eigenvalues of this kind."""
        return tuple(i for f in self.of_kind(kind) for i in f.block.indices)

    def relative(self, distance: float | None) -> float | None:
        """A distance in units of A's norm, as the noise is given."""
        return distance * self.noise.level / self.believed if distance else distance


def assemble(evidence: Evidence) -> Verdict:
    """The verdict, and everything that follows from it."""
    case, distance, note = decided(evidence)
    form, findings = evidence.form, evidence.findings
    cesaro, rotation, period = _ends(evidence) if case in BOUNDED else (None, None, None)
    said = dict.fromkeys(f"{f.reason[0].upper()}{f.reason[1:]}." for f in findings if _telling(f, case))
    return Verdict(
        case=case,
        certain=evidence.certain and case != "undecided",
        noise=evidence.noise.level,
        distance=evidence.relative(distance),
        snapped=tuple(_snap(f, form) for f in evidence.of_kind(*ON_CIRCLE, "defective")),
        eigenvalues=form.eigenvalues.copy(),
        fixed=evidence.indices("fixed"),
        flipping=evidence.indices("flipping"),
        rotating=tuple(r for f in evidence.of_kind("rotating", "torus") for r in _rotations(f, form)),
        defective=tuple(JordanBlock(mu, s) for f in findings for mu in _both(f, form) for s in f.sizes),
        projectors=tuple(_projector(f, form) for f in findings if f.kind != "inside"),
        limit=None if case == "invariant-set" else cesaro,
        cesaro=cesaro,
        rotation=rotation,
        period=period,
        reasons=(*evidence.notes, *said, *note),
        _terms=(form, tuple(findings)),
        _angle_error=(SNAP_ROUNDING if evidence.noise.rounding else 1.0, 0.0),
    )


def _ends(evidence: Evidence) -> tuple[NDArray, NDArray, int | None]:
    """(Cesaro limit, rotation, period) of what stays on the circle."""
    form = evidence.form
    terms = [t for f in evidence.of_kind(*ON_CIRCLE) for t in propagators(f, form)]
    turns = [t.turns for t in terms if t.turns is not None]
    still = [t for t in terms if t.turns == 0]
    rotation = _sum_of_products(terms, [phase(t) for t in turns], form)
    return _sum_of_products(still, [1.0] * len(still), form), rotation, period_of(turns)


def decided(evidence: Evidence) -> tuple[Case, float | None, list[str]]:
    """(case, distance of a matrix that has it exactly, what to say of that)."""
    case = evidence.suggested
    if case == "undecided":
        return case, None, []
    if evidence.certain:
        return case, 0.0, []
    distance = nearest(evidence, case)
    level, n = evidence.noise.level, evidence.form.n
    if distance > evidence.believed * (1 / (1 - level) + ROUNDING * n / level):  # noise is relative to the larger
        return "undecided", None, [TOO_FAR.format(case=case, distance=distance)]
    return case, distance, [ASSUMED.format(distance=distance)]


def nearest(evidence: Evidence, case: Case) -> float:
    """How far a matrix with this case was found: all clusters on the circle at once, or any one Jordan block."""
    enough = WELL_WITHIN * evidence.believed
    if case != "divergent":
        return float(np.hypot(evidence.dropped, witness_distance(evidence.form, evidence.of_kind(*ON_CIRCLE), enough)))
    distance = np.inf
    for f in evidence.of_kind("defective"):
        distance = min(distance, float(np.hypot(evidence.dropped, jordan_distance(evidence.form, f))))
        if distance <= enough:
            break
    return distance


def _snap(f: Finding, form: SchurForm) -> Snap:
    w = np.diag(f.block.B)
    off = float(np.abs(np.abs(w) - 1).max()) if f.kind == "torus" else abs(f.block.mean - f.eigenvalue)
    return Snap(_projector(f, form).indices, f.block.mean, f.eigenvalue, off, f.error)


def _sum_of_products(terms: list[Propagator], mu: Sequence[complex], form: SchurForm) -> NDArray:
    """sum of mu V W, with the mirror images."""
    if not terms:
        return np.zeros((form.n, form.n), float if form.real else complex)
    V = np.concatenate([m * t.V for m, t in zip(mu, terms, strict=True)], axis=1)
    W = np.concatenate([t.W for t in terms])
    mirrored = np.concatenate([np.full(t.V.shape[1], t.mirrored) for t in terms])
    total = V @ W + (V[:, mirrored] @ W[mirrored]).conj()
    return np.real(total) if form.real else total


def _telling(f: Finding, case: Case) -> bool:
    return f.kind != "inside" and not (case == "divergent" and f.kind == "unclear")


def _both(f: Finding, form: SchurForm) -> tuple[complex, ...]:
    return (f.eigenvalue, f.eigenvalue.conjugate()) if form.mirrored(f.block) else (f.eigenvalue,)


def _projector(f: Finding, form: SchurForm) -> Projector:
    b, mirrored = f.block, form.mirrored(f.block)
    indices = b.indices
    if form.conjugate is not None and mirrored:
        indices = indices + tuple(int(form.conjugate[i]) for i in indices)
    return Projector(f.kind, f.eigenvalue, indices, b.norm, b.separation, f.error, b.V, b.W, mirrored, form.real)


def _rotations(f: Finding, form: SchurForm) -> list[Rotation]:
    out = []
    for i in f.block.indices:
        w = form.T[i, i]
        mu = f.eigenvalue if f.kind == "rotating" else complex(w / abs(w))
        mirror = i if form.conjugate is None else int(form.conjugate[i])
        if form.real and mu.imag < 0 and mirror in f.block.indices:
            continue
        out.append(Rotation((i,) if mirror == i else (i, mirror), mu, float(np.arctan2(mu.imag, mu.real))))
    return out


def propagators(f: Finding, form: SchurForm) -> list[Propagator]:
    """The terms of A^l that belong to one cluster."""
    V, W, B, mirrored = f.block.V, f.block.W, f.block.B, form.mirrored(f.block)
    if f.kind in ("fixed", "flipping", "rotating"):
        return [Propagator(V, W, B, turns_of(f.eigenvalue, f.error), 1, mirrored, f.error)]
    if f.kind == "defective":
        return [Propagator(V, W, B, turns_of(f.eigenvalue, f.error), max(f.sizes), mirrored, f.error)]
    if f.kind != "torus":
        return [Propagator(V, W, B, None, 1, mirrored)]
    S, X = schur(np.asarray(polar(B)[0]), output="complex")[:2]  # nearly unitary: as many rotations as eigenvectors
    terms = []
    for j, mu in enumerate(np.diag(S)):
        near = next((t for t in (1.0, -1.0) if abs(mu - t) <= SNAP * f.error), None)
        x, turns = X[:, j : j + 1], turns_of(complex(near or mu))
        terms.append(Propagator(V @ x, x.conj().T @ W, S[j : j + 1, j : j + 1], turns, 1, mirrored, f.error))
    return terms


def all_terms(form: SchurForm, findings: tuple[Finding, ...]) -> list[Propagator]:
    """Every term of A^l: the clusters, and one block for all that was not looked at closer."""
    terms = [t for f in findings for t in propagators(f, form)]
    covered = form.with_mirror(i for f in findings for i in f.block.indices)
    rest = tuple(i for i in range(form.n) if i not in covered)
    if rest:
        block = extract(form, rest)
        terms.append(Propagator(block.V, block.W, block.B))
    return terms
