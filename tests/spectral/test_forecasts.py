"""How many exponentials a forecast has, and whose its errors are."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral import EDMD, Delays, Identity, forecasts
from koopsim.spectral.observations import Observations

RNG = np.random.default_rng


@pytest.mark.parametrize(
    ("m", "d", "count"), [(100, 1, 2), (100, 3, 6), (100, 5, 8), (20, 5, 5), (9, 2, 2), (7, 2, 1), (3, 1, 1)]
)
def test_how_many_exponentials_a_forecast_has(m, d, count, monkeypatch):
    """Two for each of four states, four samples for each; errors are the spread and what was left over together."""

    class Exact:
        def __init__(self, n_modes, bags):
            self.n_modes, self.bags = n_modes, bags
            self.rates_, self.rates_std_ = np.array([-1.0 + 2j]), np.array([0.5])

        def fit(self, Z, times):
            self.Z, self.times = Z, times
            asked.append(self)
            return self

        def forecast(self, times):
            return np.tile(times[:, None], d), np.full((len(times), d), 3.0)

        def predict(self, times):
            return self.Z + np.where(np.arange(len(times)) % 2, 4.0, -4.0)[:, None]

    asked = []
    monkeypatch.setattr(forecasts, "OptimisedDMD", Exact)
    given = Observations([np.ones((m, d))], None, [10.0], 0.5, tuple("abcde"[:d]), ())
    found = forecasts.forecast_by_exponentials(given, 2, None)
    assert (asked[0].n_modes, asked[0].bags) == (count, 40)
    assert_allclose(asked[0].times, 10 + 0.5 * np.arange(m))
    assert_allclose(found.values[:, 0], [10 + 0.5 * m, 10 + 0.5 * (m + 1)])
    assert_allclose(found.times, found.values[:, 0])
    assert_allclose(found.errors, 5.0)
    assert found.said == ("optimised DMD, rates -1 +2i (+- 0.5)",)
    forecasts.forecast_by_exponentials(given, 1, 3)
    assert asked[1].n_modes == 3


@pytest.mark.parametrize(("dictionary", "past"), [(Identity(), 0), (Delays(2), 2)])
def test_errors_are_those_of_what_was_held_back(dictionary, past):
    """Forecasts from the first sample that was not fitted on; short pieces are fitted if they make a pair."""
    z = np.zeros((40, 1))
    for l in range(39):
        z[l + 1] = 0.8 * z[l] + RNG(l).standard_normal(1)
    other = RNG(99).standard_normal((past + 2, 1))
    given = Observations([z, other, other[1:]], None, [0.0] * 3, 1.0, ("z",), ())
    model = EDMD(dictionary).fit([z, other])
    found = forecasts.forecast_by_edmd(given, 3, model, 0.2)
    apart = EDMD(dictionary).fit([z[:32], other])
    assert_allclose(found.errors, apart.forecast_errors(z[32 - past :], 3)[1:])
    assert_allclose(found.values, model.forecast(z if past else z[-1], 3)[1:])
    assert found.said == (
        "goes on from trajectory 1 of 3: 40 samples up to time 39",
        "errors as on the last 8 samples of the longest piece, held back",
    )
    early = forecasts.forecast_by_edmd(given, 3, model, 0.97)  # too little is left to be fitted
    assert "too few to hold any back" in early.said[-1]
    assert_allclose(early.errors, model.forecast_errors(z, 3)[1:])
