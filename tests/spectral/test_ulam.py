"""Cells, pairs of states and transitions by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix

from koopsim.spectral.boxes import Boxes
from koopsim.spectral.ulam import cells, going_on, is_a_map, pairs_of, transitions


def test_cells_of_samples_that_are_the_same():
    assert_allclose(cells(np.array([0.5, 0.5, 0.5]), np.zeros(3, int), np.array([0.0, 2.0])), [0.5, 2e-12, 1.5])


def test_pairs_of_states():
    now, after = pairs_of(np.arange(3.0))
    assert (now.tolist(), after.tolist()) == ([[0], [1]], [[1], [2]])
    now, after = pairs_of([np.arange(3.0)[:, None], np.arange(5.0, 8)[:, None]])
    assert (now[:, 0].tolist(), after[:, 0].tolist()) == ([0, 1, 5, 6], [1, 2, 6, 7])
    now, after = pairs_of((np.arange(3.0), np.arange(3.0) + 9))
    assert (now[:, 0].tolist(), after[:, 0].tolist()) == ([0, 1, 2], [9, 10, 11])
    for bad, sentence in ((np.arange(2.0), "1 pairs of states are too few"), (np.ones((3, 2, 2)), "steps, dims"),
                          (np.ones((3, 0)), "steps, dims")):  # fmt: skip
        with pytest.raises(ValueError, match=sentence):
            pairs_of(bad)
    line = np.arange(100.0)[:, None]
    for jump, told in ((9.8, True), (10.0, False)):  # the median jump against the reach over the root of their number
        y = np.where(np.arange(100) % 2, 0.0, jump)
        y[:10] = 100.0
        y[10:20] = 0.0
        assert is_a_map(line, y[:, None]) == told


def test_transitions_by_hand():
    """0 -> 1 -> 0, 2 is left for 0 once, 3 is a dead end: what goes there is lost, and then what went only there."""
    Z, after = np.array([0, 1, 0, 2, 4.0])[:, None], np.array([1, 0, 1, 0, 3.0])[:, None]
    found = transitions(Z + 0.5, after + 0.5, Boxes((np.arange(6.0),)))
    assert found.numbers.tolist() == [0, 1, 2]
    assert found.samples.tolist() == [2, 1, 1]
    assert found.lost == pytest.approx(1 / 5)
    assert_allclose(found.matrix.toarray(), [[0, 1, 0], [1, 0, 0], [1, 0, 0]])
    out = transitions(np.r_[Z, [[9.0]]] + 0.5, np.r_[after, [[0.0]]] + 0.5, Boxes((np.arange(6.0),)))
    assert out.lost == pytest.approx(2 / 6)
    with pytest.raises(ValueError, match="no pair"):
        transitions(Z + 50, after + 50, Boxes((np.arange(6.0),)))
    assert going_on(csr_matrix(np.array([[0.0, 1, 0], [1, 0, 1], [0, 0, 0]])))[0].tolist() == [0, 1]
