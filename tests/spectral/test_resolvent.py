"""Circles that are clear of eigenvalues, arc by arc."""

import numpy as np

from koopsim.spectral import resolvent
from koopsim.spectral.resolvent import Circles


def test_large_circles_where_what_is_clear_shrinks(monkeypatch):
    """Towards an eigenvalue near the circle the arcs shrink: looked at nearer, and never stepped over."""
    monkeypatch.setattr(resolvent, "DENSE", 2)
    for angle in (0.4, 2.0, 5.5):
        T = np.diag([0.97 * np.exp(1j * angle), 0.2, -0.3]) + 0.01 * np.eye(3, k=1)
        z = np.exp(1j * np.linspace(0, 2 * np.pi, 20001))
        shown = resolvent.smallest_singular_values(T, z[::10]).min()
        circles = Circles(T, False)
        assert circles._large(1.0, 0.9 * shown)
        assert circles.allowance.left < resolvent.ALLOWANCE - 27 * 10
        assert not Circles(T, False)._large(1.0, 1.1 * shown)
        assert Circles(T, True)._large(1.0, 0.9 * shown)
    hidden = np.diag([0.999 * np.exp(-0.5j), 0.2, -0.3]) + 0.01 * np.eye(3, k=1)
    assert not Circles(hidden, False)._large(1.0, 0.01)
    far = Circles(np.diag([0.999 * np.exp(5.5j), 0.2]) + 0.01 * np.eye(2, k=1), True, resolvent.Allowance(8.0 * 9))
    assert far.arc == np.pi


def test_arcs_by_powers_of_the_resolvent():
    """About a Jordan block the resolvent alone tells of little, its powers of much of the way: never too much."""
    T = np.diag(np.r_[0.9, 0.9, 0.9, 0.1, -0.4]).astype(complex) + np.diag([40.0, 40.0, 1.0, 1.0], 1)
    z, level = 1.0 + 0j, 1e-9
    alone = resolvent.smallest_singular_values(T, np.array([z]))[0] - level
    assert alone < 1e-6
    reach = Circles(T, False)._reach(z, level)
    assert 0.01 < reach < 0.1
    points = z + reach * np.exp(2j * np.pi * np.arange(400) / 400)
    assert resolvent.smallest_singular_values(T, points).min() > level
    assert Circles(T, False, resolvent.Allowance(0.0))._reach(z, level) <= alone  # no power is paid for
    assert Circles(T, False)._reach(z, 2 * (alone + level)) < 0
    for coupling in (0.1, 1.0, 10.0):
        T = np.diag([0.5, 0.6j, -0.7]) + coupling * np.triu(np.ones((3, 3)), 1)
        for level in (1e-6, 1e-3):
            circles = Circles(T, False)
            for z in np.exp(1j * np.arange(6)):
                reach = circles._reach(z, level)
                around = z + max(reach, 0.0) * np.exp(2j * np.pi * np.arange(200) / 200)
                assert reach <= 0 or resolvent.smallest_singular_values(T, around).min() > level


def test_what_is_kept_of_the_allowance():
    """What is left is not all spent on a circle that would only be convenient."""
    T = np.diag([0.99, 0.2, -0.3]) + (5 + 0j) * np.eye(3, k=1)
    circles = Circles(T, False, resolvent.Allowance(27.0 * 400))
    assert not circles._large(1.0, 1e-3, 27.0 * 350)
    assert circles.allowance.left >= 27 * 349


def test_a_resolvent_that_cannot_be_squared():
    """Not clear, and no warning: the couplings take inverse iteration beyond 10^154."""
    T = np.diag(np.full(12, 1 - 1e-9 + 0j)) + 1e10 * np.eye(12, k=1)
    assert resolvent.singular_value_at_most(T, 1.0 + 0j) == 0.0
    assert not Circles(T, False)._large(1.0, 1e-12)
