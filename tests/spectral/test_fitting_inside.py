"""The inner functions of fits to data: closed forms, twins in NumPy, and tables on both sides of thresholds."""

from dataclasses import replace

import numpy as np
import pytest
from inside import words
from kept_numbers import same

from koopsim.spectral import OptimisedDMD, exponentials
from koopsim.spectral import optimised_dmd as bagged
from koopsim.spectral.exponentials import Exponentials, fit_exponentials
from koopsim.spectral.judgement import decide, unfit
from koopsim.spectral.variable_projection import Terms, refined, residual

TERMS = Terms(np.array([-0.02, 0.01, -0.3]), np.array([0.6, 0.0, 0.0]), np.array([True, False, False]),
              np.array([False, False, True]))  # fmt: skip


def columns_of(terms, m):
    """The readable twin: 1, then e^(g l) (at most one) times cos and sin, or (-1)^l, or nothing."""
    out = [np.ones(m)]
    for g, a, pair, flip in zip(terms.growth, terms.angle, terms.paired, terms.flipped, strict=True):
        size = np.array([np.exp(g * (l - (m - 1) if g > 0 else l)) for l in range(m)])
        turn = np.exp(1j * a * np.arange(m))
        out += [size * turn.real, size * turn.imag] if pair else [size * np.cos(np.pi * np.arange(m)) if flip else size]
    return np.stack(out, axis=1)


def three_runs(noise=0.02, lengths=(60, 45, 30)):
    rng = np.random.default_rng(5)
    return [columns_of(TERMS, m) @ rng.uniform(-1, 1, (5, 2)) + noise * rng.uniform(-1, 1, (m, 2)) for m in lengths]


