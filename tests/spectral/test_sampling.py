"""Gaps and uneven times."""

import numpy as np
import pytest

from koopsim.spectral import EDMD, Delays, Identity, regular, without_gaps

T = np.arange(200) * 0.1
Z = np.c_[np.cos(2 * T), np.sin(2 * T)]


def test_even_times():
    found = regular(T, Z)
    assert found.dt == pytest.approx(0.1)
    assert len(found.pieces) == 1
    assert found.said == ()


def test_missing_samples_are_gaps():
    keep = np.ones(200, dtype=bool)
    keep[[30, 31, 90]] = False
    broken = Z.copy()
    broken[150, 0] = np.nan
    found = regular(T[keep], broken[keep])
    assert [len(p) for p in found.pieces] == [30, 58, 59, 49]
    assert len(found.said) == 2
    model = EDMD(Identity(), dt=found.dt).fit(found.pieces)
    assert sorted(model.frequencies_) == pytest.approx([-1 / np.pi, 1 / np.pi])
    assert [len(p) for p in without_gaps(broken)] == [150, 49]
    with pytest.raises(ValueError, match="missing values"):
        without_gaps(np.full((3, 1), np.nan))


def test_uneven_times_by_a_spline():
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, 20, 400))
    found = regular(t, np.cos(2 * t)[:, None], dt=0.1)
    assert "cubic spline" in found.said[0]
    model = EDMD(Delays(8), dt=0.1, rank=2).fit(found.pieces)
    assert np.abs(model.frequencies_).max() == pytest.approx(1 / np.pi, rel=1e-3)


def test_refusals():
    for t, message in ((T[:-1], "as many times"), (T[::-1], "must increase"), (np.zeros(200), "must increase")):
        with pytest.raises(ValueError, match=message):
            regular(t, Z)
    with pytest.raises(ValueError, match="dt must be"):
        regular(T, Z, dt=-1)
    with pytest.raises(ValueError, match="two samples"):
        regular(T, np.full_like(Z, np.nan))


@pytest.mark.parametrize(("count", "jitter", "even"), [(60, 0.012, True), (60, 0.05, False), (900, 0.04, True)])
def test_a_clock_that_is_a_little_off_is_even(count, jitter, even):
    """Two hundredths of a step, and more in a long record, whose median step is itself less sure."""
    rng = np.random.default_rng(0)
    t = np.arange(count) + jitter * np.r_[0.0, rng.choice([-1.0, 1.0], count - 2), 0.0]
    found = regular(t, np.cos(0.1 * t)[:, None], dt=1.0)
    assert any("spline" in said for said in found.said) is not even
    assert found.dt == 1.0
    assert len(found.pieces) == 1
