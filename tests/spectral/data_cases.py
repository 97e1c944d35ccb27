"""Data whose case is known: trajectories and pairs of random systems, with noise, and the dictionary to fit them with.

`truth` is the case of the system; `allowed` holds every answer that is not wrong about its states (chaos and systems
driven by noise keep moving: settled and divergent are wrong). `decidable` is computed from the system, not from what
was said: no noise and more than enough pairs in a closed dictionary; or runs of few exponentials that are apart, of
which the slowest is off the circle by MARGIN of the errors that least squares can have at best (the Cramer-Rao bound
for one exponential), or on it and known well enough over several turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from csvs import flow

from koopsim.spectral import Monomials, RandomFourier

MARGIN = 15.0
MOVING = {"invariant-set", "undecided"}


@dataclass
class DataCase:
    data: Any
    dictionary: Any
    truth: str
    kind: str
    decidable: bool
    allowed: set[str] = field(default_factory=set)


def growth_error(growth: float, noise: float, m: int) -> float:
    """Least standard error of the growth of a unit exponential seen m times in white noise."""
    l = np.arange(m)
    size = np.exp(growth * (l - (m - 1 if growth > 0 else 0)))
    spread = np.sum(size**2 * l**2) - np.sum(size**2 * l) ** 2 / np.sum(size**2)
    return noise / np.sqrt(max(spread, 1e-300))


def linear_runs(rng: np.random.Generator) -> DataCase:
    """A few exponentials in a random basis of as many or more dimensions, at rest somewhere, measurement noise."""
    truth = str(rng.choice(["origin", "fixed-point", "invariant-set", "divergent"]))
    pairs, reals = int(rng.integers(0, 3)), int(rng.integers(0, 2))
    if pairs + reals == 0 or (truth == "invariant-set" and not pairs):
        pairs = 1
    lead = {"invariant-set": 1.0, "divergent": rng.uniform(1.003, 1.05)}.get(truth, rng.uniform(0.8, 0.995))
    moduli = np.r_[lead, lead * rng.uniform(0.8, 0.97, pairs + reals - 1)]
    angles = np.sort(rng.uniform(0.15, 2.9, pairs))
    m, count = int(rng.integers(60, 260)), int(rng.integers(1, 3))
    noise = float(rng.choice([0.0, 1e-8, 1e-5, 1e-3, 1e-2, 3e-2]))
    signs = rng.choice([-1, 1], reals)
    l = np.arange(m)
    terms = [np.exp(np.log(moduli[j]) * l) * wave(angles[j] * l) for j in range(pairs) for wave in (np.cos, np.sin)]
    terms += [signs[i] ** l * np.exp(np.log(moduli[pairs + i]) * l) for i in range(reals)]
    d = len(terms)
    wide = d + int(rng.choice([0, 0, 1, 2]))  # where wider, the runs keep to a plane, which need not hold the origin
    basis = np.linalg.qr(rng.standard_normal((wide, d)))[0] * rng.uniform(0.5, 2, d)
    rest = 0.0 if truth != "fixed-point" else rng.uniform(1, 3, wide) * rng.choice([-1, 1], wide)
    runs = []
    for _ in range(count):
        mixed = _amplitudes(rng, pairs, reals)
        z = np.column_stack(terms) @ mixed @ basis.T + rest
        runs.append(z + noise * np.sqrt(np.mean((z - rest) ** 2)) * rng.standard_normal(z.shape))
    apart = np.diff(np.r_[angles, *([0.0] if np.any(signs > 0) else []), *([np.pi] if np.any(signs < 0) else [])])
    apart = pairs < 2 or np.abs(apart).min() > 0.15
    growth = np.log(moduli)
    size = np.sqrt(np.mean(np.exp(2 * np.clip(growth.max() * (l - (m - 1 if growth.max() > 0 else 0)), -700, 0))))
    error = max(growth_error(g, max(noise, 1e-9) * size, m) for g in growth)
    if truth == "invariant-set":
        seen = MARGIN * error * m < 0.25 and angles.min() * m > 6 * np.pi
        seen = seen and bool(np.all(np.abs(growth[growth < 0]) > MARGIN * error))
    else:
        seen = bool(np.all(np.abs(growth) > MARGIN * error))
    return DataCase(runs, Monomials(1), truth, "linear runs", bool(apart and seen and m > 15 * d))


def _amplitudes(rng: np.random.Generator, pairs: int, reals: int) -> np.ndarray:
    """A rotation and a size for each pair, a size for each real term: none is negligible."""
    out = np.zeros((2 * pairs + reals, 2 * pairs + reals))
    for j in range(pairs):
        a, r = rng.uniform(0, 2 * np.pi), rng.uniform(0.7, 1.3)
        out[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = r * np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
    for i in range(2 * pairs, 2 * pairs + reals):
        out[i, i] = rng.uniform(0.7, 1.3) * rng.choice([-1, 1])
    return out


def closed_pairs(rng: np.random.Generator) -> DataCase:
    """Maps whose Koopman matrix is exact in the dictionary: affine, Tu's, rotations, drifts."""
    X = rng.uniform(-1, 1, (int(rng.integers(30, 200)), 2))
    a = float(rng.choice([rng.uniform(0.2, 0.98), 1.0, -1.0, rng.uniform(1.02, 1.3)]))
    b = float(rng.uniform(-0.9, 0.9))
    kind = str(rng.choice(["tu", "affine", "turn", "drift"]))
    if kind == "tu":
        Y = np.c_[a * X[:, 0], b * X[:, 1] + (a * a - b) * X[:, 0] ** 2]
        truth = "origin" if abs(a) < 1 else "fixed-point" if a == 1 else "invariant-set" if a == -1 else "divergent"
        return DataCase((X, Y), _with_square, truth, "closed pairs", abs(a * a - b) > 0.05)
    S = rng.standard_normal((2, 2)) + 2 * np.eye(2)
    if kind == "affine":
        W = S @ np.diag(rng.uniform(-0.95, 0.95, 2)) @ np.linalg.inv(S)
        Y, dictionary = X @ W.T + rng.uniform(0.5, 2, 2), Monomials(int(rng.integers(1, 3)))
        return DataCase((X, Y), dictionary, "fixed-point", "closed pairs", bool(np.linalg.cond(S) < 20))
    if kind == "drift":
        return DataCase((X, X + rng.uniform(0.1, 1, 2)), Monomials(1), "divergent", "closed pairs", True)
    angle, r = rng.uniform(0.1, 3), float(rng.choice([1.0, rng.uniform(0.5, 0.99), rng.uniform(1.01, 1.2)]))
    R = r * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    truth = "origin" if r < 1 else "invariant-set" if r == 1 else "divergent"
    W = S @ R @ np.linalg.inv(S)
    return DataCase((X, X @ W.T), Monomials(1), truth, "closed pairs", bool(np.linalg.cond(S) < 20))


