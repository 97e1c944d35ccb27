"""Optimised DMD: closed forms, derivatives, and the figure that plain DMD misses."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.base import clone

from koopsim.spectral import EDMD, Identity, OptimisedDMD
from koopsim.spectral import optimised_dmd as module


def circle(t, noise=0.0, seed=0):
    Z = np.c_[np.cos(t), np.sin(t)]
    return Z + noise * np.random.default_rng(seed).standard_normal(Z.shape)


def test_exact_at_uneven_times():
    rng = np.random.default_rng(1)
    t = np.sort(rng.uniform(0, 10, 80))
    Z = np.outer(np.exp(-0.2 * t) * np.cos(3 * t), [1, 2, 0]) + np.outer(np.exp(0.1 * t), [0, 1, 1])
    Z[5] = np.nan  # a missing sample
    model = OptimisedDMD(3).fit(Z, times=t)
    np.testing.assert_allclose(np.sort_complex(model.rates_), [-0.2 - 3j, -0.2 + 3j, 0.1], atol=1e-8)
    assert model.relative_residual_ < 1e-9
    ahead = model.predict([12.0])
    np.testing.assert_allclose(ahead[0, 0], np.exp(-2.4) * np.cos(36), atol=1e-6)


def test_one_percent_noise_four_digits_where_dmd_has_two():
    """Ten seconds of +-i sampled often: DMD's growth is off by what regression on noisy samples costs."""
    t = np.arange(2000) * 0.02
    plain, ours, spread = [], [], []
    for seed in range(5):
        Z = circle(t, 0.01, seed)
        plain.append(np.abs(EDMD(Identity(), dt=0.02).fit(Z).rates_ - [1j, -1j]).max())
        model = OptimisedDMD(2, bags=20, seed=seed).fit(Z, times=t)
        ours.append(np.abs(model.rates_ - [1j, -1j]).max())
        spread.append(model.rates_std_.max())
    assert np.median(plain) > 4e-3
    assert np.max(ours) < 1e-4
    assert np.median(ours) < 3 * np.median(spread)  # the spread says how large the error is


def test_more_modes_than_columns_and_complex_data():
    t = np.arange(100) * 0.1
    series = np.cos(2 * t) + 0.5 * np.exp(-0.3 * t) * np.cos(7 * t)
    model = OptimisedDMD(4).fit(series, times=t)
    np.testing.assert_allclose(np.sort(np.abs(model.rates_.imag)), [2, 2, 7, 7], atol=1e-6)
    Z = np.outer(np.exp((0.1 + 2j) * t), [1, 1j])
    np.testing.assert_allclose(OptimisedDMD(1).fit(Z, times=t).rates_, [0.1 + 2j], atol=1e-9)


@pytest.mark.parametrize("free", [False, True])
def test_jacobian_at_a_fit_is_the_gradient(free, monkeypatch):
    """Kaufman's Jacobian leaves out a term that does not change the gradient J^T r of half the squared residual."""
    rng = np.random.default_rng(0)
    tau = np.linspace(0, 1, 30)
    Y = rng.standard_normal((30, 2)) + (1j * rng.standard_normal((30, 2)) if free else 0)
    kept = {}
    monkeypatch.setattr(
        module, "least_squares", lambda f, x, jac, **_: kept.update(f=f, x=x, jac=jac) or type("F", (), {"x": x})
    )
    rates = module._Rates.of(np.array([-1 + 3j, -1 - 3j, 0.5]), free)
    module._fit(Y, tau, rates)
    f, x, jac = kept["f"], kept["x"], kept["jac"]
    slope = approx_fprime(x, lambda x: 0.5 * np.sum(f(x) ** 2), 1e-7)
    np.testing.assert_allclose(jac(x).T @ f(x), slope, atol=1e-4)


def test_forecast_has_a_spread():
    t = np.arange(300) * 0.1
    model = clone(OptimisedDMD(2, bags=15)).fit(circle(t, 0.05), times=t)
    mean, spread = model.forecast([30.0, 60.0])
    np.testing.assert_allclose(mean, circle(np.array([30.0, 60.0])), atol=0.1)
    assert np.all(spread[1] > spread[0])
    assert model.frequencies_ == pytest.approx([1 / (2 * np.pi), -1 / (2 * np.pi)], abs=1e-3)


def test_a_rate_that_runs_away_is_held():
    """Of noise some bags want growth without bound: e^900 over the samples is held at the bound that the fit saw."""
    for seed in range(12):  # warnings are errors here: the overflow would be one
        model = OptimisedDMD(4, bags=10).fit(np.random.default_rng(seed).standard_normal((20, 2)))
        assert np.abs(model.growth_rates_ * 19).max() <= module.GROWTH
        assert np.isfinite(model.predict(np.arange(20))).all()


def test_refusals():
    Z = circle(np.arange(20.0))
    for options, data, times, message in (
        ({"n_modes": 0}, Z, None, "n_modes"), ({"n_modes": 12}, Z, None, "24 samples"),
        ({}, Z, np.zeros(20), "increase"),
        ({}, Z, np.arange(3), "as many times"), ({}, 0 * Z, None, "zero"), ({}, np.array([["a"]]), None, "numbers"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            OptimisedDMD(**options).fit(data, times=times)
