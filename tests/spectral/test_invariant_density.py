"""Ulam's densities against closed forms, the chain's graph, basins, almost invariant sets, and bad input."""

import time

import numpy as np
import pytest
from maps import PIECEWISE, logistic, orbit
from numpy.testing import assert_allclose

from koopsim.spectral import (
    EDMD,
    Observables,
    RandomFourier,
    embedding_of_density,
    invariant_density,
    mean_embedding,
    mmd,
    perron_frobenius,
)
from koopsim.spectral.boxes import Boxes, boxes_of
from koopsim.spectral.ulam import cells, transitions

RNG = np.random.default_rng


def arcsine_error(density):
    """L1 distance to 1 / (pi sqrt(x (1 - x))), by 200,000 nodes that are even under that density itself."""
    x = np.sin(np.pi * (np.arange(200_000) + 0.5) / 400_000) ** 2
    return float(np.mean(np.abs(density.evaluate(x)[0] * np.pi * np.sqrt(x * (1 - x)) - 1)))


@pytest.mark.parametrize("start", [0.3, 0.123, 0.771])
def test_logistic_map_from_one_orbit(start):
    x = orbit(logistic, start, 100_000)
    began = time.process_time()
    density = invariant_density(x)
    took = time.process_time() - began
    assert density.n_components_ == 1
    assert density.weights_ == "cells"
    assert arcsine_error(density) <= 0.02
    assert took < 2
    lyapunov = density.average(lambda z: np.log(np.abs(4 - 8 * z[:, 0]) + 1e-12))
    assert lyapunov == pytest.approx(np.log(2), abs=0.02)
    assert density.mixing_rate_ < 0.7


def test_cells_beat_counting():
    x = orbit(logistic, 0.3, 20_000)
    assert arcsine_error(invariant_density(x)) < 0.5 * arcsine_error(invariant_density(x, boxes=381, weights="counts"))


@pytest.mark.parametrize("name", PIECEWISE)
def test_maps_of_the_interval_from_pairs(name):
    f, truth = PIECEWISE[name]
    x = RNG(0).uniform(0, 1, 40_000)
    density = invariant_density((x[:, None], f(x)[:, None]), domain=(0, 1))
    t = (np.arange(4000) + 0.5) / 4000
    assert density.n_components_ == 1
    assert np.mean(np.abs(density.evaluate(t)[0] - truth(t))) < (0.08 if name == "gauss" else 0.03)
    assert density.mixing_rate_ > 0.99 if name == "rotation" else density.mixing_rate_ < 0.7


def test_golden_mean_on_its_markov_partition_is_exact():
    f, truth = PIECEWISE["golden"]
    g = (1 + 5**0.5) / 2
    x = (np.arange(100_000) + 0.5) / 100_000
    density = invariant_density((x[:, None], f(x)[:, None]), boxes=[0, 1 / g, 1], domain=(0, 1))
    assert_allclose(density.evaluate([0.2, 0.9])[0], truth(np.array([0.2, 0.9])), rtol=1e-4)
    assert_allclose(density.eigenvalues_[1], -1 / g**2, rtol=1e-3)  # of [[1/g, 1/g^2], [1, 0]]


def test_cat_map_keeps_the_area():
    z = [RNG(1).uniform(0, 1, (60_000, 2))]
    A = np.array([[2, 1], [1, 1]])
    density = invariant_density((z[0], z[0] @ A.T % 1), boxes=10, domain=(0, 1))
    assert density.n_components_ == 1
    assert_allclose(density.evaluate(RNG(2).uniform(0, 1, (500, 2))), 1, atol=0.25)
    assert_allclose(density.average(lambda z: z), [[0.5, 0.5]], atol=0.02)


def test_stuart_landau_has_uniform_phase():
    """On the cycle of radius sqrt(mu) the phase advances evenly: E z = 0, E z z^T = mu / 2 I."""
    mu, turn = 0.64, 0.3
    phase = turn * np.arange(20_000)
    density = invariant_density(np.sqrt(mu) * np.stack([np.cos(phase), np.sin(phase)], 1))
    assert density.n_components_ == 1
    assert_allclose(density.average(lambda z: z), 0, atol=0.01)
    second = density.average(lambda z: np.stack([z[:, 0] ** 2, z[:, 0] * z[:, 1], z[:, 1] ** 2], 1))
    assert_allclose(second[0], [mu / 2, 0, mu / 2], atol=0.03)
    assert density.mixing_rate_ > 0.9


