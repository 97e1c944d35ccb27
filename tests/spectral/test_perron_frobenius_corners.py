"""The adjoint of a constant alone, and the components it counts."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral import EDMD, Monomials, perron_frobenius
from koopsim.spectral.perron_frobenius import _real_span, _vertices

RNG = np.random.default_rng


def test_the_adjoint_of_a_constant_alone():
    x = RNG(0).uniform(0.2, 1, (50, 1))
    alone = perron_frobenius(EDMD(lambda z: np.ones((len(z), 1))).fit((x, x)))
    assert alone.mixing_rate_ == 0.0
    model = EDMD(Monomials(2)).fit((x, 0.5 * x))
    found = perron_frobenius(model)
    assert found.n_components_ == 1
    assert_allclose(np.abs(found.eigenvalues_), [1, 0.5, 0.25], atol=1e-9)
    assert found.mixing_rate_ == pytest.approx(0.5)
    for bad in (0, 4):
        with pytest.raises(ValueError, match="3 independent"):
            perron_frobenius(model, bad)
    near = EDMD(Monomials(1)).fit((x, 0.9905 * x))
    assert perron_frobenius(near, samples=x).n_components_ == 2  # within a hundredth of 1
    assert perron_frobenius(EDMD(Monomials(1)).fit((x, 0.9895 * x))).n_components_ == 1


def test_a_pair_is_whole_or_refused_whatever_its_size():
    plane = np.linalg.qr(RNG(0).normal(size=(5, 2)))[0]
    for size in (1e-6, 1.0, 1e6):
        for rest, whole in ((1e-9, True), (1e-7, False)):
            vector = size * (plane[:, :1] + 1j * rest * plane[:, 1:])
            if whole:
                assert_allclose(abs(_real_span(vector, 1).T @ plane), [[1, 0]], atol=1e-8)
            else:
                with pytest.raises(ValueError, match="cut in two"):
                    _real_span(vector, 1)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_states_of_components_are_corners(size):
    """Of k clusters of eigenfunctions' values the vertices take one each, whatever these are measured in."""
    rng = RNG(1)
    corners = size * rng.normal(size=(4, 4))
    which = np.concatenate([np.arange(4), rng.integers(4, size=60)])
    values = corners[which] + 1e-6 * size * rng.normal(size=(64, 4))
    chi = values @ _vertices(values)
    assert sorted(chi[:4].argmax(1)) == [0, 1, 2, 3]
    assert_allclose(chi.max(1), 1, atol=1e-3)
    assert_allclose(chi.sum(1), 1, atol=1e-3)
