"""Verdicts from data: decided where the data decide, with a confidence, and never by too few pairs or by averages."""

import numpy as np
import pytest
from csvs import flow, seven, spiral, van_der_pol

from koopsim.spectral import EDMD, Monomials, RandomFourier
from koopsim.spectral.exponentials import fit_exponentials
from koopsim.spectral.judgement import held_out_misfit
from koopsim.spectral.kept import kept_by


@pytest.fixture(autouse=True)
def _close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


SETTLED = {"origin", "fixed-point"}


def logistic(m, start=0.3, r=4.0):
    x = [start]
    for _ in range(m - 1):
        x.append(r * x[-1] * (1 - x[-1]))
    return np.array(x)[:, None]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_seven_ordinary_files(seed, tmp_path, capsys):
    """By default, through the command: at least six decided rightly, none wrongly."""
    import json

    import matplotlib.pyplot as plt

    from koopsim.cli import main

    said = {}
    for name, (array, case) in seven(seed).items():
        path = tmp_path / f"{name}.csv"
        np.savetxt(path, array, delimiter=",")
        assert main(["spectrum", str(path), "--json"]) == 0
        plt.close("all")
        said[name] = (json.loads(capsys.readouterr().out)["case"], case)
    assert all(found in (case, "undecided") for found, case in said.values()), said
    assert sum(found == case for found, case in said.values()) >= 6, said


def test_confidence_is_said():
    rng = np.random.default_rng(0)
    verdict = EDMD().fit(spiral(rng, 0.98, 0.02)).verdict()
    assert verdict.case == "origin"
    assert not verdict.certain
    assert verdict.confidence == pytest.approx(0.99994, abs=1e-5)
    assert "with 99.99% confidence" in str(verdict)
    assert verdict.to_dict()["confidence"] == verdict.confidence
    strict = EDMD().fit(spiral(rng, 0.98, 0.02)).verdict(strict=True)
    assert strict.case == "undecided"
    assert strict.confidence is None


def test_errors_shrink_with_the_samples_and_hold():
    """Of order m^(-3/2) on the circle; the truth within them; and no bias, which a regression has."""
    errors, off = {}, []
    for m in (100, 400):
        for seed in range(12):
            e = fit_exponentials([spiral(np.random.default_rng([m, seed]), 1.0, 0.1, m=m)])
            assert e is not None
            off.append(e.growth[0] / e.error[0])
            errors.setdefault(m, []).append(e.error[0])
    assert np.mean(errors[100]) / np.mean(errors[400]) == pytest.approx(8, rel=0.25)
    assert 0.6 < np.std(off) < 1.4
    assert abs(np.mean(off)) < 0.6
    regressed = EDMD(Monomials(1)).fit(spiral(np.random.default_rng(0), 1.0, 0.1, m=4000)).eigenvalues_
    assert np.abs(regressed)[1] < 0.997


@pytest.mark.parametrize("noise", [1e-3, 3e-2])
@pytest.mark.parametrize(
    ("modulus", "case"), [(0.97, "origin"), (0.997, "origin"), (1.0, "invariant-set"), (1.004, "divergent")]
)
def test_noisy_spirals(modulus, case, noise):
    for seed in range(3):
        runs = [spiral(np.random.default_rng([seed, i]), modulus, noise, m=300) for i in range(2)]
        assert EDMD().fit(runs).verdict().case == case
        assert EDMD(Monomials(1)).fit(runs[0][:, :1]).verdict().case == case


def test_a_frequency_from_one_column():
    x = flow(van_der_pol, [1.5, 1.0], 60, 1200)[:, :1]
    verdict = EDMD().fit(x).verdict()
    assert verdict.case == "invariant-set"
    slowest = min(verdict.angles) / (2 * np.pi) / (60 / 1199)
    assert slowest == pytest.approx(0.1501, abs=2e-4)


@pytest.mark.parametrize("pairs", [2, 3, 4])
def test_as_many_pairs_as_observables_prove_nothing(pairs):
    for start in (0.3, 0.31, 0.77):
        for strict in (True, False):
            verdict = EDMD(Monomials(3)).fit(logistic(pairs + 1, start)).verdict(strict=strict)
            assert verdict.case == "undecided"
            assert not verdict.certain
    rng = np.random.default_rng(pairs)
    assert EDMD().fit(rng.uniform(-1, 1, (60, 10))).verdict().case == "undecided"  # 66 observables


