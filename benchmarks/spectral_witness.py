"""Is a verdict right up to the noise? A real matrix that has it exactly, and how far that is from the given one.

    min ||E||_F   with   W_i (A + E) V_i = mu_i I   for every group of eigenvalues claimed to be on the circle

by Newton's method from E = 0, in real unknowns, n^2 of them. V_i and W_i are bases of the group's right and left
invariant subspaces of the present A + E, from SciPy's Schur forms. mu_i is 1, -1, or the group's mean over its
modulus: the angle of a rotation is free. At the end A + E is written in the basis of its invariant subspaces,
each claimed block replaced by mu_i I outright, and the rest must be inside the circle. So the matrix has the
claimed verdict by construction, and nothing of `koopsim.spectral` is used but the claim.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import block_diag, schur
from scipy.linalg.lapack import ztrsen

STEPS = 8
INSIDE = 1e-12  # how far inside the rest must be


def claimed(verdict) -> list[tuple[complex | None, np.ndarray]]:
    """(1, -1 or None for a free angle; the computed eigenvalues) for each group that is said to be on the circle."""
    w, groups = verdict.eigenvalues, []
    for target, indices in ((1.0 + 0j, verdict.fixed), (-1.0 + 0j, verdict.flipping)):
        if indices:
            groups.append((target, w[list(indices)]))
    for mu in dict.fromkeys(r.eigenvalue for r in verdict.rotating):
        members = [i for r in verdict.rotating if r.eigenvalue == mu for i in r.indices if w[i].imag * mu.imag > 0]
        groups.append((None, w[members]))
    return groups


def witness(A: np.ndarray, verdict) -> tuple[np.ndarray, float]:
    """(a matrix with exactly the claimed eigenvalues on the circle, spectral radius of the rest of it)."""
    groups, n, E = claimed(verdict), len(A), np.zeros_like(A)
    for _ in range(STEPS):
        rows, right = [], []
        for target, eigenvalues in groups:
            V, W = subspace(A + E, eigenvalues)
            B = W @ (A + E) @ V
            wanted = on_circle(target, B)
            functional = np.kron(W, V.T)  # takes the rows of E, one after the other, to W E V
            d = (wanted - B).ravel() + functional @ E.ravel()
            F, d = np.vstack([functional.real, functional.imag]), np.r_[d.real, d.imag]
            if target is None:  # moving along the circle is free
                t = (1j * wanted).ravel() / np.linalg.norm(wanted)
                t = np.r_[t.real, t.imag]
                F, d = F - np.outer(t, t @ F), d - t * (t @ d)
            rows.append(F)
            right.append(d)
        E = np.linalg.lstsq(np.vstack(rows), np.concatenate(right), rcond=1e-12)[0].reshape(n, n)
    return exact(A + E, groups)


def exact(M: np.ndarray, groups) -> tuple[np.ndarray, float]:
    """M with each group's block replaced by a multiple of the identity on the circle."""
    bases, blocks, left = [], [], list(np.linalg.eigvals(M))
    for target, eigenvalues in groups:
        V, W = subspace(M, eigenvalues)
        wanted = on_circle(target, W @ M @ V)
        mirror = target is None  # the conjugate rotation
        bases += [V, V.conj()] if mirror else [V]
        blocks += [wanted, wanted.conj()] if mirror else [wanted]
        for mu in (*eigenvalues, *(eigenvalues.conj() if mirror else ())):
            left.pop(int(np.argmin(np.abs(np.array(left) - mu))))
    radius = 0.0
    if left:
        V, W = subspace(M, np.array(left))
        bases.append(V)
        blocks.append(W @ M @ V)
        radius = float(np.abs(np.linalg.eigvals(blocks[-1])).max())
    X = np.hstack(bases)
    return X @ block_diag(*blocks) @ np.linalg.inv(X), radius


def on_circle(target: complex | None, B: np.ndarray) -> np.ndarray:
    mean = np.trace(B) / len(B)
    return (mean / abs(mean) if target is None else target) * np.eye(len(B))


def subspace(M: np.ndarray, eigenvalues: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """V and W with W V = I: right and left invariant subspaces of the eigenvalues of M nearest to those given."""

    def basis(H: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        T, Q = schur(H.astype(complex), output="complex")[:2]
        left = {i: complex(mu) for i, mu in enumerate(np.diag(T))}
        select = np.zeros(len(H), dtype=np.int32)
        for mu in wanted:
            i = min(left, key=lambda j, mu=mu: abs(left[j] - mu))
            select[i] = 1
            del left[i]
        return ztrsen(select, T, Q, job="N")[1][:, : len(wanted)]

    V, L = basis(M, eigenvalues), basis(M.conj().T, eigenvalues.conj())
    return V, np.linalg.solve(L.conj().T @ V, L.conj().T)


def right_up_to_noise(A: np.ndarray, verdict) -> tuple[bool, float]:
    """Whether a matrix within the verdict's noise of A has the verdict; its distance, in units of the noise."""
    if verdict.case not in ("fixed-point", "invariant-set"):
        return False, np.inf  # nothing is built for these: they have to be right as they stand
    near, radius = witness(A, verdict)
    distance = float(np.linalg.norm(near - A)) / (verdict.noise * float(np.linalg.norm(A)))
    return bool(distance <= 1 and radius < 1 - INSIDE), distance
