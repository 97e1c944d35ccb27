"""The adjoint of a constant alone, and the components it counts."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral import EDMD, Monomials, perron_frobenius

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
