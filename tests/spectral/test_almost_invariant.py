"""Almost invariant sets of many boxes, by Arnoldi as densely."""

import numpy as np
from chains import chain
from numpy.testing import assert_allclose

from koopsim.spectral import almost_invariant

RNG = np.random.default_rng


def test_sets_of_many_boxes_by_arnoldi(monkeypatch):
    rng = RNG(0)
    n = 30
    P = np.kron(np.eye(3), rng.uniform(0.5, 1, (10, 10))) + 0.02 * rng.uniform(0, 1, (n, n))
    d = chain(P / P.sum(axis=1, keepdims=True), np.full(n, 10))
    dense = d.almost_invariant_sets()
    assert dense.count == 3
    monkeypatch.setattr(almost_invariant, "DENSE", 29)
    sparse = d.almost_invariant_sets()
    assert_allclose(sparse.eigenvalues, dense.eigenvalues, atol=1e-9)
    assert sparse.labels.tolist() == dense.labels.tolist()
    assert (np.diff(sparse.eigenvalues) <= 0).all()
