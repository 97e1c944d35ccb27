"""Errors of forecasts by their horizon: those that run away, and where they start."""

import numpy as np
from numpy.testing import assert_allclose

from koopsim.spectral import EDMD, Identity, horizon


def test_forecasts_that_run_away():
    x = 1e-300 * 1e60 ** np.arange(6.0)[:, None]
    model = EDMD(Identity()).fit((np.ones((3, 1)), np.full((3, 1), 1e100)))
    for sign in (1.0, -1.0):
        found = model.forecast_errors(np.full((9, 1), sign), 8)
        assert_allclose(found[1:, 0], [1e100, *[1e150] * 7])
    assert np.isfinite(model.forecast_errors(x, 3)).all()


def test_starts_of_forecasts(monkeypatch):
    """All of them up to a number, then as many evenly spread; none that ends beyond the run."""
    monkeypatch.setattr(horizon, "MOST_STARTS", 3)
    model = EDMD(Identity()).fit((np.ones((3, 1)), np.full((3, 1), 0.0)))
    z = np.array([[1.0], [2.0], [3.0], [4.0], [5.0]])  # zero is foretold from 0, 2 and 4
    found = model.forecast_errors(z, 5)[:, 0]
    assert_allclose(found[:5], [0, np.sqrt((4 + 16) / 2), np.sqrt((9 + 25) / 2), 4, 5])
    assert np.isnan(found[5])
