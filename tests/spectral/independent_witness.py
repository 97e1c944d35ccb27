"""Is a verdict right up to the noise? A real matrix that has it exactly, and how far that is from the given one.

    min ||E||_F   with   W_i (A + E) V_i = mu_i I   for every group of eigenvalues claimed to be on the circle,
    or                   mean and discriminant of one 2 x 2 block as those of a Jordan block on it

by Newton's method from E = 0, in real unknowns, n^2 of them. V_i and W_i are bases of the group's right and left
invariant subspaces of the present A + E, from SciPy's Schur forms. mu_i is 1, -1, or the group's mean over its
modulus: the angle of a rotation is free. At the end the k smallest singular values of A + E - mu_i I, which Newton
has left at rounding, are added to the distance: without them mu_i has k eigenvectors. The other eigenvalues must
be inside the circle. So there is such a matrix, whatever `koopsim.spectral` thinks; only its claim is used. Where
Newton's method fails, E = sum of V_i (mu_i I - B_i) W_i is put to the same test.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import schur
from scipy.linalg.lapack import ztrsen

STEPS = 8
EPS = np.finfo(float).eps
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


def witness(A: np.ndarray, verdict) -> tuple[float, float]:
    """(distance of a matrix with exactly the claimed eigenvalues on the circle, spectral radius of its others)."""
    groups, n, E = claimed(verdict), len(A), np.zeros_like(A)
    tried = [replaced(A, groups)]  # not the smallest, but safe where Newton is not: groups close to one another
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
        E = np.linalg.lstsq(np.vstack(rows), np.concatenate(right), rcond=1e-10)[0].reshape(n, n)
    tried.append(E)
    found = [(float(np.linalg.norm(E)) + cost, radius) for E in tried for cost, radius in [exact(A + E, groups)]]
    return min((f for f in found if f[1] < 1 - INSIDE), default=found[0])


def replaced(A: np.ndarray, groups) -> np.ndarray:
    """sum of V (mu I - B) W: each group's block replaced as it stands, at the price of its projector's norm."""
    E = np.zeros_like(A)
    for target, eigenvalues in groups:
        V, W = subspace(A, eigenvalues)
        B = W @ A @ V
        E = E + (1 if target is not None else 2) * (V @ (on_circle(target, B) - B) @ W).real
    return E


def jordan_witness(A: np.ndarray, verdict) -> float:
    """Distance of a matrix with a Jordan block of size 2 on the circle, where that is the claim; else infinite."""
    sizes = [b.size for b in verdict.defective if b.eigenvalue.imag >= 0]
    block = next((s for s in verdict.snapped if s.taken == verdict.defective[0].eigenvalue), None) if sizes else None
    if block is None or sizes != [2]:
        return np.inf
    w, mu = verdict.eigenvalues[list(block.indices)], block.taken
    real, n, E = mu.imag == 0, len(A), np.zeros_like(A)
    eigenvalues = w if real else w[w.imag * mu.imag > 0]
    for _ in range(STEPS):
        V, W = subspace(A + E, eigenvalues)
        B = W @ (A + E) @ V
        mean, half = np.trace(B) / 2, (B[0, 0] - B[1, 1]) / 2
        slopes = np.eye(2) / 2, np.array([[half, B[1, 0]], [B[0, 1], -half]])  # of the two, by the entries of B
        F = np.array([(W.T @ G @ V.T).ravel() for G in slopes])  # d mean and d discriminant along E
        d = np.array([(mu if real else mean / abs(mean)) - mean, -(half**2 + B[0, 1] * B[1, 0])]) + F @ E.ravel()
        if not real:  # of the mean only its modulus
            turn = np.conj(mean / abs(mean))
            radial, d0 = (turn * F[0]).real, (turn * d[0]).real
            F, d = np.vstack([radial, F[1].real, F[1].imag]), np.r_[d0, d[1].real, d[1].imag]
        else:
            F, d = np.vstack([F.real, F.imag]), np.r_[d.real, d.imag]
        E = np.linalg.lstsq(F, d, rcond=1e-10)[0].reshape(n, n)
    M = A + E
    V, W = subspace(M, eigenvalues)
    B = W @ M @ V
    mean, half = np.trace(B) / 2, (B[0, 0] - B[1, 1]) / 2
    centre = mu if real else mean / abs(mean)
    J = centre * np.eye(2) + np.array([[half, B[0, 1]], [B[1, 0], -half]])
    if abs(B[0, 1]) >= abs(B[1, 0]):
        J[1, 0] = -(half**2) / B[0, 1]
    else:
        J[0, 1] = -(half**2) / B[1, 0]
    if np.linalg.norm(J - B) <= n * EPS * np.linalg.norm(M) * np.linalg.norm(W):
        return float(np.linalg.norm(E))  # there already, as far as a Schur form can tell
    change = V @ (J - B) @ W
    return float(np.linalg.norm(E + (change.real if real else 2 * change.real)))


def exact(M: np.ndarray, groups) -> tuple[float, float]:
    """(what it still costs to have each group on the circle exactly, spectral radius of the others).

    Taking the k smallest singular values off M - mu I leaves a matrix with k eigenvectors at mu.
    """
    cost, left = 0.0, list(np.linalg.eigvals(M))
    for target, eigenvalues in groups:
        V, W = subspace(M, eigenvalues)
        mu = on_circle(target, W @ M @ V)[0, 0]
        s = np.linalg.svd(M - mu * np.eye(len(M)), compute_uv=False)[-len(eigenvalues) :]
        cost += float(np.linalg.norm(s)) * (1 if target is not None else 2)  # and the conjugate rotation
        for w in (*eigenvalues, *(eigenvalues.conj() if target is None else ())):
            left.pop(int(np.argmin(np.abs(np.array(left) - w))))
    return cost, float(np.abs(left).max()) if left else 0.0


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
    if verdict.case in ("fixed-point", "invariant-set"):
        distance, radius = witness(A, verdict)
    else:
        distance, radius = jordan_witness(A, verdict), 0.0  # a Jordan block is divergence, whatever the rest is
    believed = verdict.noise / (1 - verdict.noise) + 8 * len(A) * EPS  # relative to the larger matrix; and rounding
    return bool(distance <= believed * np.linalg.norm(A) and radius < 1 - INSIDE), float(
        distance / np.linalg.norm(A) / verdict.noise
    )
