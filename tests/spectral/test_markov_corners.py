"""Chains that Arnoldi does not end on."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import ArpackNoConvergence

from koopsim.spectral import markov

RNG = np.random.default_rng


def test_chains_that_arnoldi_does_not_end_on(monkeypatch):
    """What was found, if it is two or more; else a coarser look, and at last the one alone."""
    P = csr_matrix(np.full((3, 3), 1 / 3))
    for found, told in (([1.0, 0.5], [1.0, 0.5]), ([1.0], None)):
        asked = []

        def fails(*_, tol, ncv, found=found, asked=asked, **__):
            asked.append((tol, ncv))
            raise ArpackNoConvergence("no", np.array(found), None)

        monkeypatch.setattr(markov, "eigs", fails)
        w = markov._arnoldi(P, 2)
        assert len(asked) == (1 if told else 3)
        assert asked[0] == (1e-10, 12)
        assert w[0] == 1.0
        assert w[1] == 0.5 if told else np.isnan(w[1])
    monkeypatch.undo()
    monkeypatch.setattr(markov, "STATIONARY", -1.0)
    with pytest.raises(ValueError, match="no stationary law"):
        markov.stationary_law(P)
    monkeypatch.undo()
    rng = RNG(0)
    Q = csr_matrix(rng.dirichlet(np.ones(80), 80))
    dense = markov.stationary_law(Q)
    monkeypatch.setattr(markov, "DENSE", 79)
    assert_allclose(markov.stationary_law(Q), dense, atol=1e-12)
    several = markov.leading(Q, dense, 1, 5)
    assert_allclose(np.abs(several), np.sort(np.abs(np.linalg.eigvals(Q.toarray())))[::-1][:5], atol=1e-8)
