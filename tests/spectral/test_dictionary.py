"""Dictionaries by what they are, what they refuse, and what they leave as it was."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral import Identity, Monomials, RandomFourier
from koopsim.spectral.dictionary import Lift, Observables, as_dictionary

RNG = np.random.default_rng


def test_features_of_another_width_are_refused():
    z = RNG(0).standard_normal((20, 2))
    for count in (0, 1, 3):
        with pytest.raises(ValueError, match="even number"):
            RandomFourier(count).fit(z)
    assert RandomFourier(2).fit(z).transform(z).shape == (20, 2)


def test_dictionaries_by_what_they_are():
    assert isinstance(as_dictionary(None, 30), Monomials)  # 496 of them
    assert isinstance(as_dictionary(None, 31), Identity)
    assert isinstance(as_dictionary(np.sin, 1), Observables)
    with pytest.raises(ValueError, match="got int"):
        as_dictionary(3, 1)
    z = np.arange(10.0).reshape(5, 2)
    assert Observables(lambda w: w[:, 0]).transform(z).tolist() == z[:, :1].tolist()
    for bad in (lambda w: w[:2], lambda w: w[:, :, None]):
        with pytest.raises(ValueError, match="one row per sample"):
            Observables(bad).transform(z)
    with pytest.raises(ValueError, match="degree"):
        Monomials(0).fit(z)
    both = Monomials(2, constant=False).fit(z)
    assert both.names_ == ["z0", "z1", "z0 z0", "z0 z1", "z1 z1"]
    assert both.state_columns_.tolist() == [0, 1]
    assert_allclose(both.transform(z)[2], [4, 5, 16, 20, 25])
    assert Monomials(1).fit(z).names_ == ["1", "z0", "z1"]
    assert Identity().fit(z).names_ == ["z0", "z1"]


def test_a_module_is_left_as_it_was():
    torch = pytest.importorskip("torch")
    z = np.arange(10.0).reshape(5, 2)
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout(0.9))
    for training in (True, False):
        net.train(training)
        lifted = Lift(net, batch=2).transform(z)
        assert net.training == training
        with torch.no_grad():
            assert_allclose(lifted, net[0](torch.as_tensor(z).float()).double().numpy())
    assert lifted.dtype == np.float64
    assert_allclose(Lift(lambda w: 2 * w[:, None]).transform(z), 2 * z)  # no parameters, no training
