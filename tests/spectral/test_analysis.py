"""Matrices that are none, and how many clusters of eigenvalues are described."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from koopsim.spectral import analysis, analyze


def test_matrices_that_are_no_matrices(monkeypatch):
    for bad, sentence in (([[1, 2], [3]], r"lengths|square"), ([["a"]], "numbers"), (np.ones((2, 3)), "square"),
                          (np.ones(4), "square"), (np.ones((0, 0)), "empty"), ([[np.inf]], "1 of 1")):  # fmt: skip
        with pytest.raises(ValueError, match=sentence):
            analyze(bad)
    monkeypatch.setattr(analysis, "LARGEST", 3)
    assert analyze(csr_matrix(0.5 * np.eye(3))).case == "origin"
    with pytest.raises(ValueError, match="up to 3 rows"):
        analyze(csr_matrix(0.5 * np.eye(4)))
    assert analyze(np.array([[1]], dtype=object)).case == "fixed-point"
    assert analyze(np.array([[True]])).case == "fixed-point"
    assert analyze([[0]]).case == "origin"


def test_clusters_beyond_those_that_decide(monkeypatch):
    """Once something is outside for certain, so many clusters are described and no more."""
    monkeypatch.setattr(analysis, "ENOUGH", 2)
    w = np.array([3.0, 1.2, 1.1, 1.05])
    assert len(analyze(np.diag(w)).projectors) == 2
    monkeypatch.setattr(analysis, "CIRCLES", 0)
    assert len(analyze(np.diag(w)).projectors) == 4  # no circle was tried
