"""What is kept of a fit: the eigenpairs that are trusted, the rows for a judgement."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral import EDMD, Identity, kept
from koopsim.spectral.kept import trusted

RNG = np.random.default_rng


def test_eigenpairs_that_are_trusted():
    rng = RNG(0)
    X = rng.uniform(-1, 1, (200, 2))
    Y = np.c_[0.5 * X[:, 0], rng.uniform(-1, 1, 200)]  # the second is no function of anything
    model = EDMD(Identity()).fit((X, Y))
    worst = model.residuals_.max()
    assert trusted(model, worst).shape == (2, 2)
    assert trusted(model, 0.99 * worst).shape == (2, 1)
    with pytest.raises(ValueError, match="no eigenpair"):
        trusted(model, 0.5 * model.residuals_.min())


def test_rows_that_are_kept_for_a_judgement(monkeypatch):
    monkeypatch.setattr(kept, "MOST_ROWS", 10)
    z = RNG(0).standard_normal((41, 2))
    found = kept.kept_by(EDMD(Identity()).fit(z))
    assert len(found.now) == len(found.after) == len(found.states) == 10
    assert_allclose(found.now, z[:10])
    assert_allclose(found.after, z[1:11])
    assert len(found.runs) == 1
    assert kept.kept_by(EDMD(Identity()).fit(z, control=z[:, :1])) is None
    assert kept.kept_by(EDMD(Identity()).fit(z, inputs=[1.0])).runs is None
    assert kept.kept_by(EDMD(Identity()).fit((z, z))).runs is None