@pytest.mark.parametrize("r", [4.0, 3.9, 3.7])
@pytest.mark.parametrize("dictionary", [Monomials(2), Monomials(4), Monomials(8), RandomFourier(20, 0.3)])
def test_averages_that_settle_are_not_states_that_do(dictionary, r):
    """Chaos: only the constant has a small residual, and it says nothing of the state."""
    model = EDMD(dictionary).fit(logistic(2001, 0.3, r))
    for options in ({}, {"trust": 1e-3}, {"trust": float(np.sort(model.residuals_)[1])}, {"strict": True}):
        verdict = model.verdict(**options)
        assert verdict.case not in SETTLED | {"divergent"}, (options, str(verdict))
    pairs = EDMD(dictionary).fit((logistic(2001, 0.3, r)[:-1], logistic(2001, 0.3, r)[1:]))
    assert pairs.verdict(trust=1e-3).case not in SETTLED


def test_observables_without_the_state_do_not_settle_it():
    """r^-2 settles on a limit cycle, and the state keeps moving."""
    l = np.arange(200)
    radius = 1 / np.sqrt(1 + 3 * 0.9**l)
    z = np.c_[radius * np.cos(0.5 * l), radius * np.sin(0.5 * l)]
    model = EDMD(lambda z: np.c_[np.ones(len(z)), 1 / (z**2).sum(axis=1)]).fit((z[:-1], z[1:]))
    verdict = model.verdict()
    assert verdict.case == "undecided"
    assert any("averages" in r for r in verdict.reasons)


def test_a_process_driven_by_noise_is_not_settled():
    for seed in range(2):
        rng = np.random.default_rng(seed)
        z = [np.zeros(2)]
        A = 0.95 * np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
        for _ in range(500):
            z.append(A @ z[-1] + rng.standard_normal(2))
        assert EDMD(Monomials(1)).fit(np.array(z)).verdict().case == "undecided"


def test_held_out_misfit_against_refitting():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (50, 2))
    Y = np.tanh(X @ np.array([[0.5, 0.2], [-0.1, 0.6]])) + 0.01 * rng.standard_normal((50, 2))
    model = EDMD(Monomials(2)).fit((X, Y))
    phi, after, s = model.transform(X), model.transform(Y), model.solution_
    wrong = 0.0
    for rows in np.array_split(np.arange(50), 5):
        rest = np.setdiff1d(np.arange(50), rows)
        K = np.linalg.lstsq(phi[rest] @ s.down, after[rest] @ s.down, rcond=None)[0]
        wrong += np.sum((after[rows] @ s.down - phi[rows] @ s.down @ K) ** 2)
    slow = np.sqrt(wrong / np.sum((after @ s.down) ** 2))
    assert held_out_misfit(model, np.eye(model.rank_), kept_by(model)) == pytest.approx(slow, rel=1e-8)
    assert slow > s.relative_residual
    assert held_out_misfit(model, np.eye(model.rank_), None) > s.relative_residual


def test_what_does_not_move():
    still = EDMD().fit(np.tile([1.0, -2.0], (50, 1))).verdict()
    assert still.case == "fixed-point"
    assert not still.certain
    assert EDMD().fit([np.zeros((20, 2)), np.zeros((9, 2))]).verdict().case == "origin"
    assert EDMD().fit(np.ones((20, 2))).verdict(strict=True).case == "undecided"


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30])
@pytest.mark.parametrize(("modulus", "case"), [(0.98, "origin"), (1.0, "invariant-set"), (1.02, "divergent")])
def test_units_do_not_matter(scale, modulus, case):
    assert EDMD().fit(scale * spiral(None, modulus, 0.0)).verdict().case == case


@pytest.mark.parametrize("unit", [1e-15, 1e-6, 1e-2, 1e9])
@pytest.mark.parametrize(("modulus", "case"), [(0.99, "origin"), (1.02, "divergent")])
def test_units_of_a_column_do_not_matter(unit, modulus, case):
    """Pascal beside metres: least squares looks at the large numbers, and a verdict is about the small ones, too."""
    rng = np.random.default_rng(0)
    grown = modulus ** np.arange(240)
    column = grown / grown.max() + 1e-3 * rng.standard_normal(240)
    assert EDMD().fit(np.c_[spiral(rng, 0.98, 1e-3), unit * column]).verdict().case == case


