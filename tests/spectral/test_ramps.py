"""A ramp goes on for ever: however slow, however far from zero, whatever rounding bends it, it does not settle."""

import numpy as np
import pytest

from koopsim.spectral import EDMD, Identity, Monomials
from koopsim.spectral.exponentials import ROUNDING, fit_exponentials


def ramp(n, slope, start, kind):
    if kind == "summed":  # each sum rounds, which bends it a little
        return np.cumsum(np.r_[start, np.full(n - 1, slope)])[:, None]
    noise = 1e-3 * abs(slope) * np.random.default_rng(n).standard_normal(n) if kind == "noisy" else 0.0
    return (start + slope * np.arange(n) + noise)[:, None]


@pytest.mark.parametrize("kind", ["straight", "summed", "noisy"])
@pytest.mark.parametrize("start", [0.0, 1.0, -7.3])
@pytest.mark.parametrize("slope", [0.1, -0.01, 1e-6, 1e5])
def test_a_ramp_does_not_settle(slope, start, kind):
    """-7.3 + 1e-6 l was certainly at the origin, 0.1 summed up sixty times surely at a point a hundred million away."""
    for n in (8, 20, 60, 200):
        for dictionary in (Identity(), Monomials(2)):
            verdict = EDMD(dictionary).fit(ramp(n, slope, start, kind)).verdict()
            assert verdict.case in ("undecided", "divergent")
            assert not verdict.certain


@pytest.mark.parametrize(
    ("rates", "case"),
    [([0.5], "origin"), ([0.999], "origin"), ([0.9, 0.8], "origin"), ([1.05], "divergent")],
)
def test_what_moves_enough_stays_certain(rates, case):
    """Without the constant among the observables: certain where the misfit is rounding of what moves, too."""
    z = np.array(rates) ** np.arange(60)[:, None]
    verdict = EDMD(Identity()).fit(z).verdict()
    assert verdict.case == case
    assert verdict.certain


def test_a_decay_beside_a_ramp_is_not_at_the_origin():
    """Each direction is measured by its own movement."""
    z = np.hstack([0.8 ** np.arange(40)[:, None], ramp(40, 1e-6, -7.3, "straight")])
    verdict = EDMD(Identity()).fit(z).verdict()
    assert verdict.case != "origin"
    assert not verdict.certain
    alone = EDMD(Identity()).fit(ramp(40, 1e-6, -7.3, "straight")).verdict()
    assert alone.case == "undecided"
    assert any("may lack the constant" in reason for reason in alone.reasons)


def test_the_growth_of_a_term_far_larger_than_the_data_is_known_by_as_much_less():
    """Rounding of the data is as many times larger for it."""
    found = fit_exponentials([1 - np.exp(-1e-3 * np.arange(30))[:, None]])
    np.testing.assert_allclose(found.growth, [-1e-3], rtol=1e-6)
    assert found.amplitude[0] > 100
    assert found.error[0] >= ROUNDING * found.amplitude[0]
