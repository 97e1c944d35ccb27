"""Invariant densities of chains by hand, their weights, the sets that count, single points."""

import numpy as np
import pytest
from chains import chain
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix

from koopsim.spectral import EDMD, Monomials, invariant_density, perron_frobenius
from koopsim.spectral.boxes import Boxes
from koopsim.spectral.invariant_density import without_accidents
from koopsim.spectral.ulam import Transitions

RNG = np.random.default_rng


def test_components_by_hand():
    """Two classes of two states each, one of them slow; a state on its way to the first."""
    P = np.zeros((5, 5))
    P[:2, :2], P[2:4, 2:4] = [[0.9, 0.1], [0.1, 0.9]], [[0.3, 0.7], [0.7, 0.3]]
    P[4, 0] = P[4, 4] = 0.5
    d = chain(P, [3, 3, 10, 20, 4], [0, 1, 2, 3, 5, 6])
    assert d.n_components_ == 2
    assert_allclose(d.eigenvalues_.real, [1, 1, 0.8, -0.4], atol=1e-12)
    assert d.mixing_rate_ == pytest.approx(0.8)
    assert_allclose(d.shares_, [6 / 40, 30 / 40])
    assert_allclose(d.leak_, [3 / 6, 3 / 30])
    assert_allclose(d.densities_, [[0.5, 0.5, 0, 0, 0], [0, 0, 0.5, 0.25, 0]])
    assert_allclose(d.evaluate([0.5, 3.5, 5.5, 9.0]), [[0.5, 0, 0, 0], [0, 0.25, 0, 0]])
    assert d.evaluate(0.5).shape == (2, 1)
    assert_allclose(d.basins([5.5]), [[1], [0]])
    assert np.isnan(d.basins([6.5])).all()
    assert_allclose(d.average(lambda z: z[:, 0] ** 5), [(1 + 63) / 12, (3**6 - 2**6) / 12 + (5**6 - 3**6) / 24])
    assert_allclose(d.average(lambda z: z[:, 0], depth=1), [1, 0.5 * 2.5 + 0.5 * 4])
    said = str(d)
    assert said.startswith("2 ergodic components on 5 boxes, 40 pairs")
    assert "component 1: 75.0% of the samples, second eigenvalue 0.4" in said
    assert "leave the boxes" not in said
    few = chain(np.eye(1), [2])
    assert few.leak_.tolist() == [1.0]
    assert str(few).startswith("1 ergodic component on")
    sets = d.almost_invariant_sets(2)
    assert sets.labels[4] == -1  # nothing stays there
    assert sets.eigenvalues.size == 3
    assert d.almost_invariant_sets(4).eigenvalues.size == 4
    assert d.almost_invariant_sets().eigenvalues.size == 4
    assert_allclose(sets.masses, [0.75, 0.15] / np.array(0.9))
    assert_allclose(sets.staying, 1)
    assert d.almost_invariant_sets(1).labels.tolist() == [0, 0, 0, 0, -1]
    for bad in (0, 5):
        with pytest.raises(ValueError, match="there are 4 boxes"):
            d.almost_invariant_sets(bad)


def test_sets_that_too_few_pairs_were_seen_in():
    """A closed set with ten pairs counts; one with nine is a leak, and its share of the pairs is lost."""
    P = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    for count, kept_ in ((10, 3), (9, 2)):
        found = Transitions(Boxes((np.arange(4.0),)), np.arange(3), csr_matrix(P), np.array([30, 61, count]), 0.25)
        left = without_accidents(found)
        assert left.numbers.tolist() == [0, 1, 2][:kept_]
        assert left.lost == pytest.approx(0.25 if kept_ == 3 else 1 - 0.75 * 0.91)


def test_how_a_density_is_weighed():
    x = RNG(0).uniform(0, 1, 300)
    told, noisy = (x[:, None], (2 * x % 1)[:, None]), (x[:, None], RNG(1).uniform(0, 1, (300, 1)))
    assert invariant_density(told).weights_ == "cells"
    assert invariant_density(told, boxes=8).weights_ == "cells"
    assert invariant_density(told, weights="counts").weights_ == "counts"
    assert len(invariant_density(told, weights="counts").boxes_.edges[0]) > 25
    assert invariant_density(noisy).weights_ == "counts"
    assert invariant_density(noisy, boxes=8, weights="cells").weights_ == "cells"
    assert invariant_density(noisy, boxes=4, count=1).eigenvalues_.size == 1
    for options in ({"weights": "cell"}, {"count": 0}):
        with pytest.raises(ValueError, match=r"use .counts.|at least the eigenvalue"):
            invariant_density(noisy, **options)


def test_single_points_and_rows_of_points():
    """In one dimension numbers are points, in two a pair of numbers is one point; other widths are refused."""
    rng = RNG(0)
    flat = invariant_density((rng.uniform(0, 1, (400, 2)), rng.uniform(0, 1, (400, 2))), boxes=2, domain=(0, 1))
    assert flat.evaluate([0.2, 0.7]).shape == (1, 1)
    assert flat.evaluate([[0.2, 0.7], [0.1, 0.1]]).shape == (1, 2)
    line = chain([[0.5, 0.5], [0.5, 0.5]], [10, 10])
    assert line.evaluate([[0.5], [1.5], [2.5]]).tolist() == [[0.5, 0.5, 0.0]]
    for density, points in ((line, np.zeros((3, 2))), (flat, np.zeros((3, 1))), (flat, np.zeros((1, 1, 2)))):
        with pytest.raises(ValueError, match="points must be"):
            density.evaluate(points)
    two = rng.uniform(-1, 1, (60, 2))
    model = EDMD(Monomials(1)).fit((two, 0.5 * two))
    assert perron_frobenius(model).evaluate([0.1, 0.2]).shape == (1, 1)
    assert perron_frobenius(EDMD(Monomials(1)).fit((two[:, :1], 0.5 * two[:, :1]))).evaluate([0.1, 0.2]).shape == (1, 2)


def test_what_is_averaged_is_a_function():
    d = invariant_density(RNG(0).random(500))
    assert_allclose(d.average(lambda z: 3.0), [3.0])  # the same everywhere
    with pytest.raises(ValueError, match="takes a function of states"):
        d.average(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"a row for each of \d+ states; g gave shape \(10, 1\)"):
        d.average(lambda z: z[:10])
    with pytest.raises(ValueError, match="real numbers"):
        d.average(lambda z: None)