def wells(hop, m=4000, seed=0):
    """Gaussian noise around -1 and +1; with probability `hop` a step the well is changed."""
    rng = RNG(seed)
    runs = []
    for sign in (-1.0, 1.0):
        side = sign * np.cumprod(np.where(rng.uniform(size=m) < hop, -1.0, 1.0))
        z, out = 0.0, []
        for s in side:
            z = 0.5 * z + 0.1 * rng.standard_normal()
            out.append(s + z)
        runs.append(np.array(out)[: m if sign > 0 else m // 2, None])
    return runs


def test_two_wells_without_hopping_have_two_densities():
    density = invariant_density(wells(0.0, 20_000))
    assert density.n_components_ == 2
    assert sorted(np.round(density.shares_, 2)) == [0.33, 0.67]
    t = np.linspace(-2, 2, 4001)
    rows = density.evaluate(t)
    assert rows.shape == (2, 4001)
    for row in rows:
        well = 1.0 if row[t > 0].sum() > row[t < 0].sum() else -1.0
        deviation = 0.1 / np.sqrt(0.75)
        truth = np.exp(-((t - well) ** 2) / (2 * deviation**2)) / (deviation * np.sqrt(2 * np.pi))
        assert np.sum(np.abs(row - truth)) * 1e-3 < 0.2
    assert_allclose(rows.sum(axis=1) * 1e-3, 1, atol=0.02)
    sure = density.basins([-1.0, 1.0])
    assert_allclose(np.sort(sure, axis=0), [[0, 0], [1, 1]])
    assert np.all(density.leak_ < 1e-2)


def test_rare_hops_make_almost_invariant_sets():
    density = invariant_density(wells(0.01, 20_000))
    assert density.n_components_ == 1
    assert density.mixing_rate_ == pytest.approx(0.98, abs=0.01)  # a flip with probability h: 1 - 2 h
    sets = density.almost_invariant_sets()
    assert sets.count == 2
    assert_allclose(sets.staying, 0.99, atol=0.005)
    assert_allclose(sets.masses, 0.5, atol=0.2)
    assert len({*sets.assign([-1.0, -0.9]), *sets.assign([1.0, 1.1])}) == 2
    assert sets.assign([50.0]) == [-1]
    assert sets.plot().axes
    assert density.almost_invariant_sets(3).count == 3
    with pytest.raises(ValueError, match="count=0"):
        density.almost_invariant_sets(0)


def test_a_cycle_of_two_is_seen_as_one():
    density = invariant_density(np.tile([0.2, 0.7], 50), boxes=8)
    assert density.n_components_ == 1
    assert density.periods_ == (2,)
    assert density.mixing_rate_ == pytest.approx(1)
    assert_allclose(density.average(lambda z: z[:, 0]), 0.45, atol=1e-3)
    assert "cycle of 2 sets" in str(density)


def test_where_transients_end():
    """x -> x - x (x^2 - 1) / 2 has the attractors -1 and 1; 0 repels, and its two sides are the basins."""
    starts = np.linspace(-1.9, 1.9, 40)
    runs = [orbit(lambda x: x - x * (x * x - 1) / 2, s, 60)[:, None] for s in starts]
    density = invariant_density(runs, boxes=60)
    assert density.n_components_ == 2
    into = density.basins([-0.5, 0.5])
    assert_allclose(into.sum(axis=0), 1, atol=1e-9)
    assert np.argmax(into[:, 0]) != np.argmax(into[:, 1])
    assert into.max(axis=0) == pytest.approx([1, 1], abs=1e-6)


def test_ulam_is_edmd_with_indicators():
    x = orbit(logistic, 0.3, 5000)[:, None]
    edges = np.linspace(0, 1, 17)
    grid = Boxes((edges,))
    found = transitions(x[:-1], x[1:], grid)
    model = EDMD(Observables(lambda z: np.eye(16)[grid.number(z)])).fit(x)
    assert_allclose(model.koopman_matrix_.T, found.matrix.toarray(), atol=1e-10)
    adjoint = perron_frobenius(model)
    density = invariant_density(x, boxes=[edges], weights="counts")
    counted = np.histogram(x[:-1], edges)[0] / 5000 / np.diff(edges)  # the samples' own density
    t = (edges[1:] + edges[:-1]) / 2
    assert_allclose(adjoint.evaluate(t)[0] * counted, density.evaluate(t)[0], atol=1e-8)
    assert_allclose(adjoint.mixing_rate_, density.mixing_rate_, rtol=1e-6)


def test_mean_embedding_of_the_density_is_the_run_s():
    x = orbit(logistic, 0.3, 100_000)
    psi = RandomFourier(64, 0.3, seed=1).fit(x[:, None])
    run, density = mean_embedding(x, psi, burn=100), embedding_of_density(invariant_density(x), psi)[0]
    exact = psi.transform(np.sin(np.pi * (np.arange(100_000)[:, None] + 0.5) / 200_000) ** 2).mean(axis=0)
    assert mmd(run, exact) < 0.01
    assert mmd(density, exact) < 0.01
    point = psi.transform(np.array([[0.75]]))[0]  # the repelling fixed point, which a root-finder would give
    assert mmd(point, exact) > 0.5
    assert np.linalg.norm(point) == pytest.approx(1)
    with pytest.raises(ValueError, match="none left"):
        mean_embedding(x[:10], psi, burn=10)


def test_cells_fill_their_boxes():
    z, edges = np.sort(RNG(3).uniform(0, 1, 200)), np.linspace(0, 1, 6)
    box = np.minimum((z * 5).astype(int), 4)
    assert_allclose(np.bincount(box, weights=cells(z, box, edges)), 0.2)


def test_boxes_number_every_point():
    Z = RNG(4).standard_normal((500, 3))
    grid = boxes_of(Z, 4)
    numbers = grid.number(Z)
    assert numbers.min() >= 0
    low, high = grid.bounds(numbers)
    assert np.all((low <= Z) & (high >= Z))
    assert grid.number(Z + 100).max() == -1
    assert grid.volumes(np.arange(np.prod(grid.sides))).sum() == pytest.approx(np.prod(np.ptp(Z, axis=0)))


def test_what_leaves_the_domain_is_lost():
    x = RNG(5).uniform(0, 1, 20_000)
    density = invariant_density(x, boxes=8, domain=(0, 0.5))  # both ends of a quarter of the pairs are inside
    assert density.transitions_.lost == pytest.approx(3 / 4, abs=0.02)
    assert "leave the boxes" in str(density)


def test_plots():
    one = invariant_density(orbit(logistic, 0.3, 2000)).plot()
    two = invariant_density(RNG(6).standard_normal((3000, 2))).plot()
    assert len(one.axes) == len(two.axes) == 2


@pytest.mark.parametrize(
    ("data", "options", "sentence"),
    [
        (np.array([0.1, np.nan, 0.3]), {}, "NaN"),
        (np.array([0.1]), {}, "too few"),
        (np.full(50, 0.3), {}, "constant"),
        (np.arange(10.0), {"boxes": 10}, "no box is ever come back to|use fewer boxes"),
        (np.array([0.1, 0.2j, 0.3]), {}, "real and imaginary"),
        (np.random.rand(50, 2), {"weights": "cells"}, "one dimension"),
        (np.random.rand(50), {"boxes": 0}, "at least 1"),
        (np.random.rand(50), {"domain": (5, 6)}, "no state lies"),
        (np.random.rand(50, 2), {"boxes": [np.arange(3.0)]}, "edges for 1"),
        ([np.random.rand(50, 2), np.random.rand(50, 3)], {}, "different dimensions"),
        (np.random.rand(50), {"count": 0}, "eigenvalue 1"),
    ],
)
def test_bad_input_gets_a_sentence(data, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        invariant_density(data, **options)


def test_points_must_fit():
    density = invariant_density(np.random.default_rng(0).standard_normal((500, 2)))
    with pytest.raises(ValueError, match=r"\(points, 2\)"):
        density.evaluate(np.zeros((3, 3)))


@pytest.mark.parametrize(
    ("m", "d", "deterministic", "sides"),
    [(10**5, 1, True, 1000), (1000, 1, False, 30), (1000, 2, False, 10), (10**6, 2, False, 95), (3, 1, True, 2)],
)
def test_boxes_by_default(m, d, deterministic, sides):
    from koopsim.spectral.invariant_density import default_sides

    assert default_sides(m, d, deterministic) == sides
