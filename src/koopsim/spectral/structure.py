"""What one cluster of eigenvalues is, given that its block is only known to within an error.

The block B of a cluster of A is similar, for every A0 within delta of A, to B + F with ||F|| <= eta
(`clusters.py`). Two answers are certain, for they hold for every such A0:

    inside, outside     sigma_min(B - z I) > 3 eta on |z| = 1, eigenvalues of B on that side

No finite accuracy tells 1 from 1 - eta / 2, so the others rest on one stated assumption: *what may be on the
unit circle is on it, in the most degenerate way that fits the error*. With mu = trace(B) / k:

    semisimple          | |mu| - 1 | <= 1.05 eta ||W||_F / (||P|| k)   and   ||B - mu I|| <= 2 eta
    defective           the same, but ||B - mu I|| > 1000 eta,   and   (B - mu I)^s is zero for some s to
                        within a quarter of what F can do to it

eta itself must be small enough to mean something (`COARSE`, `COARSE_BLOCK`). Everything else is unclear.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import comb
from typing import Literal

import numpy as np

from .clusters import Block
from .resolvent import Allowance, Circles, Complex

Kind = Literal["inside", "outside", "fixed", "flipping", "rotating", "torus", "defective", "unclear"]

CLEAR = 3.0  # an eigenvalue is off the circle when it clears the error this many times
SNAP = 1.05  # the mean is on the circle when within this many errors
SNAP_ROUNDING = 1 / 40  # the same where the noise is float64 rounding, whose bound is far from attained
SNAP_UNDECLARED = 2.5e-10  # and never further than this where no noise was declared: 1 - 1e-9 is not 1 then
SEMISIMPLE = 2.0  # and the block is a multiple of the identity when within this many
DEFECTIVE = 1000.0  # and it is not when beyond this many
COARSE = 5e-3  # an error above this says nothing about 1
COARSE_BLOCK = 0.05  # nor, for a defective block, does a spread of its eigenvalues above this
NILPOTENT = 0.25  # share of what the error could do to (B - mu I)^s that a Jordan block may show
OWN = 2.0  # an eigenvalue this many of its own errors from the centre is not there
RESOLVED = 3.0  # eigenvalues this many errors apart are not one Jordan block
SEEN = 0.5  # and the share of the Lidskii bound that its eigenvalues may be seen to have moved
LONGEST = 8  # longer Jordan blocks are left undecided
SMALLEST = 1e-300  # no error is divided by less
REAL = 1e-14  # an imaginary part below this is not written
VISIBLE = 1e-7  # a coupling below this is never called a Jordan block


@dataclass(frozen=True)
class Finding:
    """One cluster and what it was found to be."""

    block: Block
    kind: Kind
    eigenvalue: complex
    error: float
    reason: str
    sizes: tuple[int, ...] = field(default=())  # Jordan block sizes >= 2

    @property
    def certain(self) -> bool:
        return self.kind in ("inside", "outside")


def classify(block: Block, delta: float, real: bool, snap: float = SNAP, allowance: Allowance | None = None) -> Finding:
    """Decide one isolated cluster.

    `real`: A is real and the cluster is its own mirror image. `snap`: how many errors from the circle the
    mean may be and still count as on it. `allowance`: what a large cluster may spend on a proof.
    """
    k, B = len(block.indices), block.B
    eta, mu = block.error(delta), block.mean
    off, defect = abs(abs(mu) - 1.0), block.defect(mu)
    if (k > 1 and off - defect > CLEAR * eta) or Circles(B, real, allowance).clear(1.0, CLEAR * eta):
        return _off_circle(block, eta)
    if eta > COARSE:
        why = f"{_name(k, mu)[:-3]} may be on the unit circle, but is known to {eta:.1e} only: too coarse"
        return Finding(block, "unclear", mu, eta, why)
    if k > 1 and defect > SEMISIMPLE * eta and _near_unitary(B, eta):
        why = (
            f"{k} eigenvalues closer to one another than the noise can tell, all on the unit circle and with "
            f"orthogonal eigenvectors to within {eta:.1e}: taken as rotations"
        )
        return Finding(block, "torus", mu, eta, why)
    near = min(snap * block.mean_error(delta), SNAP_UNDECLARED if snap == SNAP_ROUNDING else np.inf)
    if off > near:
        why = (
            f"{_name(k, mu)} near the unit circle, {off:.1e} from it with an error of {eta:.1e}: "
            "neither on it nor clear of it"
        )
        return Finding(block, "unclear", mu, eta, why)
    kind, snapped = _snap(mu, near, real)
    exact = kind in ("fixed", "flipping")  # the centre is then known: one error less
    if (block.defect(snapped) <= SNAP * eta) if exact else (defect <= SEMISIMPLE * eta):
        return _semisimple(block, kind, snapped, delta)
    if defect < DEFECTIVE * eta or defect < VISIBLE:
        why = (
            f"{_name(k, mu)} on the unit circle, coupled by {defect:.1e} against an error of {eta:.1e}: "
            "semisimple or defective, too close to call"
        )
        return Finding(block, "unclear", mu, eta, why)
    return _jordan(block, snapped if exact else mu / abs(mu), eta, delta)


def _off_circle(block: Block, eta: float) -> Finding:
    """No matrix within the error has an eigenvalue of this cluster on the circle: which side is it?"""
    k, mu, w = len(block.indices), block.mean, np.diag(block.B)
    if np.all(np.abs(w) < 1):
        why = f"{_name(k, mu)} inside the unit circle by more than its error {eta:.1e}"
        return Finding(block, "inside", mu, eta, why)
    why = f"{_name(k, w[np.abs(w).argmax()])} outside the unit circle by more than its error {eta:.1e}"
    return Finding(block, "outside", mu, eta, why)


def _semisimple(block: Block, kind: Kind, snapped: complex, delta: float) -> Finding:
    """The block is a multiple of the identity to within its error: of what, if that can be said."""
    k, eta, mu = len(block.indices), block.error(delta), block.mean
    exact = kind in ("fixed", "flipping")
    if k > 1 and exact and elsewhere(block, snapped, delta):
        why = (
            f"{_name(k, mu)} within the cluster's error {eta:.1e} of the unit circle, but one of them is "
            "further from it than its own error"
        )
        return Finding(block, "unclear", mu, eta, why)
    if kind == "unclear":
        why = f"{_name(k, mu)} on the unit circle, but its angle may be zero: error {eta:.1e}"
        return Finding(block, kind, mu, eta, why)
    extra = "" if k == 1 else f", semisimple (||B - mu I|| = {block.defect(mu):.1e})"
    why = (
        f"{_name(k, mu)} {abs(mu - snapped):.1e} from {_number(snapped) if exact else 'the unit circle'}, with an "
        f"error of {eta:.1e}: taken to be there{extra}"
    )
    return Finding(block, kind, snapped, eta, why)


def _jordan(block: Block, mu: complex, eta: float, delta: float) -> Finding:
    """The block is no multiple of the identity: is it a Jordan block at mu, or several eigenvalues?"""
    k = len(block.indices)
    N = block.B - mu * np.eye(k)
    nu = float(np.linalg.norm(N, 2))
    index = None if resolved(block, delta) else nilpotency(N, eta)
    if index is None:
        return Finding(
            block,
            "unclear",
            mu,
            eta,
            f"{_name(k, mu)} near the unit circle and not a Jordan block to within the error {eta:.1e}, "
            "nor separate enough to be decided one by one",
        )
    spread = (index * nu ** (index - 1) * eta) ** (1 / index)
    if spread > COARSE_BLOCK:
        return Finding(
            block,
            "unclear",
            mu,
            eta,
            f"{_name(k, mu)} on the unit circle and coupled by {nu:.1e}: "
            f"the error {eta:.1e} alone spreads them by {spread:.1e}, "
            "too coarse to tell a Jordan block from separate eigenvalues",
        )
    sizes = jordan_sizes(N, eta, index)
    return Finding(
        block,
        "defective",
        mu,
        eta,
        f"the eigenvalue {_number(mu)} on the unit circle is defective: ||B - mu I|| = {nu:.1e} "
        f"against an error of {eta:.1e}, {_blocks(sizes)}",
        sizes,
    )


def single_errors(block: Block, delta: float) -> tuple[Complex, Complex]:
    """Eigenvalues of the cluster and, to first order, how far delta moves each: ||V x|| ||y W|| delta."""
    w, X = np.linalg.eig(block.B)
    try:
        left = np.linalg.inv(X) @ block.W
    except np.linalg.LinAlgError:
        return w, np.full(w.size, np.inf)
    return w, np.linalg.norm(block.V @ X, axis=0) * np.linalg.norm(left, axis=1) * delta


def resolved(block: Block, delta: float) -> bool:
    """Whether some eigenvalue of the cluster is further from all others than their errors.

    Halves of a Jordan block of size k never are: its error splits it by a distance d and gives each part a
    condition that makes d / k of that same error.
    """
    w, error = single_errors(block, delta)
    gap = np.abs(w[:, None] - w) / np.maximum(error[:, None] + error, SMALLEST)
    np.fill_diagonal(gap, np.inf)
    return bool(np.any(gap.min(axis=1) > RESOLVED))


def elsewhere(block: Block, center: complex, delta: float) -> bool:
    """Whether some eigenvalue of the cluster is not at its centre, by its own error if not by the cluster's."""
    w, error = single_errors(block, delta)
    return bool(np.any(np.abs(w - center) > OWN * error))


