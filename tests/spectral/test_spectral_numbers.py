"""Verdicts, fits and densities of fixed examples, number by number: see kept_numbers.py."""

import re

import data_cases
import matrix_cases
import numpy as np
import pytest
from kept_numbers import same
from maps import logistic, orbit

from koopsim.spectral import (
    EDMD,
    Delays,
    LearnedDictionary,
    Monomials,
    Nystrom,
    OptimisedDMD,
    RandomFourier,
    analyze,
    embedding_of_density,
    invariant_density,
    markov_chain,
    mean_embedding,
    mmd,
    perron_frobenius,
    regular,
)
from koopsim.spectral.exponentials import fit_exponentials


def of_verdict(v):
    """What of a verdict does not hang on the last digits of an eigenvalue."""
    return {
        "case": v.case, "certain": v.certain, "period": v.period, "reasons": len(v.reasons), "constant": v.constant,
        "sizes": [len(v.fixed), len(v.flipping), len(v.rotating), len(v.snapped), [b.size for b in v.defective]],
        "angles": sorted(float(abs(a)) for a in v.angles), "noise": v.noise,
        "distance": None if v.distance is None or v.distance < 1e-11 else float(v.distance),
        "limit": None if v.limit is None else float(np.linalg.norm(v.limit)),
        "cesaro": None if v.cesaro is None else float(np.linalg.norm(v.cesaro)),
        "later": float(np.linalg.norm(v.at(7))),
    }  # fmt: skip


NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def said(reasons):
    """Reasons without their numbers, and the numbers that are more than rounding."""
    numbers = [abs(float(n)) for reason in reasons for n in NUMBER.findall(reason)]
    return [[NUMBER.sub("#", reason) for reason in reasons], [n for n in numbers if n > 1e-7]]


def of_findings(v):
    """What each cluster was found to be, with its bounds, the largest eigenvalue first."""
    found = [
        [f.kind, abs(f.eigenvalue), f.error, f.block.norm, f.block.separation, list(f.sizes), len(f.block.indices)]
        for f in v._terms[1]
    ]
    return sorted(found, key=lambda f: (-round(f[1], 6), f[0], round(f[3], 4)))


KINDS = {
    "random": lambda rng: matrix_cases.random_case(rng),
    "near misses": lambda rng: matrix_cases.random_case(rng, matrix_cases.near_miss_blocks),
    "graded": lambda rng: matrix_cases.random_case(rng, graded=1e3),
    "large": lambda rng: matrix_cases.large_case(rng),
}


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_matrices(kind):
    rng, found = np.random.default_rng(77), []
    while len(found) < (60 if kind != "large" else 12):
        case = KINDS[kind](rng)
        if not case.ambiguous:
            found.append(analyze(case.A, *([case.noise] if case.noise else [])))
    same(f"spectral/matrices, {kind}", [of_verdict(v) for v in found], rel=2e-3, near=1e-8)
    same(f"spectral/reasons, {kind}", [said(v.reasons) for v in found[:25]], rel=2e-2)
    same(f"spectral/findings, {kind}", [of_findings(v) for v in found[:25]], rel=2e-2, near=1e-14)


def test_numbers_of_exact_matrices():
    cases = matrix_cases.exact_cases(np.random.default_rng(3), 10)
    same("spectral/exact matrices", [of_verdict(analyze(case.A)) for case in cases], rel=1e-4, near=1e-8)


