"""Samples at the edges of pieces."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral.sampling import regular, without_gaps


def test_samples_at_the_edges_of_pieces():
    t = np.r_[0.0, 1.1, 1.9, 3.0, 8.0, 9.1, 9.9]  # four samples are bent through, three are not
    found = regular(t, t**2, dt=1.0)
    assert found.starts == [0.0]
    assert_allclose(found.pieces[0][:, 0], [0, 1, 4, 9], atol=1e-9)
    found = regular(np.r_[t, 11.2], np.r_[t, 11.2] ** 2, dt=1.0)
    assert found.starts == [0.0, 8.0]
    assert_allclose(found.pieces[1][:, 0], [64, 81, 100, 121], atol=1e-9)
    joined = np.r_[0.0, 1.1, 1.9, 3.0, 7.0, 8.1]  # four steps without a sample are no gap yet
    assert [len(p) for p in regular(joined, joined, dt=1.0).pieces] == [9]
    assert regular(np.array([0.0, 2.0]), np.array([1.0, 2.0])).dt == 2.0
    assert regular(np.array([0.0, 1.0, 2.0, 5.0]), np.arange(4.0)).dt == 1.0
    slow = regular(1.001 * np.arange(20.0), np.arange(20.0))
    assert slow.dt == pytest.approx(1.001, rel=1e-12)
    assert regular(np.arange(5.0), np.arange(5.0), dt=1).dt == 1.0
    for t, z, options, sentence in (
        ([0.0], [1.0], {}, "needs two samples"), ([0.0, 0.0], [1.0, 2.0], {}, "must increase"),
        ([0.0, 1.0], [1.0, 2.0], {"dt": 0.0}, "dt must be"), ([0.0, 5.0], [1.0, 2.0], {"dt": 1.0}, "are left"),
        ([[0.0, 1.0]], [1.0, 2.0], {}, "as many times"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=sentence):
            regular(np.array(t), np.array(z), **options)
    missing = regular(np.array([0.0, np.nan, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, np.nan]), dt=2.0)
    assert missing.said == ("2 rows with missing values are left out",)
    assert [p.tolist() for p in without_gaps(np.array([[1.0], [2.0], [np.nan], [3.0]]))] == [[[1.0], [2.0]]]


@pytest.mark.parametrize("name", ["two steps", "a slower clock", "a clock that walks"])
def test_uneven_times_are_uneven_however_many_they_are(name):
    """Of 62,500 samples and more the clock as a whole may be off by half a step, which says nothing of any of them."""
    draws, n = np.random.default_rng(0), 70_000
    steps = {
        "two steps": np.where(draws.random(n) < 0.5, 1.0, 1.4),
        "a slower clock": np.linspace(1, 1.5, n),
        "a clock that walks": 1 + 0.05 * draws.standard_normal(n),
    }[name]
    t = np.r_[0, steps.cumsum()]
    found = regular(t, np.sin(t / 10))
    assert found.said[0].startswith("uneven times")
    for piece, start in zip(found.pieces, found.starts, strict=True):
        own = start + found.dt * np.arange(len(piece))
        assert_allclose(piece[:, 0], np.sin(own / 10), atol=1e-3)


def test_many_even_times_have_no_gaps_where_the_median_step_is_a_little_off():
    draws, n = np.random.default_rng(0), 70_000
    t = np.arange(n) + 0.01 * draws.standard_normal(n)
    found = regular(t, np.sin(t / 10))
    assert (len(found.pieces), found.said) == (1, ())
    assert found.dt == pytest.approx(1, abs=1e-6)


def test_a_single_step_is_not_off_by_more_because_there_are_many():
    n = 100_000  # the clock as a whole may be off by 0.6 steps
    t = np.arange(n, dtype=float)
    for off, even in ((0.09, True), (0.11, False)):
        t[500] = 500 + off
        assert (regular(t, np.sin(t / 10)).said == ()) == even


def test_a_sample_that_was_taken_twice_is_no_step_of_its_own():
    t = np.sort(np.r_[np.arange(20.0), 5.01])
    found = regular(t, np.sin(t / 3))
    assert found.said[0].startswith("uneven times (0.01 to 1)")
    assert_allclose(found.pieces[0][:, 0], np.sin(np.arange(20.0) / 3), atol=1e-3)
