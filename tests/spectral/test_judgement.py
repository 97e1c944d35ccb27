"""What a judgement believes: pairs that were held out, terms that may be on the circle, rounding."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from test_fitting_inside import told_by

from koopsim.spectral import EDMD, Identity, analyze, judgement
from koopsim.spectral.kept import kept_by

RNG = np.random.default_rng


def test_misfit_on_pairs_that_were_held_out():
    """K_b without its fifth of the pairs, by least squares: its error there, over what is there."""
    rng = RNG(0)
    for m in (23, 4):  # fewer than five are held out one by one
        X = rng.standard_normal((m, 2))
        Y = X @ np.array([[0.5, 0.2], [-0.3, 0.7]]) + 0.1 * rng.standard_normal((m, 2))
        model = EDMD(Identity()).fit((X, Y))
        down = model.solution_.down
        wrong = size = 0.0
        for rows in np.array_split(np.arange(m), min(5, m)):
            rest = np.setdiff1d(np.arange(m), rows)
            K = np.linalg.lstsq(X[rest] @ down, Y[rest] @ down, rcond=None)[0]
            wrong += np.sum((Y[rows] @ down - X[rows] @ down @ K) ** 2)
            size += np.sum((Y[rows] @ down) ** 2)
        found = judgement.held_out_misfit(model, np.eye(2), kept_by(model))
        assert found == pytest.approx(np.sqrt(wrong / size))


def test_a_term_that_may_just_be_on_the_circle_is_put_there():
    E = 2.0**-10
    for off, r in ((0.0, 1.0), (2.0**-40, np.exp(-4 * E))):
        e = told_by(growth=[-4 * E - off, -0.2], error=[E, E])
        v = judgement._spoken("invariant-set", e, [], analyze(np.diag([0.5, 0.2])))
        assert_allclose(np.sort(np.abs(v.eigenvalues)), np.sort([1, r, r, np.exp(-0.2)]), atol=1e-9)


def test_an_exact_fit_is_believed_to_its_rounding_and_no_better():
    """Sixty-four roundings a row is what an analysis has of its own: less is never given to it."""
    X = RNG(0).standard_normal((400, 3))
    v = EDMD(Identity()).fit((X, 0.5 * X)).verdict()
    assert v.noise == 3 * 64 * 2.0**-52
    assert "(the misfit)" in v.reasons[1]
