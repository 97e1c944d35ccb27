"""Matrices whose case is known: random Jordan structures under similarity and noise, near misses, crowds, exact ones.

The oracle is the structure A0 = S J S^-1 was built from; A = A0 + E with ||E||_F = noise ||A0||_F is what
`analyze(A, noise)` sees. Noise 0 means: analyze(A) with its default.

A case is *ambiguous* when the truth itself is out of reach: a matrix within MARGIN times the noise of A0 has
another verdict and is at least as degenerate as A0 (an eigenvalue off the circle may be on it, a cluster on
the circle may mix with a neighbour, a Jordan block may be none), or the block at an eigenvalue on the circle
is known to no better than 1e-3. This is computed from S and J, not from `analyze`. For those undecided is a
right answer. A *below-noise* case is an ambiguous one with an eigenvalue nearer to the circle (or, on it, to
the real axis) than twice its own error ||P|| noise ||A||: the same A is equally well a noisy matrix with that
eigenvalue *on* the circle, and nothing that only sees A can tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import block_diag, null_space, orth, svdvals

MARGIN = 10.0
KNOWN = 1e-3
NOISES = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4)


@dataclass
class Case:
    A: np.ndarray
    noise: float
    truth: str
    tags: set[str] = field(default_factory=set)
    ambiguous: bool = False
    below_noise: bool = False


def jordan(mu: complex, size: int) -> np.ndarray:
    """Real Jordan block of mu (2 size x 2 size if mu is not real)."""
    if mu.imag == 0:
        return mu.real * np.eye(size) + np.eye(size, k=1)
    C = np.array([[mu.real, mu.imag], [-mu.imag, mu.real]])
    return np.kron(np.eye(size), C) + np.kron(np.eye(size, k=1), np.eye(2))


def random_blocks(rng: np.random.Generator) -> tuple[list[tuple[complex, int]], set[str]]:
    """(eigenvalue, size) pairs and what was put in on purpose."""

    def unit() -> complex:
        return complex(np.exp(1j * rng.uniform(0.05, np.pi - 0.05)))

    def inside() -> complex:
        r = rng.uniform(0, 0.95)
        return complex(r * rng.choice([-1, 1])) if rng.random() < 0.5 else r * unit()

    tags: set[str] = set()
    blocks: list[tuple[complex, int]] = []
    for _ in range(rng.integers(0, 4)):
        blocks.append((inside(), int(rng.choice([1, 1, 1, 2, 3]))))
    if rng.random() < 0.15:
        center = inside()
        blocks += (
            [(center + complex(g), 1) for g in (0, 1e-3, -1e-6)]
            if center.imag == 0
            else [(center, 1), (center * (1 - 1e-4), 1)]
        )
        tags.add("cluster")
    pick = rng.random()
    if pick < 0.55 or not blocks:
        for kind in rng.choice(["one", "minus", "pair"], size=rng.integers(1, 3), p=[0.5, 0.2, 0.3]):
            mu = {"one": 1 + 0j, "minus": -1 + 0j, "pair": unit()}[str(kind)]
            blocks += [(mu, 1)] * int(rng.integers(1, 4) if kind != "pair" else rng.integers(1, 3))
            tags.add(str(kind))
    if rng.random() < 0.2:
        mu = [1 + 0j, -1 + 0j, unit()][rng.integers(3)]
        blocks.append((mu, int(rng.integers(2, 4)) if mu.imag == 0 else 2))
        tags.add("defective")
    if rng.random() < 0.15:
        r = rng.uniform(1.05, 1.5)
        blocks.append((complex(r) if rng.random() < 0.5 else r * unit(), int(rng.choice([1, 1, 2]))))
        tags.add("outside")
    if rng.random() < 0.2:
        gap = float(10.0 ** -rng.integers(2, 10)) * rng.choice([1, 1, -1])
        direction = [1 + 0j, -1 + 0j, unit()][rng.integers(3)]
        blocks.append((direction * (1 - gap), 1))
        tags.add("near-miss")
    if rng.random() < 0.05:
        blocks.append((complex(np.exp(1j * 10.0 ** -rng.uniform(1, 6))), 1))
        tags.add("slow-rotation")
    return blocks, tags


def truth_of(blocks: list[tuple[complex, int]]) -> str:
    on = [(mu, s) for mu, s in blocks if abs(abs(mu) - 1) < 1e-12]
    if any(abs(mu) > 1 + 1e-12 for mu, _ in blocks) or any(s > 1 for _, s in on):
        return "divergent"
    if not on:
        return "origin"
    return "fixed-point" if all(abs(mu - 1) < 1e-12 for mu, _ in on) else "invariant-set"


def similarity(rng: np.random.Generator, n: int, cond: float) -> np.ndarray:
    U, V = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    s = np.exp(rng.uniform(0, 1, n) * np.log(cond))
    s[0], s[-1] = 1.0, cond if n > 1 else 1.0
    return U * s @ V.T


def _complex_form(blocks: list[tuple[complex, int]], S: np.ndarray):
    """Real pairs as two complex Jordan blocks: (blocks, columns of each, S)."""
    out, columns, S, start = [], [], S.astype(complex), 0
    for mu, s in blocks:
        if mu.imag == 0:
            out.append((mu, s))
            columns.append(np.arange(start, start + s))
            start += s
            continue
        c = np.arange(start, start + 2 * s)
        S[:, c] = S[:, c] @ np.kron(np.eye(s), np.array([[1, 1], [1j, -1j]]) / np.sqrt(2))
        out += [(mu, s), (mu.conjugate(), s)]
        columns += [c[::2], c[1::2]]
        start += 2 * s
    return out, columns, S


def below_noise(blocks: list[tuple[complex, int]], S: np.ndarray, delta: float) -> bool:
    """Whether an eigenvalue is nearer to the circle, or if on it to the real axis, than twice its own error."""
    blocks, columns, S = _complex_form(blocks, S)
    inverse = np.linalg.inv(S)
    for (mu, _), c in zip(blocks, columns, strict=True):
        error = 2 * np.linalg.norm(S[:, c] @ inverse[c], 2) * delta
        gap = abs(abs(mu) - 1)
        if 1e-12 < gap <= error or (gap <= 1e-12 and 0 < abs(mu.imag) <= error):
            return True
    return False


def ambiguous(blocks: list[tuple[complex, int]], S: np.ndarray, A0: np.ndarray, delta: float) -> bool:
    """Whether MARGIN delta reaches a structure with another verdict; see the module docstring."""
    reach = MARGIN * delta
    blocks, columns, S = _complex_form(blocks, S)
    moduli = np.array([abs(mu) for mu, _ in blocks])

    def crossed(radius: float) -> bool:
        z = radius * np.exp(1j * np.r_[np.linspace(0, np.pi, 65), [abs(np.angle(mu)) for mu, _ in blocks]])
        return min(svdvals(A0 - zi * np.eye(len(A0)))[-1] for zi in z) <= reach

    outside = moduli[moduli > 1 + 1e-12]
    if outside.size and not crossed((outside.max() + max(1.0, moduli[moduli < outside.max()].max(initial=1.0))) / 2):
        return False  # certainly divergent, whatever the rest
    decisive_jordan = False
    doubtful = False
    on = [i for i, m in enumerate(moduli) if abs(m - 1) <= 1e-12]
    off = moduli[np.abs(moduli - 1) > 1e-12]
    inner = off[off < 1].max(initial=0.0)
    doubtful |= (off < 1).any() and crossed((1 + inner) / 2 if on or outside.size else 1.0)
    doubtful |= outside.size > 0
    for mu in {blocks[i][0] for i in on if blocks[i][0].imag >= 0}:
        mine = [i for i in on if blocks[i][0] == mu]
        c = np.concatenate([columns[i] for i in mine])
        Q1 = orth(S[:, c])
        p = np.linalg.norm(S[:, c] @ np.linalg.inv(S)[c], 2)
        T11 = Q1.conj().T @ A0 @ Q1
        unclear = p * delta > KNOWN
        if len(c) < len(S):
            Q2 = null_space(Q1.conj().T)
            T22 = Q2.conj().T @ A0 @ Q2
            sep = svdvals(np.kron(np.eye(len(T22)), T11) - np.kron(T22.T, np.eye(len(T11))))[-1]
            unclear |= 4 * p * reach > sep
        index = max(blocks[i][1] for i in mine)
        if index > 1:
            nu = np.linalg.norm(T11 - mu * np.eye(len(c)), 2)
            unclear |= nu < p * reach or (index * nu ** (index - 1) * p * delta) ** (1 / index) > 0.03
            decisive_jordan |= not unclear
        doubtful |= unclear
    return bool(doubtful and not decisive_jordan)


def near_miss_blocks(rng: np.random.Generator) -> tuple[list[tuple[complex, int]], set[str]]:
    """Eigenvalues that are 1e-9 off the circle, with and without one on it, and others well inside."""
    direction = [1 + 0j, -1 + 0j, complex(np.exp(1j * rng.uniform(0.05, np.pi - 0.05)))][rng.integers(3)]
    inside, outside = direction * (1 - 1e-9), direction * (1 + 1e-9)
    shape = str(rng.choice(["inside", "outside", "cluster", "beside 1", "defective", "defective on"]))
    blocks = {
        "inside": [(inside, 1)],
        "outside": [(outside, 1)],
        "cluster": [(inside, 1), (inside, 1), (direction * (1 - 2e-9), 1)],
        "beside 1": [(1 + 0j, 1), (inside, 1)],
        "defective": [(inside, 2)],
        "defective on": [(direction, 2)],
    }[shape]
    blocks = blocks + [(complex(rng.uniform(-0.9, 0.9)), 1) for _ in range(rng.integers(1, 5))]
    return blocks, {f"1e-9 {shape}"}


def random_case(rng: np.random.Generator, blocks_of=random_blocks, noises=NOISES, graded: float = 0.0) -> Case:
    while True:
        blocks, tags = blocks_of(rng)
        J = block_diag(*(jordan(mu, s) for mu, s in blocks))
        if len(J) <= 14:
            break
    n, noise = len(J), float(rng.choice(noises))
    S = similarity(rng, n, 10 ** rng.uniform(0, 3))
    A0 = S @ J @ np.linalg.inv(S)
    E = rng.standard_normal((n, n))
    if rng.random() < 0.3:  # a rank one perturbation is the worst there is
        E = np.outer(E[0], E[:, -1])
    A = A0 + noise * np.linalg.norm(A0) * E / np.linalg.norm(E)
    delta = max(noise, 64 * n * np.finfo(float).eps) * np.linalg.norm(A0)
    case = Case(A, noise, truth_of(blocks), tags)
    if rng.random() < graded:
        D = 2.0 ** rng.integers(-20, 21, n)
        case.A, case.tags = A * D / D[:, None], tags | {"graded"}
    case.ambiguous = ambiguous(blocks, S, A0, delta)
    case.below_noise = case.ambiguous and below_noise(blocks, S, delta)
    return case


def large_case(rng: np.random.Generator, noises=NOISES) -> Case:
    """50 to 120 rows: a crowd of eigenvalues near the circle, one that decides, and a coupling."""
    n, noise = int(rng.integers(50, 121)), float(rng.choice(noises))
    gap = 10.0 ** rng.uniform(-6, -1)
    w = (1 - gap * rng.uniform(1, 3, n // 2)) * np.exp(1j * rng.uniform(0.02, np.pi - 0.02, n // 2))
    case = str(rng.choice(["origin", "fixed-point", "invariant-set", "divergent"]))
    extra = {"origin": 0.3, "fixed-point": 1.0, "invariant-set": -1.0, "divergent": 1 + gap}[case]
    J = block_diag(*(jordan(mu, 1) for mu in w), extra)
    coupled = int(rng.integers(0, 2)) * 10.0 ** rng.uniform(0, 2.5)
    J[:2, 2:4] += coupled * np.eye(2)
    Q = np.linalg.qr(rng.standard_normal((len(J), len(J))))[0]
    A0 = Q @ J @ Q.T
    E = rng.standard_normal(A0.shape)
    A = A0 + noise * np.linalg.norm(A0) * E / np.linalg.norm(E)
    delta = max(noise, 64 * len(J) * np.finfo(float).eps) * np.linalg.norm(A0)
    found = Case(A, noise, case, {"large"})
    found.ambiguous = found.below_noise = gap < 4 * MARGIN * delta * (1 + coupled / abs(w[0] - w[1])) ** 2
    return found


def exact_cases(rng: np.random.Generator, count: int) -> list[Case]:
    """Rational matrices, built from Jordan blocks; sympy's Jordan form is the oracle."""
    import sympy as sp

    cases = []
    cycle = {
        3: sp.Matrix([[0, -1], [1, -1]]),
        4: sp.Matrix([[0, -1], [1, 0]]),
        6: sp.Matrix([[0, -1], [1, 1]]),
    }
    while len(cases) < count:
        parts = []
        for _ in range(rng.integers(1, 4)):
            kind = rng.integers(4)
            if kind == 0:
                parts.append(sp.Matrix(cycle[int(rng.choice([3, 4, 6]))]))
            else:
                mu = sp.Rational(
                    *[(1, 1), (-1, 1), (1, 2), (-2, 3), (9, 10), (3, 2), (999, 1000), (1, 1)][rng.integers(8)]
                )
                parts.append(sp.jordan_cell(mu, int(rng.choice([1, 1, 2, 3]))))
        J = sp.diag(*parts)
        n = J.shape[0]
        if n > 6:
            continue
        S = sp.eye(n)
        for _ in range(n):
            i, j = rng.choice(n, 2, replace=False) if n > 1 else (0, 0)
            if i != j:
                S = S.elementary_row_op("n->n+km", row=int(i), k=int(rng.choice([-1, 1, 2])), row2=int(j))
        M = S * J * S.inv()
        cases.append(Case(np.array(M.tolist(), dtype=float), 0.0, sympy_truth(M), {"exact"}))
    return cases


def sympy_truth(M) -> str:
    """The four cases from sympy's exact Jordan form."""
    import sympy as sp

    _, J = M.jordan_form()
    n, on, outside, defective = J.shape[0], [], False, False
    for i in range(n):
        size = sp.simplify(J[i, i] * sp.conjugate(J[i, i]) - 1)
        outside |= bool(size > 0)
        if size == 0:
            on.append(J[i, i])
            defective |= i + 1 < n and J[i, i + 1] == 1
    if outside or defective:
        return "divergent"
    return "origin" if not on else "fixed-point" if all(mu == 1 for mu in on) else "invariant-set"