def nilpotency(N: Complex, eta: float) -> int | None:
    """The smallest s with N^s = 0 to within what an error of eta in N can do, None if there is none.

    An error F moves the eigenvalues of such an N by about (N^(s-1) F)^(1/s) (Lidskii): no more may be seen.
    """
    nu, power, before = float(np.linalg.norm(N, 2)), N, N
    seen = float(np.abs(np.diag(N)).max())
    for s in range(2, min(len(N), LONGEST) + 1):
        before, power = power, power @ N
        if np.linalg.norm(power, 2) <= NILPOTENT * ((nu + eta) ** s - nu**s):
            moved = (s * float(np.linalg.norm(before, 2)) * eta) ** (1 / s)
            return s if seen <= max(SEEN * moved, 2 * eta) else None
    return None


def jordan_sizes(N: Complex, eta: float, index: int) -> tuple[int, ...]:
    """Sizes (>= 2) of the Jordan blocks of a nilpotent N known to eta, from the ranks of its powers."""
    k, nu = len(N), float(np.linalg.norm(N, 2))
    nullity, power = [0], np.eye(k, dtype=complex)
    for j in range(1, index + 1):
        power = power @ N
        tolerance = 2 * sum(comb(j, i) * nu ** (j - i) * eta**i for i in range(1, j + 1))
        nullity.append(int(np.sum(np.linalg.svd(power, compute_uv=False) <= tolerance)))
    at_least = np.diff(np.maximum.accumulate(nullity))  # number of blocks of size >= j, j = 1, 2, ...
    exactly = at_least - np.r_[at_least[1:], 0]
    sizes = [j for j in range(index, 1, -1) for _ in range(max(0, int(exactly[j - 1])))]
    return tuple(sizes) or (2,)