def test_columns_and_amplitudes():
    Phi, where = TERMS.columns(20)
    np.testing.assert_allclose(Phi, columns_of(TERMS, 20), atol=1e-12)
    assert where == [(1, 2), (3, 1), (4, 1)]
    np.testing.assert_array_equal(TERMS.vector, [-0.02, 0.01, -0.3, 0.6])
    moved = TERMS.moved(np.array([1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_array_equal(moved.growth, [1, 2, 3])
    np.testing.assert_array_equal(moved.angle, [4, 0, 0])
    r, _, B = residual(three_runs(), TERMS)
    for z, b in zip(three_runs(), B, strict=True):
        np.testing.assert_allclose(b, np.linalg.lstsq(columns_of(TERMS, len(z)), z, rcond=None)[0], atol=1e-9)
    left = np.concatenate([(z - columns_of(TERMS, len(z)) @ b).ravel() for z, b in zip(three_runs(), B, strict=True)])
    np.testing.assert_allclose(r, left, atol=1e-12)
    ahead = exponentials._continued(TERMS, 12, 20)
    grown = np.ones(5)
    grown[3] = np.exp(0.01 * 8)  # one at the last sample that was fitted, not at the last of all
    np.testing.assert_allclose(ahead, columns_of(TERMS, 20)[12:] * grown, atol=1e-12)


def test_derivative_of_what_is_left_over():
    """Kaufman's J^T r is the gradient of half the squares."""
    runs = three_runs(0.3)
    r, J, _ = residual(runs, TERMS)
    for i in range(4):
        step = np.eye(4)[i] * 1e-6
        up, down = (np.sum(residual(runs, TERMS.moved(TERMS.vector + s * step))[0] ** 2) / 2 for s in (1, -1))
        assert (J.T @ r)[i] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-6)


def test_numbers_of_exponentials():
    runs = three_runs()
    terms, left = refined(runs, TERMS)
    Phi, where = terms.columns(60)
    same("spectral/inside exponentials", {
        "refined": [terms.vector, left], "few": refined(runs, TERMS.moved(TERMS.vector * 1.05), 3)[1],
        "uncertainty": list(exponentials._uncertainty(runs, terms, 20)[:3]),
        "rest": exponentials._rest_variance(Phi, where, runs[0][:5, 0], terms.paired),
        "drift": [exponentials._drift(runs, terms), exponentials._drift([runs[0][:7]], terms) > 1e300,
                  exponentials._drift([runs[0] * np.linspace(1, 3, 60)[:, None]], terms)],
        "foretold": exponentials._foretold(runs, TERMS, 1e-4),
    }, rel=1e-4)  # fmt: skip
    found = exponentials._described(runs, terms, 20, 3.0, 2)
    shown = {k: getattr(found, k) for k in ("growth", "angle", "error", "drift", "amplitude", "rest", "rest_error",
                                            "noise", "foretold", "explained", "length", "scale")}  # fmt: skip
    same("spectral/inside described", shown, rel=1e-4)
    np.testing.assert_allclose(found.eigenvalues, np.exp(found.growth + 1j * found.angle) * [1, 1, -1])


def test_numbers_of_a_fit_of_exponentials():
    every = {"three": three_runs(0.005), "one": three_runs(1e-5)[:1], "short": [z[:12] for z in three_runs()]}
    for name, runs in every.items():
        e = fit_exponentials(runs)
        told = None if e is None else [np.sort(e.growth), np.sort(np.abs(e.angle)), e.noise, e.length, e.aside]
        same(f"spectral/inside fit {name}", told, rel=1e-3, near=1e-7)


def test_how_runs_are_prepared(monkeypatch):
    """Thinned to at most so many samples, divided by the largest, turned to the directions they move in."""
    z = np.arange(21.0)[:, None] * [2.0, 0.0] + [0.0, 0.0]
    monkeypatch.setattr(exponentials, "MOST_SAMPLES", 10)
    for m, stride in ((10, 1), (11, 2), (20, 2), (21, 3)):
        runs, aside, scale, found = exponentials._prepared([z[:m]])
        assert found == stride
        assert [r.shape for r in runs] == [(len(z[:m:stride]), 1)]
        assert aside == 0.0
        moved = z[:m:stride, 0]
        assert scale == pytest.approx(moved.std())
        np.testing.assert_allclose(np.abs(runs[0][:, 0]) * scale, moved, atol=1e-12)
    assert len(exponentials._prepared([z, z[:12], z[:11]])[0]) == 2  # four samples at least after thinning by three
    assert exponentials._prepared([0 * z]) is None
    assert exponentials._prepared([0 * z + 1]) is None
    assert exponentials._prepared([z[:3]]) is None
    assert exponentials._prepared([z[:4]]) is not None
    away = exponentials._prepared([z[:10] + [0.0, 5.0]])
    assert away[1] * away[2] == pytest.approx(5.0)
    monkeypatch.setattr(exponentials, "MOST_RUNS", 2)
    assert len(exponentials._prepared([z, z, z])[0]) == 2
    wide = np.random.default_rng(0).standard_normal((10, 8))
    assert exponentials._prepared([wide])[0][0].shape == (10, 6)


def test_starts_by_shift_invariance():
    l = np.arange(60)
    z = np.c_[0.98**l * np.cos(0.5 * l), 0.9**l * (-1.0) ** l, np.ones(60)]
    V = exponentials._singular_vectors([z, z[:30]])
    assert V.shape[0] == 60  # twenty samples of three numbers
    np.testing.assert_allclose(V.T @ V, np.eye(V.shape[1]), atol=1e-9)
    found = exponentials._shift_invariant(V, 4, 3, 60)
    np.testing.assert_allclose(found.growth, np.log([0.98, 0.9]), atol=1e-8)
    np.testing.assert_allclose(found.angle, [0.5, 0], atol=1e-8)
    assert found.paired.tolist() == [True, False]
    assert found.flipped.tolist() == [False, True]
    for rate, kept in ((0.019 / 60, False), (0.021 / 60, True)):  # the constant, or a slow term
        V = exponentials._singular_vectors([np.exp(-rate * l)[:, None]])
        assert (exponentials._shift_invariant(V, 1, 1, 60) is not None) == kept
    assert exponentials._shift_invariant(np.eye(4), 4, 1, 60) is None
    steep = exponentials._singular_vectors([2.0 ** l[:20][:, None]])
    np.testing.assert_allclose(exponentials._shift_invariant(steep, 1, 1, 300).growth, [20 / 300 + 0.5])
    assert exponentials._singular_vectors([z[:7]]).shape[0] == 6
    assert exponentials._singular_vectors([z[:5]]).shape[0] == 6


def told_by(**changed):
    """A pair that decays and a real term that decays faster, well known; what is given is changed."""
    plain = Exponentials(
        growth=np.array([-0.05, -0.2]), angle=np.array([0.5, 0.0]), paired=np.array([True, False]),
        flipped=np.array([False, False]), error=np.array([1e-3, 1e-3]), drift=np.zeros(2),
        amplitude=np.array([1.0, 0.5]), rest=np.zeros((1, 2)), rest_error=0.01, aside=0.0, noise=0.01, foretold=1.0,
        explained=0.9, length=100, scale=1.0,
    )  # fmt: skip
    return replace(plain, **{k: np.array(v) if isinstance(v, list) else v for k, v in changed.items()})


@pytest.mark.parametrize(
    ("changed", "case"),
    [
        ({}, "origin"),
        ({"rest": [[0.039, 0.039]]}, "origin"),
        ({"rest": [[0.041, 0.041]]}, "fixed-point"),
        ({"aside": 1e-9}, "fixed-point"),
        ({"growth": [-0.0041, -0.2]}, "origin"),
        ({"growth": [-0.0039, -0.2]}, "undecided"),  # it may stay, and it may have lost 0.79 over the run
        ({"growth": [0.0041, -0.2]}, "divergent"),
        ({"growth": [0.0039, -0.2]}, "undecided"),
        ({"growth": [0.0, -0.2], "error": [6.2e-4, 1e-3]}, "invariant-set"),  # 4 errors are 0.248 over the run
        ({"growth": [0.0, -0.2], "error": [6.3e-4, 1e-3]}, "undecided"),
        ({"growth": [0.0, -0.2], "error": [6e-4, 1e-3], "angle": [0.124, 0.0]}, "undecided"),  # 1.97 turns
        ({"growth": [0.0, -0.2], "error": [6e-4, 1e-3], "angle": [-0.127, 0.0]}, "invariant-set"),
        ({"growth": [-0.05, 0.0]}, "undecided"),  # a trend
        ({"growth": [-0.05, 0.0], "flipped": [False, True], "error": [1e-3, 6e-4]}, "invariant-set"),
        ({"growth": [-0.05, 0.005]}, "divergent"),
        ({"growth": [-0.05, 0.005], "amplitude": [1.0, 0.101]}, "divergent"),
        ({"growth": [-0.05, 0.005], "amplitude": [1.0, 0.099]}, "undecided"),  # of a minor term growth must be seen
        ({"growth": [-0.05, 0.0066], "amplitude": [1.0, 0.099]}, "divergent"),
        ({"growth": [0.0, -0.2], "amplitude": [0.04, 0.5], "error": [1e-4, 1e-3]}, "undecided"),  # nothing major stays
    ],
)
def test_decisions_by_growth(changed, case):
    said, lines = decide(told_by(**changed))
    assert said == case
    assert len(lines) >= 2
    assert lines[0].startswith("A pair with log |lambda|")
    assert "turns a step" in lines[0]
    assert lines[1].startswith("A term with log |lambda|")
    assert "turns" not in lines[1]


@pytest.mark.parametrize(
    ("changed", "good"),
    [
        ({}, True),
        ({"noise": 0.59}, True),
        ({"noise": 0.61}, False),
        ({"foretold": 2.1}, False),
        ({"foretold": 1.9, "noise": 0.5}, True),
        ({"foretold": 2.1, "noise": 0.0094}, True),  # two percent of the data are no harm
        ({"foretold": 2.1, "noise": 0.0096}, False),
        ({"drift": [0.0051, 0.0]}, False),
        ({"drift": [0.0049, 0.0199]}, True),
        ({"drift": [0.0, 0.0201]}, False),
        ({"drift": [0.0, 0.0201], "amplitude": [1.0, 0.099]}, True),
        ({"drift": [0.0009, 0.0], "growth": [0.001, -0.2]}, True),  # a tenth over the whole run
        ({"drift": [0.0011, 0.0], "growth": [0.001, -0.2]}, False),
    ],
)
def test_fits_that_are_not_believed(changed, good):
    e = told_by(**changed)
    if "foretold" in changed and "noise" not in changed:
        e = replace(e, noise=0.011)
    assert (unfit(e) is None) == good


def test_numbers_of_decisions():
    rng, said = np.random.default_rng(0), []
    for _ in range(300):
        e = told_by(
            growth=rng.choice([-0.05, -0.004, -0.001, 0.0, 0.001, 0.004, 0.05], 2),
            error=10.0 ** rng.uniform(-4, -2, 2), amplitude=10.0 ** rng.uniform(-2, 0, 2),
            flipped=np.array([False, bool(rng.random() < 0.5)]), length=int(rng.integers(20, 300)),
            noise=rng.uniform(0, 0.7), foretold=rng.uniform(0.8, 2.4), drift=10.0 ** rng.uniform(-5, -2, 2),
            rest=rng.uniform(-0.05, 0.05, (2, 2)),
        )  # fmt: skip
        case, lines = decide(e)
        said.append(f"{case} {len(lines)} {words(lines[-1])} {words(unfit(e) or '')}")
    same("spectral/inside decisions", said)


def test_rates_in_pairs():
    mu = np.array([1 + 2j, 1 - 2j, -0.5, 3 + 1e-7j])
    rates = bagged._Rates.of(mu, False)
    np.testing.assert_array_equal(rates.pairs, [1 + 2j])
    np.testing.assert_array_equal(rates.single, [-0.5, 3])
    np.testing.assert_array_equal(rates.vector, [1, 2, -0.5, 3])
    np.testing.assert_array_equal(rates.values, [1 + 2j, 1 - 2j, -0.5, 3])
    again = rates.at(np.array([5.0, 6.0, 7.0, 8.0]))
    np.testing.assert_array_equal(again.values, [5 + 6j, 5 - 6j, 7, 8])
    free = bagged._Rates.of(mu[:2], True)
    np.testing.assert_array_equal(free.vector, [1, 1, 2, -2])
    np.testing.assert_array_equal(free.at(np.array([1.0, 2.0, 3.0, 4.0])).values, [1 + 3j, 2 + 4j])
    cut = bagged._Rates.of(np.array([1 + 2j, -1.0]), False)  # its conjugate was cut off, and there is no room for one
    np.testing.assert_array_equal(cut.pairs, [])
    np.testing.assert_array_equal(cut.single, [-1, 0])
    lone = bagged._Rates.of(np.array([1 - 2j, -1.0, -2.0]), False)
    np.testing.assert_array_equal(lone.single, [-1, -2, 0])
    bag = np.array([[1.0 + 0j], [1.1], [0.9], [1.0], [2.2]])
    assert bagged._agreeing(bag).tolist() == [True, True, True, True, False]
    assert bagged._agreeing(np.array([[1.0 + 0j], [1.1], [0.9], [1.2], [2.0]])).tolist() == [True] * 5
    assert bagged._agreeing(np.ones((3, 1), complex)).all()


def test_first_guesses_of_rates():
    tau = np.linspace(0, 1, 200)
    Y = np.c_[np.exp(-2 * tau), np.exp(0.5 * tau)]
    step = tau[1]
    exact = [2 / step * np.tanh(mu * step / 2) for mu in (-2, 0.5)]  # the trapezoidal rule of an exponential
    np.testing.assert_allclose(np.sort(bagged._first_guess(Y, tau, 2).real), exact, rtol=1e-6)
    one = (np.cos(9 * tau) * np.exp(-tau))[:, None]
    np.testing.assert_allclose(np.sort_complex(bagged._first_guess(one, tau, 2)), [-1 - 9j, -1 + 9j], atol=1e-5)
    B = np.array([[1.0, 2.0], [3.0, 4.0]])
    mu = np.array([-1.0, 2j])
    np.testing.assert_allclose(bagged._weights(tau, mu, np.exp(np.outer(tau, mu)) @ B), B, atol=1e-9)
    np.testing.assert_array_equal(bagged._stacked(np.array([[1 + 2j, 3 + 4j]])), [1, 3, 2, 4])


def test_numbers_of_bags():
    t = np.sort(np.random.default_rng(1).uniform(2, 9, 70))
    Z = np.exp(np.outer(t, [-0.1 + 2j, -0.1 - 2j])).real @ np.array([[1.0, 0.5], [0.2, -0.3]])
    Z = Z + 0.02 * np.random.default_rng(2).standard_normal(Z.shape) + np.sin(2 * t)[:, None] * [0.3, 1.0]
    model = OptimisedDMD(2, bags=6, share=0.5, seed=3).fit(Z, times=t)
    ahead, spread = model.forecast([9.5, 11.0])
    same("spectral/inside bags", [
        model.growth_rates_, np.abs(model.frequencies_), model.rates_std_, model.amplitudes_, np.abs(model.modes_),
        ahead, spread, model.relative_residual_,
    ], rel=1e-3, near=1e-7)  # fmt: skip
    np.testing.assert_allclose(np.linalg.norm(model.modes_, axis=0), 1)
    np.testing.assert_allclose(model.predict([9.5, 11.0]), ahead)
    for options, message in (({"bags": -1}, "bags"), ({"share": 0.0}, "share"), ({"share": 1.1}, "share")):
        with pytest.raises(ValueError, match=message):
            OptimisedDMD(2, **options).fit(Z, times=t)
    assert OptimisedDMD(2, share=1.0, bags=1).fit(Z, times=t).rates_std_.max() == 0
    with pytest.raises(ValueError, match="4 samples at least"):
        OptimisedDMD(2).fit(Z[:3])
    assert OptimisedDMD(2).fit(Z[:4], times=t[:4]).rates_.shape == (2,)
