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