def runs(count=3, steps=60, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    A = np.array([[0.9, 0.3, 0.0], [-0.3, 0.9, 0.0], [0.1, 0.0, 0.7]])
    A[:2] /= np.hypot(0.9, 0.3)
    found = []
    for _ in range(count):
        z = [rng.normal(size=3)]
        for _ in range(steps):
            z.append(A @ z[-1])
        found.append(np.array(z) + noise * rng.normal(size=(steps + 1, 3)))
    return found


DICTIONARIES = {
    "plain": None, "monomials": Monomials(2), "rff": RandomFourier(12, seed=0),
    "nystrom": Nystrom(10, seed=0), "delays": Delays(2),
}  # fmt: skip


@pytest.mark.parametrize("name", DICTIONARIES)
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_numbers_of_edmd(name, noise):
    data = runs(noise=noise)
    model = EDMD(DICTIONARIES[name], dt=0.5).fit(data)
    table = model.mode_table(data[0])
    w = model.eigenvalues_[np.abs(model.eigenvalues_) > 0.5]
    found = {
        "rank": model.rank_, "observables": model.n_observables_, "pairs": model.n_samples_seen_,
        "sizes": sorted(float(abs(v)) for v in w), "turns": sorted(float(abs(np.angle(v))) for v in w),
        "misfit": float(model.solution_.relative_residual) if noise else None,
        "score": float(model.score(data[0])), "ahead": np.abs(model.predict(data[0])),
        "amplitudes": [float(a) for a in table.amplitude[:3]], "growth": [float(g) for g in table.growth[:2]],
    }  # fmt: skip
    same(f"spectral/edmd {name}, noise {noise}", found, rel=1e-3, near=1e-6)


@pytest.mark.parametrize("kind", ["linear_runs", "closed_pairs", "limit_cycle", "chaos", "driven"])
def test_numbers_of_verdicts_of_data(kind):
    rng, found = np.random.default_rng(5), []
    for _ in range(4):
        case = getattr(data_cases, kind)(rng)
        model = EDMD(case.dictionary).fit(case.data)
        v = model.verdict()
        found.append({"case": v.case, "certain": v.certain, "reasons": said(v.reasons), "rank": model.rank_})
        found[-1] |= {"noise": v.noise, "confidence": v.confidence, "angles": sorted(map(abs, v.angles))}
    same(f"spectral/data {kind}", found, rel=1e-2, near=1e-9)


def test_numbers_of_exponentials():
    rng, t = np.random.default_rng(8), np.arange(90)[:, None]
    z = [a * 0.98**t * np.hstack([np.cos(0.3 * t + a), np.sin(0.3 * t + a)]) + [1.0, 2.0] for a in (1.0, -2.0)]
    for noise in (0.01, 0.1):
        found = fit_exponentials([part + noise * rng.normal(size=part.shape) for part in z])
        same(f"spectral/exponentials, {noise}", found, rel=1e-2, near=1e-6)


def test_numbers_of_optimised_dmd():
    t = np.arange(80) * 0.1
    x = np.stack([np.exp(-0.1 * t) * np.cos(2 * t), np.exp(-0.1 * t) * np.sin(2 * t), np.cos(5 * t)], axis=1)
    x += 0.01 * np.random.default_rng(0).normal(size=x.shape)
    model = OptimisedDMD(4, seed=0).fit(x, times=t)
    ahead, error = model.forecast(np.array([8.0, 9.0]))
    found = [np.sort(np.abs(model.frequencies_)), np.sort(model.growth_rates_), np.real(ahead), error]
    same("spectral/optimised DMD", found, rel=1e-3, near=1e-6)


def test_numbers_of_densities():
    path = orbit(logistic, 0.2, 4000)
    found = invariant_density(path)
    same("spectral/density", {
        "components": found.n_components_, "masses": found.masses_, "densities": found.densities_,
        "periods": found.periods_, "rate": found.mixing_rate_, "leak": found.leak_, "shares": found.shares_,
        "mean": found.average(lambda z: z[:, 0]), "at": found.evaluate(np.array([[0.1], [0.5]])),
    }, rel=1e-4)  # fmt: skip
    P = np.array([[0.9, 0.1, 0.0, 0.0], [0.2, 0.8, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.1, 0.9, 0.0]])
    chain = markov_chain(P)
    same("spectral/chain", {k: v for k, v in vars(chain).items() if isinstance(v, np.ndarray | int | tuple | list)})
    same("spectral/absorbed", [chain.mixing_rates, chain.absorption])
    a, b = np.random.default_rng(0).normal(size=(2, 40, 2))
    psi = RandomFourier(12, seed=0)
    same("spectral/embedding", [mean_embedding(a, psi, burn=3), embedding_of_density(found, RandomFourier(6, seed=1))])
    same("spectral/mmd", mmd(mean_embedding(a, psi), mean_embedding(b + 0.3, psi)))


def test_numbers_of_perron_frobenius_and_gaps():
    path = orbit(logistic, 0.2, 600)
    model = EDMD(RandomFourier(20, seed=0)).fit(path.reshape(-1, 1))
    found = perron_frobenius(model)
    same("spectral/perron-frobenius", [found.mixing_rate_, found.evaluate(np.array([[0.3], [0.6]]))], rel=1e-3)
    t = np.array([0.0, 0.11, 0.19, 0.3, 0.41, 0.5, 0.62, 0.7, 0.79, 0.9])
    same("spectral/regular", regular(t, np.sin(t)))


def test_numbers_of_a_learned_dictionary():
    data = runs(1, 40)[0]
    model = EDMD(LearnedDictionary(4, steps=20, seed=0)).fit(data)
    same("spectral/learned", [float(model.score(data))], rel=1e-2, near=1e-4)
