"""Almost invariant sets and forecasts of a file, by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix

from koopsim.spectral import EDMD, Delays, Identity, invariant_density
from koopsim.spectral.almost_invariant import _leading, _split
from koopsim.spectral.forecasts import Forecast, forecast_by_edmd, forecast_by_exponentials
from koopsim.spectral.observations import Observations


def test_almost_invariant_sets_by_hand():
    """Two wells that swap rarely: two sets, each with half of the mass, left with the probability of a swap."""
    rng = np.random.default_rng(0)
    side = np.where(np.cumsum(rng.random(4000) < 0.02) % 2, 1.0, -1.0)
    x = side * (1 + rng.uniform(0, 1, 4000))
    found = invariant_density(x, boxes=np.linspace(-2, 2, 9), weights="counts").almost_invariant_sets()
    assert found.count == 2
    stay = np.array([np.mean(side[1:][side[:-1] == s] == s) for s in (-1.0, 1.0)])
    assert_allclose(np.sort(found.staying), np.sort(stay), atol=1e-4)
    assert_allclose(found.masses.sum(), 1)
    assert found.masses[0] >= found.masses[1]
    assert_allclose(found.eigenvalues[0], 1)
    labels = found.assign([-1.5, 1.5, 0.0, 7.0])
    assert labels[0] != labels[1]
    assert labels[2:].tolist() == [-1, -1]
    with pytest.raises(ValueError, match="count=9"):
        invariant_density(x, boxes=np.linspace(-2, 2, 9), weights="counts").almost_invariant_sets(9)

    w, u = _leading(csr_matrix(np.diag([0.1, 0.9, 0.5])), 2)
    assert_allclose(w, [0.9, 0.5])
    assert_allclose(np.abs(u), np.eye(3)[:, [1, 2]], atol=1e-12)
    vectors = np.array([[0.0], [0.1], [5.0], [5.1]])
    assert _split(vectors, np.array([0.1, 0.1, 0.4, 0.4]), 2).tolist() == [1, 1, 0, 0]
    assert _split(vectors, np.full(4, 0.25), 1).tolist() == [0] * 4


def test_a_forecast_of_a_file_by_hand():
    """x_l = 0.9^l cos(0.4 l): two delays know it; errors are those of the last fifth, which was held back."""
    l = np.arange(45)
    x = (0.97**l * np.cos(0.4 * l))[:, None]
    seen = Observations([x[:3], x[:40]], None, [0.0, 5.0], 0.5, ("x",), ())
    assert seen.longest == seen.latest == 1
    model = EDMD(Delays(2)).fit([x[:40]])
    found = forecast_by_edmd(seen, 5, model, 0.2)
    assert_allclose(found.values, x[40:], atol=1e-8)
    assert_allclose(found.times, 5.0 + 0.5 * l[40:])
    assert_allclose(found.past_times, 5.0 + 0.5 * l[:40])
    assert found.origin == {"trajectory": 2, "trajectories": 2, "samples": 40, "time": 24.5}
    assert found.said == (
        "goes on from trajectory 2 of 2: 40 samples up to time 24.5",
        "errors as on the last 8 samples of the longest piece, held back",
    )
    assert found.errors.shape == (5, 1)
    assert found.errors.max() < 1e-8
    far = forecast_by_edmd(seen, 12, model, 0.2)
    assert far.said[-1].endswith("; beyond 7 steps they are at least so large")
    assert_allclose(far.errors[7:], np.broadcast_to(far.errors[:7].max(axis=0), (5, 1)))
    short = Observations([x[:5]], None, [0.0], 1.0, ("x",), ())
    assert "too few to hold any back" in forecast_by_edmd(short, 1, EDMD(Delays(2)).fit(x[:5]), 0.2).said[0]
    waves = forecast_by_exponentials(Observations([x[:40]], None, [5.0], 0.5, ("x",), ()), 5, 2)
    assert_allclose(waves.values, x[40:], atol=1e-6)
    assert waves.errors.max() < 1e-6
    assert waves.said[0].startswith("optimised DMD, rates -0.06092 +0.8i")
    u = np.cos(l)[:39, None]
    z = np.zeros((40, 1))
    for k in range(39):
        z[k + 1] = 0.5 * z[k] + u[k]
    steered = Observations([z], [np.r_[u, [[2.0]]]], [0.0], 1.0, ("z",), ())
    driven = forecast_by_edmd(steered, 2, EDMD(Identity()).fit(z, control=u), 0.2)
    first = 0.5 * z[-1, 0] + 2
    assert_allclose(driven.values[:, 0], [first, 0.5 * first + 2], atol=1e-8)
    assert driven.said[-1] == "the control keeps its last value"


def test_exponentials_are_of_the_latest_trajectory_alone():
    """Another one, at the same times, has other rates; the gap in this one is no trouble."""
    l = np.arange(40.0)
    other, own = (np.exp(-0.3 * l)[:, None], np.cos(0.4 * l)[:, None])
    seen = Observations([other, own[:15], own[20:]], None, [0.0, 0.0, 20.0], 1.0, ("x",), (), (0, 1, 1))
    found = forecast_by_exponentials(seen, 3, 2)
    assert_allclose(found.values[:, 0], np.cos(0.4 * np.arange(40, 43)), atol=1e-6)
    assert found.errors.max() < 1e-6


def test_both_parts_of_a_complex_number_are_off_by_as_much():
    x = np.exp((0.4j - 0.01) * np.arange(40))[:, None] + 0.01 * np.random.default_rng(0).standard_normal((40, 1))
    found = forecast_by_exponentials(Observations([x], None, [0.0], 1.0, ("x",), ()), 3, 1)
    assert found.names == ("x.re", "x.im")
    assert found.errors.shape == (3, 2)
    assert_allclose(found.errors[:, 1], found.errors[:, 0])
    assert found.errors.min() > 0


@pytest.mark.parametrize(("samples", "enough"), [(8, False), (9, True)])
def test_a_forecast_needs_what_its_delays_look_at(samples, enough):
    x = np.sin(np.arange(40) / 3)[:, None]
    seen = Observations([x[:25], x[40 - samples :]], None, [0.0, 40.0 - samples], 1.0, ("x",), (), (0, 0))
    model = EDMD(Delays(8)).fit([x[:25]])
    if enough:
        assert_allclose(forecast_by_edmd(seen, 2, model, 0.25).values[:, 0], np.sin(np.arange(40, 42) / 3), atol=1e-6)
        return
    with pytest.raises(ValueError, match="8 samples, after a gap; 8 delays look at 9: with --delays 7"):
        forecast_by_edmd(seen, 2, model, 0.25)


def test_a_line_of_a_forecast_has_two_errors_on_either_side():
    values, errors = np.array([[1.0, 10.0], [2.0, 20.0]]), np.array([[0.5, 1.0], [0.25, 3.0]])
    found = Forecast(np.array([5.0, 6.0]), values, errors, np.arange(2.0), values, ("a", "b"), ())
    assert found.rows() == [
        ["time", "a", "a_low", "a_high", "b", "b_low", "b_high"],
        [5.0, 1.0, 0.0, 2.0, 10.0, 8.0, 12.0],
        [6.0, 2.0, 1.5, 2.5, 20.0, 14.0, 26.0],
    ]
    assert found.lines()[1].split() == ["5", "1", "+-", "1", "10", "+-", "2"]
    band = found.plot().axes[0].collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.0, 2.5)
