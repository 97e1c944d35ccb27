"""A fit of exponentials through runs that were exact."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from test_fitting_inside import TERMS, three_runs

from koopsim.spectral.variable_projection import refined


def test_a_fit_through_runs_that_were_exact():
    terms, left = refined(three_runs(0.0), TERMS.moved(TERMS.vector * 1.02))
    assert_allclose(terms.vector, TERMS.vector, atol=1e-8)
    assert left < 1e-15
    stuck, far = refined([np.full((9, 1), np.nan)], TERMS)
    assert stuck is TERMS
    assert far == np.inf
    huge = TERMS.moved(np.array([-200.0, 0.01, -0.3, 0.6])).columns(20)[0]
    assert huge[10, 1] == pytest.approx(np.exp(-700) * np.cos(6.0))
