"""Eigenvectors that prove nothing."""

import numpy as np
from numpy.testing import assert_allclose

from koopsim.spectral.eigenbasis import eigenbasis


def test_eigenvectors_that_prove_nothing():
    """A Jordan block has no basis of them: infinite slack, and neither circle nor separation is claimed."""
    J = np.eye(3) + np.eye(3, k=1) + 0j
    basis = eigenbasis(J)
    assert basis.slack == np.inf
    assert np.isinf(basis.norms).all()
    assert basis.separation(0) == 0.0
    assert not basis.clear_of_circle(3.0, 1e-9, 2 * np.pi)
    zero = eigenbasis(np.zeros((2, 2), complex))
    assert_allclose(zero.X, np.eye(2))
    assert zero.separation(0) <= 0.0
