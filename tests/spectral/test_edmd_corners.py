"""EDMD where it begins and ends: as many samples as observables, bad parameters, what a dictionary is fitted to."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import block_diag
from sklearn.exceptions import NotFittedError

from koopsim.spectral import EDMD, Delays, Identity, OptimisedDMD, RandomFourier

RNG = np.random.default_rng


def test_as_many_samples_as_observables():
    z = RNG(0).standard_normal((6, 5))
    assert EDMD(Identity()).fit(z[:5])._lifted.basis is None
    assert EDMD(Identity()).fit(z[:4])._lifted.basis.shape == (5, 4)
    assert EDMD(Identity(), chunk=3).fit(z)._lifted.rows == 3
    assert EDMD(Identity()).fit(z)._lifted.rows == 2**23 // 5
    small = EDMD(Identity()).fit((z[:, :2], z[:, 2:4]))
    for share, fine in ((1.0004, True), (1.0006, False)):  # a thousandth of the squares
        X = z[:, :2].copy()
        model = EDMD(Identity()).fit((X, z[:, 2:4]))
        X *= share
        if fine:
            assert_allclose(model.residuals_, small.residuals_, rtol=0.1)
        else:
            with pytest.raises(ValueError, match="changed after fit"):
                _ = model.residuals_


def test_parameters_that_are_none():
    z = RNG(0).standard_normal((9, 2))
    for options in ({"ridge": -1e-9}, {"ridge": np.nan}, {"chunk": 0}, {"chunk": 2.5}, {"rank": 0}, {"rank": 1.5},
                    {"rank": "all"}, {"dt": 0.0}, {"dt": np.inf}, {"device": "moon"}):  # fmt: skip
        with pytest.raises(ValueError, match=r"ridge|chunk|rank|dt|device"):
            EDMD(**options).fit(z)
    for options in ({"ridge": 0.0}, {"chunk": 1}, {"rank": 1}, {"rank": "auto"}, {"dt": 1e-9}, {"device": "cpu"}):
        assert EDMD(Identity(), **options).fit(z).rank_ >= 1
    model = EDMD(Identity()).fit(z)
    assert model.forecast(z[0], 0).tolist() == [z[0].tolist()]
    for steps in (-1, 1.5):
        with pytest.raises(ValueError, match="whole number"):
            model.forecast(z[0], steps)
    with pytest.raises(ValueError, match="0 controls; got 3 rows"):
        model.forecast(z[0], 2, control=np.ones((3, 1)))
    with pytest.raises(ValueError, match="0 inputs; got 1"):
        model.predict(z, inputs=[1.0])
    with pytest.raises(ValueError, match="one trajectory"):
        model.score([z, z])
    steered = EDMD(Identity()).fit(z, control=z[:, :1])
    assert steered.forecast(z[0], 2, control=np.ones((2, 1))).shape == (3, 2)
    for bad, sentence in ((np.ones((1, 1)), "got 1 rows"), (np.ones((2, 2)), "controls; got 2"), (None, "got 0 rows")):
        with pytest.raises(ValueError, match=sentence):
            steered.forecast(z[0], 2, control=bad)
    more = EDMD(Identity()).partial_fit(z)
    with pytest.raises(ValueError, match="0 inputs and 0 controls"):
        more.partial_fit(z, control=z[:, :1])
    with pytest.raises(ValueError, match="without delays"):
        EDMD(Delays(1)).fit(z).forecast(z, 2, relift=True)
    line = (0.9 ** np.arange(12.0))[:, None]
    assert EDMD(Delays(2), rank=1).fit(line).score(line) == pytest.approx(1)
    assert EDMD(Identity()).fit(line).score((line[:3], 0.9 * line[:3])) == pytest.approx(1)


def test_the_order_of_eigenvalues():
    """Largest first; of a pair, or of two that rounding alone tells apart, the one above the axis first."""
    A = block_diag(0.5 * np.array([[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]]), -0.9, 0.2)
    X = RNG(0).standard_normal((40, 4))
    w = EDMD(Identity()).fit((X, X @ A.T)).eigenvalues_
    assert_allclose(w, [-0.9, 0.5 * np.exp(1j), 0.5 * np.exp(-1j), 0.2], atol=1e-9)


class Recorder:
    """A dictionary that remembers what it was fitted to."""

    def fit(self, Z, y=None):
        self.seen = Z.copy()
        return self

    def transform(self, Z):
        return Z


class Paired(Recorder):
    def fit_pairs(self, now, after):
        self.seen = np.hstack([now, after])
        return self


def test_what_a_dictionary_is_fitted_to():
    a, b = np.arange(4.0)[:, None], np.arange(10.0, 13)[:, None]
    both = [0, 1, 2, 3, 20, 21, 22, 23]
    for data, seen in (([a, b], [0, 1, 2, 3, 10, 11, 12]), (a, [0, 1, 2, 3]), ((a, a + 20), both)):
        model = EDMD(Recorder()).fit(data)
        assert model.dictionary_.seen[:, 0].tolist() == seen
    assert EDMD(Paired()).fit([a, b]).dictionary_.seen.tolist() == [[0, 1], [1, 2], [2, 3], [10, 11], [11, 12]]
    assert EDMD(Paired()).fit((a, a + 20)).dictionary_.seen.tolist() == [[k, k + 20] for k in range(4)]
    held = EDMD(Recorder()).fit([a, b], inputs=[[5.0], [6.0]])
    assert held.dictionary_.seen.tolist() == [[k, 5] for k in range(4)] + [[k, 6] for k in range(10, 13)]
    mine = Recorder()
    assert EDMD(mine).fit(a).dictionary_ is mine  # nothing that scikit-learn could clone
    given = RandomFourier(2)
    assert EDMD(given).fit(a).dictionary_ is not given
    with pytest.raises(ValueError, match="NaN or infinity"):
        EDMD(lambda z: np.where(z > 2, np.nan, z)).fit(a)


def test_inputs_go_along_with_the_past():
    """What the dictionary sees is the window and the input; rows of an input may not differ along a run."""
    z = np.arange(6.0)[:, None]
    model = EDMD(Delays(2)).fit([z, z[:5] + 0.5], inputs=[[7.0], [8.0]])
    assert model.n_inputs_ == 1
    assert model.transform(z[:4], inputs=[9.0]).tolist() == [[2, 1, 0, 9], [3, 2, 1, 9]]
    assert model.forecast(z, 2, inputs=[7.0]).shape == (3, 1)
    with pytest.raises(ValueError, match="1 inputs; got 0"):
        model.transform(z)
    with pytest.raises(ValueError, match="change along it"):
        EDMD(Identity()).fit(z, inputs=z)
    pairs = EDMD(Identity()).fit((z, z + 1), inputs=z)  # of pairs they may
    assert pairs.transform(z[:2], inputs=z[3:5]).tolist() == [[0, 3], [1, 4]]
    table = model.mode_table(z, inputs=[7.0])
    assert table.amplitude.size == len(table)
    still = EDMD(Identity()).fit((np.ones((4, 1)), np.ones((4, 1)))).mode_table()
    assert still.lifetime.tolist() == [np.inf]
    assert EDMD(Identity()).fit((np.ones((4, 1)), 0.5 * np.ones((4, 1)))).mode_table().amplitude == pytest.approx([1])


def test_before_a_fit_every_method_says_so():
    Z = np.arange(8.0).reshape(4, 2)
    plain = EDMD()
    asked = [
        lambda: plain.predict(Z), lambda: plain.forecast(Z[0], 2), lambda: plain.transform(Z), plain.verdict,
        lambda: plain.eigenvalues_, lambda: plain.modes_, lambda: plain.score(Z), plain.mode_table, plain.plot_summary,
        lambda: plain.eigenfunctions(Z), lambda: plain.residuals_on(Z), lambda: plain.pseudospectrum([1.0]),
        lambda: OptimisedDMD().predict([1.0]), lambda: OptimisedDMD().frequencies_,
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(NotFittedError, match="not fitted yet"):
            ask()


def test_states_that_cannot_be_squared_are_refused():
    big = 1e200 * np.cos(np.arange(40.0))[:, None]
    for model in (EDMD(Identity()), OptimisedDMD(2)):
        with pytest.raises(ValueError, match=r"the states reach 1\.0e\+200; squares beyond 1e\+150 overflow"):
            model.fit(big)


def test_one_sample_that_outweighs_the_rest_shows_nothing():
    """10^(3 l): without its last stretch nothing of it is left, and no number is divided by zero."""
    said = EDMD(Delays(3)).fit(10.0 ** np.arange(0, 149, 3)[:, None]).verdict().reasons
    assert any("too few to hold any out, so nothing is shown" in reason for reason in said)