def _with_square(z: np.ndarray) -> np.ndarray:
    return np.c_[z, z[:, 0] ** 2]


def limit_cycle(rng: np.random.Generator) -> DataCase:
    """Stuart-Landau and van der Pol, from off the cycle, one or both columns, measurement noise."""
    m, turns = int(rng.integers(200, 400)), rng.uniform(5, 12)
    noise = float(rng.choice([0.0, 1e-4, 1e-2]))
    if rng.random() < 0.7:
        mu, gamma = rng.uniform(0.5, 2), rng.uniform(1, 2)
        t = np.linspace(0, turns * 2 * np.pi / gamma, m)
        r = (1 / mu + (1 / rng.uniform(0.3, 2) ** 2 - 1 / mu) * np.exp(-2 * mu * t)) ** -0.5
        z = np.c_[r * np.cos(gamma * t), r * np.sin(gamma * t)]
    else:
        mu = rng.uniform(0.2, 1.5)
        z = flow(lambda t, x: [x[1], mu * (1 - x[0] ** 2) * x[1] - x[0]], rng.uniform(0.5, 2, 2), 7 * turns, m)
    z = z + noise * np.sqrt(np.mean(z**2)) * rng.standard_normal(z.shape)
    z = z[:, : int(rng.integers(1, 3))]
    return DataCase(z, Monomials(int(rng.integers(1, 4))), "invariant-set", "limit cycle", True)


def chaos(rng: np.random.Generator) -> DataCase:
    """Maps that never settle; only a window of parameters without stable cycles is drawn from."""
    m = int(rng.integers(100, 300))
    if rng.random() < 0.6:
        x, r = [rng.uniform(0.1, 0.9)], float(rng.choice([4.0, 3.99, 3.93, 3.9, 3.8, 3.7]))
        for _ in range(m):
            x.append(r * x[-1] * (1 - x[-1]))
        z = np.array(x)[:, None]
    else:
        z = [rng.uniform(-0.1, 0.1, 2)]
        for _ in range(m):
            z.append(np.array([1 - 1.4 * z[-1][0] ** 2 + z[-1][1], 0.3 * z[-1][0]]))
        z = np.array(z)
    dictionary = RandomFourier(20, 0.5) if rng.random() < 0.3 else Monomials(int(rng.integers(1, 6)))
    data = (z[:-1], z[1:]) if rng.random() < 0.4 else z
    return DataCase(data, dictionary, "invariant-set", "chaos", False, MOVING)


def driven(rng: np.random.Generator) -> DataCase:
    """A stable linear system kicked at every step: its averages settle, its states do not."""
    r, angle = rng.uniform(0.3, 0.99), rng.uniform(0.1, 3)
    R = r * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    z = [np.zeros(2)]
    for _ in range(int(rng.integers(100, 300))):
        z.append(R @ z[-1] + rng.standard_normal(2))
    return DataCase(np.array(z), Monomials(int(rng.integers(1, 3))), "invariant-set", "driven by noise", False, MOVING)


def few_pairs(rng: np.random.Generator) -> DataCase:
    """About as many pairs as observables, of a system that keeps moving in a bounded set."""
    degree = int(rng.integers(2, 6))
    case = chaos(rng)
    z = case.data[0] if isinstance(case.data, tuple) else case.data
    count = {1: degree + 1, 2: (degree + 1) * (degree + 2) // 2}[z.shape[1]]
    z = z[: count + int(rng.integers(0, 3))]
    return DataCase(z, Monomials(degree), "invariant-set", "few pairs", False, MOVING)


FAMILIES = (linear_runs, closed_pairs, limit_cycle, chaos, driven, few_pairs)
SHARES = (0.4, 0.3, 0.08, 0.08, 0.06, 0.08)


def data_case(rng: np.random.Generator) -> DataCase:
    case = FAMILIES[rng.choice(len(FAMILIES), p=SHARES)](rng)
    case.allowed = case.allowed or {case.truth, "undecided"}
    return case
