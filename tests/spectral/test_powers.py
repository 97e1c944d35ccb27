"""Powers whose terms are of very different sizes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral import EDMD, Monomials, analyze
from koopsim.spectral.powers import Propagator, total


def test_terms_of_very_different_sizes():
    one = np.eye(1)
    parts = [Propagator(one, one, np.array([[b]])) for b in (2.0 + 0j, 0.5)]
    M, s = total(parts, 700, None, True)
    assert s == pytest.approx(700 * np.log(2))
    assert M[0, 0] == pytest.approx(1)
    v = analyze(np.diag([2.0, 0.5]))
    with np.errstate(over="ignore"):
        assert v.at(1025)[0, 0] == np.inf
    assert v.at(1023)[0, 0] == pytest.approx(2.0**1023)
    assert v.at(0).tolist() == np.eye(2).tolist()
    with pytest.raises(ValueError, match="2 rows"):
        v.at(1, np.ones(3))
    with pytest.raises(ValueError, match="2 rows"):
        v.at(1, np.array(1.0))
    assert np.iscomplexobj(v.at(1, np.array([1j, 0])))
    lifted = EDMD(Monomials(1)).fit((np.arange(8.0)[:, None], 0.5 * np.arange(8.0)[:, None]))
    said = lifted.verdict()
    assert_allclose(said.at(3), lifted.koopman_matrix_ @ lifted.koopman_matrix_ @ lifted.koopman_matrix_, atol=1e-9)
    assert_allclose(said.at(3, np.array([1.0, 8.0])), [1, 1], atol=1e-9)
