"""Embeddings of densities and of samples: exact for coarse boxes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral import RandomFourier, embedding_of_density, invariant_density, mean_embedding, mmd

RNG = np.random.default_rng


def test_embeddings_of_coarse_boxes_are_exact():
    """Two boxes a side: the mean of psi over each, against a fine grid."""
    rng = RNG(0)
    Z = rng.uniform(0, 1, (400, 2))
    d = invariant_density((Z, rng.uniform(0, 1, (400, 2))), boxes=[np.array([0, 0.4, 1.0])] * 2)
    psi = RandomFourier(8, 0.2, seed=3).fit(Z)
    t = (np.arange(400) + 0.5) / 400
    grid = np.stack([g.ravel() for g in np.meshgrid(t, t, indexing="ij")], axis=1)
    fine = (psi.transform(grid) * d.evaluate(grid)[0][:, None]).mean(axis=0)
    assert_allclose(embedding_of_density(d, psi)[0], fine, atol=2e-4)
    unfitted = RandomFourier(8, 0.2, seed=3)
    assert_allclose(embedding_of_density(d, unfitted)[0], fine, atol=2e-4)
    x = rng.uniform(0, 1, 7)
    one = RandomFourier(4, 1.0, seed=0)
    exact = one.fit(x[:, None]).transform(x[2:, None]).mean(axis=0)
    assert_allclose(mean_embedding(x, one, burn=2), exact)
    assert_allclose(mean_embedding([x, x[:3]], one, burn=2), (exact + one.transform(x[2:3, None])[0]) / 2)
    with pytest.raises(ValueError, match="none left"):
        mean_embedding([x, x[:2]], one, burn=2)
    assert_allclose(mmd(np.array([[3.0, 0.0], [0.0, 1.0]]), np.array([0.0, 4.0])), [5, 3])
    with pytest.raises(ValueError, match="as many numbers"):
        mmd(np.ones(3), np.ones((2, 2)))
