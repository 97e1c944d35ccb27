"""Edges of boxes: those that are none, those found from samples, gaps at their threshold."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral.boxes import Boxes, _without_gaps, boxes_of


def test_edges_that_are_none():
    for e in ([0.0], [[0.0, 1.0]], [0.0, 1.0, 1.0], [1.0, 0.0], [0.0, np.inf], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="finite, increasing"):
            Boxes((np.array(e),))
    two = np.array([0.0, 1.0, 2.0])
    assert Boxes((two,) * 61).dims == 61
    with pytest.raises(ValueError, match="no number for each"):
        Boxes((two,) * 62)
    boxes = Boxes((two, two))
    assert boxes.number(np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 2.0], [0.0, 2.1], [-0.1, 0.0]])).tolist() == [
        0, 2, 3, -1, -1,
    ]  # fmt: skip


def test_edges_from_samples():
    Z = np.arange(5.0)[:, None]
    assert boxes_of(Z, 1).edges[0].tolist() == [0, 4]
    assert boxes_of(Z, np.int64(2), (0, 4)).edges[0].tolist() == [0, 2, 4]  # both ends are inside
    assert boxes_of(Z, 2, (0.5, 4)).edges[0].tolist() == [0.5, 2.5, 4]
    assert boxes_of(Z, [0.0, 1.0, 4.0]).edges[0].tolist() == [0, 1, 4]
    assert boxes_of(Z, [np.array([0.0, 4.0])]).edges[0].tolist() == [0, 4]
    assert boxes_of(np.c_[Z, Z], 2, ((0, 1), (4, 3))).edges[1].tolist() == [1, 2, 3]
    for sides, domain, sentence in (([], None, "edges for 0"), (0, None, "at least 1"), (2, 5.0, "domain is"),
                                    (2, (1, 2, 3), "domain is"), (2, (1, 1), "is constant")):  # fmt: skip
        with pytest.raises(ValueError, match=sentence):
            boxes_of(Z, sides, domain)
    many = np.r_[np.zeros(200), np.arange(101.0)][:, None]  # an atom at the left end
    assert_allclose(boxes_of(many, 4).edges[0], [0, 0.01, 100 * 2.0**-13, 0.99, 25, 100])
    right = boxes_of(100 - many, 4).edges[0]
    assert_allclose(right, 100 - boxes_of(many, 4).edges[0][::-1])


def test_gaps_at_their_threshold():
    """More than half of the box, and sixteen samples to say so."""
    edges = np.array([0.0, 1.0])
    for left, count, cut in ((0.25, 8, False), (0.249, 8, True), (0.249, 7.5, False)):
        some = np.r_[np.linspace(0, left, 8), np.linspace(1 - left, 1, int(2 * count) - 8)]
        assert (len(_without_gaps(edges, some)) == 4) == cut
    two = np.array([0.0, 1.0, 2.0])  # a gap that bridges two boxes, seen from either
    some = np.r_[np.linspace(0, 0.2, 20), np.linspace(1.8, 2, 20)]
    assert_allclose(_without_gaps(two, some), [0, 0.216, 1, 1.784, 2])
    only = np.r_[np.linspace(0, 0.9, 20), np.linspace(1.8, 2, 20)]
    assert_allclose(_without_gaps(two, only), [0, 0.909, 1, 1.791, 2])