def test_a_growth_that_a_decay_looks_like():
    """A constant and a decay leave over a third of a slow growth, and a third that is no noise is too much."""
    rng, l = np.random.default_rng(0), np.arange(300)
    z = np.c_[np.exp(-3.8 * l / 300), 1e-4 * np.exp(3.7 * (l / 300 - 1))]
    noisy = z + [1e-2, 1e-6] * rng.standard_normal(z.shape)
    assert EDMD().fit(noisy).verdict().case in ("divergent", "undecided")


def test_more_columns_than_are_fitted():
    """Six directions are fitted: a seventh that grows is not passed over in silence."""
    rng, l = np.random.default_rng(0), np.arange(240)
    decay = [0.98**l * np.cos(0.2 * k * l) for k in range(1, 9)]
    z = np.column_stack([*decay, 0.5 * 1.02 ** (l - 239.0)]) + 1e-3 * rng.standard_normal((240, 9))
    assert EDMD().fit(z).verdict().case in ("divergent", "undecided")


@pytest.mark.parametrize("fails", [1, 3, 10, 40])
def test_a_factorisation_that_fails_is_no_crash(fails, monkeypatch):
    """LAPACK gives up now and then, on one machine and not on another: a shorter step, or no answer."""
    from koopsim.spectral import exponentials, variable_projection

    calls, exact = [], variable_projection.residual

    def flaky(runs, terms):
        calls.append(terms)
        if len(calls) % fails == 0:
            raise np.linalg.LinAlgError("SVD did not converge in Linear Least Squares")
        return exact(runs, terms)

    for module in (exponentials, variable_projection):
        monkeypatch.setattr(module, "residual", flaky)
    for modulus, case in ((0.98, "origin"), (1.02, "divergent")):
        said = EDMD().fit(spiral(np.random.default_rng(0), modulus, 0.02)).verdict().case
        assert said in (case, "undecided")
        assert fails < 40 or said == case


def test_a_table_in_tiny_units():
    """Squares of 1e-200 vanish; directions, frequency and amplitude do not."""
    z = spiral(None, 1.02, 0.0)
    there, here = EDMD().fit(1e-200 * z).mode_table(1e-200 * z), EDMD(Monomials(1)).fit(z).mode_table(z)
    assert there.frequency[0] == pytest.approx(here.frequency[0], rel=1e-9)
    assert there.amplitude[0] == pytest.approx(1e-200 * here.amplitude[0], rel=1e-9)
    assert np.isinf(there.lifetime).all()  # the constant's eigenvalue is 1 but for rounding


@pytest.mark.parametrize("away", [0.0, 1e-5, 3.0])
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_a_plane_beside_the_origin(away, noise):
    """Runs that keep to a plane end in it, not at zero: a column that never changes is part of the state."""
    z = spiral(np.random.default_rng(3), 0.9, noise, m=120)
    z = np.c_[z, np.full(len(z), away)] @ np.linalg.qr(np.random.default_rng(4).standard_normal((3, 3)))[0]
    for dictionary in (Monomials(1), Monomials(2)):
        said = EDMD(dictionary).fit(z).verdict().case
        assert said == ("fixed-point" if away else "origin")


def test_a_quiet_column_is_noise():
    """What a sensor with nothing to tell writes down is no movement of its own."""
    rng = np.random.default_rng(0)
    assert EDMD().fit(np.c_[spiral(rng, 0.98, 1e-3), 1e-3 * rng.standard_normal(240)]).verdict().case == "origin"


def test_a_closed_dictionary_is_still_certain():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (100, 2))
    W, c = np.array([[0.5, 0.2], [-0.1, 0.6]]), np.array([1.0, -2.0])
    affine = EDMD(Monomials(2)).fit((X, X @ W.T + c)).verdict()
    assert affine.case == "fixed-point"
    assert affine.certain  # the constant's eigenvalue is exactly one
    assert EDMD(Monomials(2)).fit((X, X @ W.T + c)).verdict(strict=True).case == "fixed-point"
    assert EDMD(Monomials(1, constant=False)).fit((X, X @ W.T)).verdict(strict=True).case == "origin"
    assert EDMD(Monomials(1)).fit((X, 1.3 * X)).verdict(strict=True).case == "divergent"
