"""A learned dictionary finds what closes the system."""

import numpy as np
import pytest

from koopsim.spectral import EDMD, LearnedDictionary, Monomials

pytest.importorskip("torch")
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (1500, 2))
Y = np.c_[0.9 * X[:, 0], 0.5 * X[:, 1] + 0.4 * X[:, 0] ** 2]  # closed by x0^2


def test_it_predicts_what_the_state_alone_does_not():
    model = EDMD(LearnedDictionary(4, hidden=24, steps=400), rtol=1e-9).fit((X, Y))
    linear = EDMD(Monomials(1)).fit((X, Y))
    fresh = RNG.uniform(-1, 1, (300, 2))
    truth = np.c_[0.9 * fresh[:, 0], 0.5 * fresh[:, 1] + 0.4 * fresh[:, 0] ** 2]
    off, before = (np.sqrt(np.mean((m.predict(fresh) - truth) ** 2)) for m in (model, linear))
    assert off < 0.2 * before
    found = np.abs(model.eigenvalues_[:, None] - [1, 0.9, 0.5]).min(axis=0)
    assert found.max() < 0.02
    losses = model.dictionary_.losses_
    assert losses[-50:].mean() < 0.2 * losses[:20].mean()


def test_the_same_seed_gives_the_same_observables():
    a, b, c = (LearnedDictionary(3, 8, 20, seed=s).fit_pairs(X, Y).transform(X[:5]) for s in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - c).max() > 1e-3
    np.testing.assert_array_equal(a[:, :3], np.c_[np.ones(5), X[:5]])


def test_a_trajectory_and_refusals():
    assert LearnedDictionary(2, 4, 3).fit(X).transform(X).shape == (1500, 5)
    with pytest.raises(ValueError, match="n_features"):
        LearnedDictionary(0).fit(X)
    with pytest.raises(ValueError, match="diverged"):
        LearnedDictionary(2, 4, 30, lr=1e308).fit(X)
