"""Residuals and pseudospectra: in batches of any size, on other samples, with inputs."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral import EDMD, Identity, resdmd

RNG = np.random.default_rng


def test_pseudospectra_in_batches(monkeypatch):
    X = RNG(0).standard_normal((30, 2))
    model = EDMD(Identity()).fit((X, np.tanh(X)))
    points = RNG(1).standard_normal((3, 3)) + 0.1j
    whole = model.pseudospectrum(points)
    for batch in (1, 8, 9, 17):
        monkeypatch.setattr(resdmd, "BATCH", batch)
        assert_allclose(model.pseudospectrum(points), whole)
    with pytest.raises(ValueError, match="without control"):
        EDMD(Identity()).fit(X, control=X[:, :1]).residuals_on(X)
    zero = EDMD(Identity()).fit((X, 0.5 * X)).residuals_on((0 * X, 0 * X))
    assert zero.tolist() == [0, 0]
    held = EDMD(Identity()).fit([X, X], inputs=[[1.0], [2.0]])
    one = [held.residuals_on(X, inputs=[u]) for u in (1.0, 2.0)]
    both = held.residuals_on([X, X], inputs=[[1.0], [2.0]])
    assert not np.allclose(*one)
    assert (both <= np.maximum(*one) + 1e-12).all()
    assert (both >= np.minimum(*one) - 1e-12).all()
