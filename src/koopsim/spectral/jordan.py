"""A matrix within the noise that has a Jordan block on the unit circle, of any size.

    W (A + E) V = mu I + N,      N nilpotent, with the Jordan blocks that were found

N is next to B - mu I: singular values that the rank of N does not allow are set to zero, then those of what remains
(the staircase of Kublanovskaya; Golub & Wilkinson 1976). But any matrix similar to N will do, so only what no
similarity can give is asked of E. A change D of the block is a commutator N Y - Y N exactly if tr(G D) = 0 for all G
that commute with N: those are as many conditions as the orbit of N has codimension (k, for one block of size k),

    tr(G W E V) = tr(G D)   for all G with G N = N G,       the smallest E, by Newton's method.

The angle of a rotation is free: of tr(W E V) only the part along the radius is given.
"""

from __future__ import annotations

import numpy as np

from .clusters import Block, SchurForm, extract, schur_form
from .noise import EPS64
from .resolvent import Complex
from .structure import Finding

STEPS = 6
DEPENDENT = 1e-11  # conditions are independent when their Gram matrix is, to this
LARGEST = 24  # size of a block that is refined: what commutes with N takes an SVD of its square
MOST = 2**24  # numbers in all conditions together


def jordan_distance(form: SchurForm, f: Finding) -> float:
    """How far (Frobenius) a matrix with this Jordan structure was found; infinite where Newton's method lost it."""
    A = form.Q @ form.T @ form.Q.conj().T
    A = np.real(A) if form.real else A
    kernels = blocks_of_at_least(f.sizes, len(f.block.indices))
    rounding = form.n * EPS64 * float(np.linalg.norm(A))
    E, best = np.zeros_like(A), np.inf
    block, one = f.block, np.eye(len(f.block.indices))
    too_large = len(one) > LARGEST or sum(c * c for c in kernels) * form.n**2 > MOST
    for _ in range(STEPS):
        mu = centre(f, block)
        N = nilpotent(block.B - mu * one, kernels)
        D = mu * one + N - block.B
        if not np.isfinite(block.norm) or not np.all(np.isfinite(D)):
            break
        term = block.V @ D @ block.W if np.linalg.norm(D) > rounding * block.norm else np.zeros_like(A)
        term = 2 * np.real(term) if form.mirrored(f.block) else np.real(term) if form.real else term
        best = min(best, float(np.linalg.norm(E + term)))  # with this added, it is there exactly
        if not np.any(term) or too_large:  # then the first matrix found is the one
            break
        radial = None if f.eigenvalue.imag == 0 else np.conj(mu)
        E = newton_step(E, block, D, commuting(N, kernels), radial, form.real)
        moved = schur_form(A + E)
        nearest = np.argsort(np.abs(moved.eigenvalues - f.eigenvalue))[: len(D)]
        block = extract(moved, tuple(sorted(int(i) for i in nearest)))
    return best


def centre(f: Finding, block: Block) -> complex:
    """What the eigenvalue is taken to be: 1, -1, or what is on the circle at its own angle."""
    return f.eigenvalue if f.eigenvalue.imag == 0 else block.mean / abs(block.mean)


def newton_step(E: Complex, block: Block, D: Complex, G: list[Complex], radial: complex | None, real: bool) -> Complex:
    """The smallest E that meets the conditions, linear in what changes from the present one.

    `radial`: what turns the radius at mu into the real axis, where only that part of the first condition counts.
    """
    F = np.array([(block.V @ g @ block.W).T.ravel() for g in G])
    d = np.array([np.trace(g @ D) for g in G]) + F @ E.ravel()
    skip = 0 if radial is None else 1
    if radial is not None:  # the first of G is the identity
        F[0], d[0] = radial * F[0], (radial * d[0]).real
    size = np.maximum(np.linalg.norm(F, axis=1), np.finfo(float).tiny)
    F, d = F / size[:, None], d / size
    if real:
        F, d = np.vstack([F.real, F.imag[skip:]]), np.r_[d.real, d.imag[skip:]]
    gram = F @ F.conj().T
    return (F.conj().T @ (np.linalg.pinv(gram, rcond=DEPENDENT, hermitian=True) @ d)).reshape(E.shape)


def commuting(N: Complex, kernels: list[int]) -> list[Complex]:
    """A basis of the matrices that commute with N: the identity, then others of trace zero."""
    k, one = len(N), np.eye(len(N))
    Vt = np.linalg.svd(np.kron(N, one) - np.kron(one, N.T))[2]
    found = Vt[k * k - sum(c * c for c in kernels) :].conj().reshape(-1, k, k)
    return [one.astype(complex), *(G - np.trace(G) / k * one for G in found)]


def blocks_of_at_least(sizes: tuple[int, ...], k: int) -> list[int]:
    """How many Jordan blocks have size 1 or more, 2 or more, ...: by how much the kernels of N, N^2, ... grow."""
    every = [*sizes, *[1] * max(0, k - sum(sizes))]
    return [sum(s >= j for s in every) for j in range(1, max(every) + 1)]


def nilpotent(N: Complex, kernels: list[int]) -> Complex:
    """A nilpotent matrix near N whose powers have kernels that grow by the numbers given."""
    k = len(N)
    if k == 0:
        return N
    c = min(kernels[0], k) if kernels else k
    V = np.linalg.svd(N)[2].conj().T
    basis = np.hstack([V[:, k - c :], V[:, : k - c]])  # the kernel first
    S = basis.conj().T @ N @ basis
    S[:, :c] = 0.0
    S[c:, c:] = nilpotent(S[c:, c:], kernels[1:])
    return basis @ S @ basis.conj().T
