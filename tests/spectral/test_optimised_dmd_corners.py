"""Optimised DMD where it begins and ends: bags, first guesses, the order of rates."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral import OptimisedDMD, optimised_dmd

RNG = np.random.default_rng


def test_bags_and_their_rows(monkeypatch):
    """Six tenths of the samples, two for each mode at least and never more than there are."""
    sizes = []
    real = optimised_dmd._fit
    monkeypatch.setattr(optimised_dmd, "_fit", lambda Y, tau, start: sizes.append(len(Y)) or real(Y, tau, start))
    t = np.arange(20.0)
    z = np.exp(-0.1 * t)
    for options, rows in (({"n_modes": 1}, 12), ({"n_modes": 1, "share": 0.05}, 2), ({"n_modes": 2, "share": 0.1}, 4),
                          ({"n_modes": 1, "share": 1.0}, 20)):  # fmt: skip
        sizes.clear()
        model = OptimisedDMD(bags=2, **options).fit(z if options["n_modes"] == 1 else z + np.exp(-0.7 * t))
        assert sizes == [20, rows, rows]
    assert model.rates_ == pytest.approx([-0.1], abs=1e-8)
    assert model.relative_residual_ < 1e-8
    asked = []
    windows = optimised_dmd.windows
    monkeypatch.setattr(optimised_dmd, "windows", lambda Z, past: asked.append(past) or windows(Z, past))
    for m, count in ((30, 2), (9, 4), (8, 2), (4, 2)):
        optimised_dmd._first_guess(RNG(0).standard_normal((m, 1)), np.linspace(0, 1, m), count)
    assert asked == [10, 7, 4, 2]
    wide = OptimisedDMD(3).fit(np.c_[np.cos(t), np.sin(t), np.exp(-0.1 * t)])
    assert_allclose(wide.rates_, [-0.1, 1j, -1j], atol=1e-7)  # slow ones first, of a pair the one above the axis
    assert OptimisedDMD(1).fit(z + 0j).complex_
    turning = OptimisedDMD(2).fit(np.c_[np.exp(1j * t), np.exp((2j - 0.1) * t)])
    assert_allclose(turning.rates_, [1j, -0.1 + 2j], atol=1e-7)
    assert_allclose(turning.predict([3.0])[0], [np.exp(3j), np.exp(6j - 0.3)], atol=1e-7)
