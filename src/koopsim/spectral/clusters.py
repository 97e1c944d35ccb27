"""Eigenvalue clusters: what noise cannot tear apart is decided together.

A Jordan form cannot be computed in floating point, a *cluster* can: reorder the Schur form A = Q T Q^H so
that the cluster's block T11 comes first (LAPACK trsen) and decouple it with a Sylvester equation,

    T11 R - R T22 = -T12,     V = Q1,   W = [I, -R] Q^H,     P = V W,     W A V = T11.

With p = ||P|| and sep = min ||T11 X - X T22||_F / ||X||_F, every A0 within delta of A has, as long as
4 p delta < sep, a matching cluster whose block is similar to T11 + F with ||F|| <= 2 p delta (Stewart &
Sun, *Matrix Perturbation Theory*, V.2). So a cluster is grown until 4 p delta < sep holds. The two halves
of a perturbed Jordan block never pass that test alone: by the theorem, nothing within delta would join them. The sep
used is a lower bound, never an estimate (`separation.py`). One eigenvalue of a large matrix may be shown to be alone
by a disc instead (`eigenbasis.py`), at a noise up to p times as large; its `separation` is then 4 p times that noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import rsf2csf, schur

from .eigenbasis import EigenBasis, eigenbasis
from .resolvent import DENSE, LAPACK, Allowance, Circles, Complex, is_diagonal
from .separation import separation

ISOLATION = 4.5  # 4 by the theorem; the rest is for rounding
TRIALS = 10  # sizes tried while a cluster grows
HUGE = 1e150  # a coupling beyond this is that of eigenvalues in common


@dataclass(frozen=True)
class Block:
    """One isolated cluster of A: W A V = B, W V = I, P = V W."""

    indices: tuple[int, ...]
    V: Complex
    W: Complex
    B: Complex
    norm: float
    separation: float

    @property
    def mean(self) -> complex:
        return complex(np.trace(self.B) / len(self.indices))

    def error(self, delta: float) -> float:
        """Bound on ||F||: how far the block may be from that of a matrix within delta."""
        p = self.norm
        return p * delta * (1.0 + min(1.0, 4.0 * p * delta / self.separation if self.separation else 1.0))

    def mean_error(self, delta: float) -> float:
        """Bound on the error of the mean: |tr(P E)| / k <= ||P||_F delta / k, as ||E|| is a Frobenius norm."""
        return self.error(delta) * float(np.linalg.norm(self.W)) / self.norm / len(self.indices)

    def defect(self, center: complex) -> float:
        """||B - center I||: zero exactly when A is `center` times the identity on this subspace."""
        return float(np.linalg.norm(self.B - center * np.eye(len(self.indices)), 2))


@dataclass(frozen=True, eq=False)
class SchurForm:
    """A = Q T Q^H; `conjugate[i]` is the index of the conjugate of eigenvalue i, None for a complex A."""

    T: Complex
    Q: Complex
    conjugate: NDArray[np.intp] | None
    allowance: Allowance = field(default_factory=Allowance, repr=False)

    @property
    def n(self) -> int:
        return len(self.T)

    @property
    def real(self) -> bool:
        return self.conjugate is not None

    @property
    def eigenvalues(self) -> Complex:
        return np.diag(self.T)

    @cached_property
    def normal(self) -> bool:
        return is_diagonal(self.T)

    @cached_property
    def basis(self) -> EigenBasis:
        return eigenbasis(self.T)

    @cached_property
    def circles(self) -> Circles:
        large = self.n > DENSE and not self.normal
        return Circles(self.T, self.real, self.allowance, self.basis if large else None)

    def as_normal(self) -> SchurForm:
        """The diagonal of T alone."""
        return SchurForm(np.asfortranarray(np.diag(self.eigenvalues)), self.Q, self.conjugate)

    def with_mirror(self, indices: Iterable[int]) -> set[int]:
        """These eigenvalues and their conjugates."""
        chosen = set(indices)
        return chosen if self.conjugate is None else chosen | {int(self.conjugate[i]) for i in chosen}

    def symmetric(self, block: Block) -> bool:
        """Whether a cluster of a real matrix is its own mirror image."""
        return self.real and self.with_mirror(block.indices) == set(block.indices)

    def mirrored(self, block: Block) -> bool:
        """Whether it stands for its complex conjugate too."""
        return self.real and not self.symmetric(block)


def schur_form(A: NDArray) -> SchurForm:
    """Complex Schur form A = Q T Q^H, and for a real A the index of each eigenvalue's conjugate.

    A real matrix goes through the real form: faster, and its conjugate pairs are known exactly.
    """
    if np.iscomplexobj(A):
        T, Q = schur(A, output="complex")[:2]
        return SchurForm(np.asfortranarray(T), np.asfortranarray(Q), None)
    real, Z = schur(A, output="real")[:2]
    T, Q = rsf2csf(real, Z)
    T, Q = np.asfortranarray(T, dtype=complex), np.asfortranarray(Q, dtype=complex)  # as LAPACK wants them
    n = len(A)
    conjugate = np.arange(n)
    first = np.flatnonzero(np.diag(real, -1))
    conjugate[first], conjugate[first + 1] = first + 1, first
    alone = np.flatnonzero(conjugate == np.arange(n))
    T[alone, alone] = real[alone, alone]
    return SchurForm(T, Q, conjugate)


def extract(form: SchurForm, indices: tuple[int, ...], delta: float = 0.0) -> Block:
    """The chosen eigenvalues, decoupled from the rest; quickly where that shows them isolated at noise delta."""
    n, k, Q = form.n, len(indices), form.Q
    if k == n:
        return Block(indices, Q, Q.conj().T, form.T, 1.0, np.inf)
    if form.normal:  # nothing to reorder or decouple
        w, chosen = form.eigenvalues, np.isin(np.arange(n), indices)
        gap = float(np.abs(w[chosen, None] - w[None, ~chosen]).min())
        V = Q[:, chosen]
        return Block(indices, V, V.conj().T, np.diag(w[chosen]), 1.0, gap)
    if k == 1 and n > DENSE:
        (i,) = indices
        norm = float(form.basis.norms[i])
        sep = 4 * norm * form.basis.isolation(i)
        if ISOLATION * norm * delta < sep:
            x, y = form.basis.X[:, i : i + 1], form.basis.Y[i : i + 1]
            return Block(indices, Q @ x, y @ Q.conj().T, form.T[i : i + 1, i : i + 1], norm, sep)
    return reordered(form, indices, delta)


def reordered(form: SchurForm, indices: tuple[int, ...], delta: float = 0.0) -> Block:
    """The same by LAPACK trsen and a Sylvester equation, for any number of eigenvalues."""
    n, k = form.n, len(indices)
    select = np.zeros(n, dtype=np.int32)
    select[list(indices)] = 1
    T, Q, _, _, _, _, info = LAPACK.ztrsen(select, form.T, form.Q, job="N")
    if info:
        raise np.linalg.LinAlgError(f"LAPACK trsen could not reorder the Schur form (info {info})")
    T11, T12, T22 = T[:k, :k], T[:k, k:], T[k:, k:]
    if k == 1:
        R, info = LAPACK.ztrtrs(T22 - T11 * np.eye(n - 1), T12.ravel(), trans=1)
        R = R[None, :] if info == 0 else np.full_like(T12, np.inf)
    else:
        R, scale, _ = LAPACK.ztrsyl(T11, T22, -T12, isgn=-1)  # eigenvalues in common make R huge, or scale 0
        R = R / scale if scale > 0 else np.full_like(R, np.inf)
    if not np.all(np.isfinite(R)) or np.abs(R).max() > HUGE:
        return Block(indices, Q[:, :k], Q[:, :k].conj().T, T11, np.inf, 0.0)
    W = (Q[:, :k] - Q[:, k:] @ R.conj().T).conj().T
    norm = float(np.sqrt(1.0 + np.linalg.norm(R, 2) ** 2))
    sep = separation(T11, T22, form.allowance if n > DENSE else None, ISOLATION * norm * delta)
    return Block(indices, Q[:, :k], W, T11, norm, sep)


def isolate(form: SchurForm, delta: float, seed: Iterable[int]) -> Block:
    """Grow `seed` to the smallest cluster that no perturbation of size delta mixes with the rest."""
    w, n = form.eigenvalues, form.n
    members = _closed(form, set(seed))
    for _ in range(0 if form.allowance.spent else TRIALS):
        block = extract(form, tuple(sorted(members)), delta)
        if ISOLATION * block.norm * delta < block.separation:
            return block
        rest = np.array(sorted(set(range(n)) - members))
        center = w[list(members)].mean()
        spread = max(np.abs(w[list(members)] - center).max(), 2 * delta)
        distance = np.abs(w[rest] - center)
        reach = max(distance.min() * 1.5, 1.5 * spread) if len(members) > 1 else distance.min() * 1.01 + 2 * delta
        members = _closed(form, members | {int(i) for i in rest[distance <= reach]})  # the nearest at least
        if len(members) == n:
            break
    return extract(form, tuple(range(n)))


def _closed(form: SchurForm, members: set[int]) -> set[int]:
    """A cluster that meets its mirror image contains it."""
    both = form.with_mirror(members)
    return both if len(both) < 2 * len(members) else members