def _snap(mu: complex, near: float, real: bool) -> tuple[Kind, complex]:
    targets: tuple[tuple[Kind, float], ...] = (("fixed", 1.0), ("flipping", -1.0))
    for kind, target in targets:
        if abs(mu - target) <= near:
            return kind, complex(target)
        if not real and abs(mu - target) <= CLEAR * near:
            return "unclear", mu
    return "rotating", mu / abs(mu)


def _near_unitary(B: Complex, eta: float) -> bool:
    """B^H B = I to within the error, and its angles too far apart to be one eigenvalue."""
    k = len(B)
    gram = float(np.linalg.norm(B.conj().T @ B - np.eye(k), 2))
    w = np.diag(B)
    return gram <= 2 * SEMISIMPLE * eta and float(np.abs(w - w.mean()).max()) > DEFECTIVE * eta


def _name(k: int, mu: complex) -> str:
    return f"the eigenvalue {_number(mu)} is" if k == 1 else f"a cluster of {k} eigenvalues at {_number(mu)} is"


def _blocks(sizes: tuple[int, ...]) -> str:
    return " and ".join(
        f"{sizes.count(s)} blocks of size {s}" if sizes.count(s) > 1 else f"a block of size {s}"
        for s in dict.fromkeys(sizes)
    )


def _number(mu: complex) -> str:
    return f"{mu.real:.9g}" if abs(mu.imag) < REAL else f"{mu.real:.6g}{mu.imag:+.6g}i"
