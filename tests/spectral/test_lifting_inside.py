"""Koopman matrices, dictionaries, boxes and samples by hand: closed forms and twins in NumPy."""

from dataclasses import replace

import numpy as np
import pytest

from koopsim.spectral import EDMD, Identity, Monomials, Nystrom, RandomFourier
from koopsim.spectral.boxes import Boxes, _without_gaps, boxes_of
from koopsim.spectral.forecasts import Forecast
from koopsim.spectral.invariant_density import default_sides
from koopsim.spectral.judgement import held_out_misfit
from koopsim.spectral.kept import kept_by, trusted, without_constant
from koopsim.spectral.mean_embedding import median_distance
from koopsim.spectral.sampling import regular, without_gaps
from koopsim.spectral.snapshots import above_noise
from koopsim.spectral.ulam import cells, is_a_map


def lifted():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((60, 4)) @ np.diag([1.0, 0.5, 1e-2, 1e-4])
    return X, np.tanh(X @ rng.uniform(-1, 1, (4, 4))) + 0.1 * rng.standard_normal((60, 4))


def test_rank_ridge_and_rtol_against_numpy():
    X, Y = lifted()
    U, s, Vt = np.linalg.svd(X, full_matrices=False)
    for options, kept in (
        ({"rank": 2}, 2),
        ({"rtol": 1.2 * s[2] / s[0]}, 2),
        ({"rtol": 0.8 * s[2] / s[0]}, 3),
        ({"rank": 9}, 4),
    ):
        model = EDMD(Identity(), **options).fit((X, Y))
        assert model.rank_ == kept
        K = Vt[:kept].T @ np.diag(1 / s[:kept]) @ U[:, :kept].T @ Y @ Vt[:kept].T @ Vt[:kept]
        np.testing.assert_allclose(model.koopman_matrix_.T, K, atol=1e-8)
        np.testing.assert_allclose(model.solution_.singular_values, s[:kept] / np.sqrt(60), rtol=1e-6)
    ridge = 0.3
    model = EDMD(Identity(), ridge=ridge).fit((X, Y))
    K = Vt.T @ np.diag(s / (s**2 + 60 * ridge)) @ U.T @ Y
    np.testing.assert_allclose(model.koopman_matrix_.T, K, atol=1e-8)
    scaled = EDMD(lambda z: z, ridge=ridge).fit((X, Y))  # observables in units of their root mean square
    size = np.sqrt(np.mean(X**2, axis=0))
    G = (X / size).T @ (X / size)
    K = np.diag(1 / size) @ np.linalg.solve(G + 60 * ridge * np.eye(4), (X / size).T @ Y)
    np.testing.assert_allclose(scaled.koopman_matrix_.T, K, atol=1e-8)
    model = EDMD(Identity()).fit((X, Y))
    wrong = Y - X @ np.linalg.lstsq(X, Y, rcond=None)[0]
    s = model.solution_
    assert s.relative_residual == pytest.approx(np.linalg.norm(wrong @ s.down) / np.linalg.norm(Y @ s.down))


def test_control_and_constant_against_numpy():
    rng = np.random.default_rng(6)
    X, u = rng.standard_normal((50, 2)), rng.standard_normal((50, 1))
    Y = X @ np.array([[0.5, 0.2], [-0.3, 0.8]]) + u @ np.array([[1.0, -2.0]]) + 0.1 * rng.standard_normal((50, 2))
    for dictionary in (Identity(), Monomials(1), lambda z: np.c_[np.ones(len(z)), z, z[:, 0] ** 2]):
        model = EDMD(dictionary).fit((X, Y), control=u)
        phi, after = model.transform(X), model.transform(Y)
        K = np.linalg.lstsq(np.hstack([u, phi]), after, rcond=None)[0]
        np.testing.assert_allclose(model.control_matrix_.T, K[:1], atol=1e-9)
        np.testing.assert_allclose(model.koopman_matrix_.T, K[1:], atol=1e-9)
        s = model.solution_
        assert (s.constant is None) == (phi.shape[1] == 2)
        if s.constant is not None:
            np.testing.assert_allclose(phi @ s.down @ s.constant, 1, atol=1e-9)
        np.testing.assert_allclose(phi @ s.down @ s.decode, X, atol=1e-9)
        wrong = (after - np.hstack([u, phi]) @ K) @ s.down
        unexplained = (after - u @ np.linalg.lstsq(u, after, rcond=None)[0]) @ s.down
        assert s.relative_residual == pytest.approx(np.linalg.norm(wrong) / np.linalg.norm(unexplained), rel=1e-9)
    stream = EDMD(Monomials(1)).partial_fit((X[:20], Y[:20])).partial_fit((X[20:], Y[20:]))
    whole = EDMD(Monomials(1)).fit((X, Y))
    np.testing.assert_allclose(stream.koopman_matrix_, whole.koopman_matrix_, atol=1e-9)
    m, r = 50, 3
    one = np.eye(3)
    fit = stream.solution_.relative_residual
    assert held_out_misfit(stream, one, None) == pytest.approx(fit * np.sqrt((m + r) / (m - r)))
    assert kept_by(stream) is None
    assert kept_by(whole).now.shape == (50, 3)
    assert kept_by(whole).runs is None
    assert held_out_misfit(EDMD(Monomials(1)).fit((X[:3], Y[:3])), one, None) == np.inf
    up = without_constant(whole)
    assert up.shape == (2, 3)
    np.testing.assert_allclose(np.linalg.norm(up, axis=1), 1)
    assert trusted(whole, 10.0).shape == (3, 3)
    assert trusted(whole, 1e-6).shape == (3, 1)


def test_singular_values_above_noise():
    b = 0.25
    edge = 0.56 * b**3 - 0.95 * b**2 + 1.82 * b + 1.43
    assert above_noise(np.array([1.01 * edge, 0.99 * edge, 1.0, 0.5, 0.2]), b) == 1
    assert above_noise(np.array([3.0, 1.01 * edge, 1.0, 0.5, 0.2]), b) == 2
    assert above_noise(np.ones(4), b) == 1
    assert above_noise(np.ones(1), b) == 1
    assert above_noise(np.ones(0), b) == 0


def test_centres_of_nystrom():
    """Of twenty times as many samples as centres, the different ones; the kernel is exact at the centres."""
    Z = np.random.default_rng(1).standard_normal((300, 2))
    rng = np.random.default_rng(7)
    pool = np.unique(Z[rng.permutation(300)[:60]], axis=0)
    found = Nystrom(3, seed=7).fit(Z)
    np.testing.assert_array_equal(found.centers_, pool[rng.permutation(60)[:3]])
    c = found.centers_
    distance = [np.linalg.norm(c[i] - c[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert found.bandwidth_ == pytest.approx(np.median(distance))
    phi = found.transform(c)
    gaps = np.linalg.norm(c[:, None] - c, axis=2)
    np.testing.assert_allclose(phi @ phi.T, np.exp(-(gaps**2) / (2 * found.bandwidth_**2)), atol=1e-12)
    assert Nystrom(1).fit(Z).bandwidth_ == 1.0
    assert Nystrom(5).fit(np.ones((9, 2))).centers_.shape == (1, 2)
    assert Nystrom(3, bandwidth=0.5).fit(Z).bandwidth_ == 0.5
    for options in ({"n_centers": 0}, {"bandwidth": 0.0}):
        with pytest.raises(ValueError, match="Nystrom"):
            Nystrom(**options).fit(Z)
    assert median_distance(np.array([[0.0], [1.0], [3.0]])) == 2.0
    assert median_distance(np.zeros((4, 1))) == median_distance(np.zeros((1, 1))) == 1.0
    assert median_distance(np.arange(50.0)[:, None], most=2) in range(1, 50)
    assert median_distance(np.arange(3.0)[:, None], most=3) == 1.0


@pytest.mark.parametrize(
    ("m", "d", "told", "sides"),
    [(1000, 1, True, 63), (1, 1, True, 2), (1000, 1, False, 30), (1000, 3, False, 5), (3, 1, False, 2),
     (300, 1, False, 20), (40, 1, False, 4), (30, 1, False, 3), (10**6, 2, False, 95)],
)  # fmt: skip
def test_boxes_a_side(m, d, told, sides):
    assert default_sides(m, d, told) == sides


def test_boxes_by_hand():
    boxes = Boxes((np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0, 4.0, 5.0])))
    assert boxes.sides == (2, 3)
    Z = np.array([[0.5, 1.0], [2.0, 4.5], [3.0, 5.0], [3.1, 1.0], [1.0, 2.0], [0.0, -0.1]])
    assert boxes.number(Z).tolist() == [0, 5, 5, -1, 4, -1]
    low, high = boxes.bounds(np.array([0, 5]))
    np.testing.assert_array_equal(low, [[0, 0], [1, 4]])
    np.testing.assert_array_equal(high, [[1, 2], [3, 5]])
    np.testing.assert_array_equal(boxes.volumes(np.array([0, 5])), [2, 2])
    even = np.arange(101.0)[:, None]
    np.testing.assert_allclose(boxes_of(even, 4).edges[0], [0, 25, 50, 75, 100])
    np.testing.assert_allclose(boxes_of(even, 2, (20.0, 60.0)).edges[0], [20, 40, 60])
    many = np.r_[np.full(200, 50.0), np.arange(101.0)][:, None]
    width = 100 * 2.0**-13
    np.testing.assert_allclose(boxes_of(many, 4).edges[0], [0, 50 - width, 50 + width, 100])
    inside = np.r_[np.linspace(0, 0.2, 16), np.linspace(0.8, 1, 15)]
    np.testing.assert_allclose(_without_gaps(np.array([0.0, 1.0]), inside), [0, 0.206, 0.794, 1])
    np.testing.assert_allclose(_without_gaps(np.array([0.0, 1.0]), inside[::3]), [0, 1])  # too few to say so
    close = np.r_[np.linspace(0, 0.26, 16), np.linspace(0.74, 1, 15)]
    np.testing.assert_allclose(_without_gaps(np.array([0.0, 1.0]), close), [0, 1])  # less than half of it


def test_cells_by_hand():
    z, edges = np.array([0.1, 0.9, 0.5, 1.5]), np.array([0.0, 1.0, 2.0])
    np.testing.assert_allclose(cells(z, np.array([0, 0, 0, 1]), edges), [0.3, 0.3, 0.4, 1.0])
    x = np.random.default_rng(0).uniform(0, 1, (400, 1))
    assert is_a_map(x, 4 * x * (1 - x))
    assert not is_a_map(x, x[::-1])
    assert not is_a_map(x, 0 * x)
    assert not is_a_map(np.hstack([x, x]), np.hstack([x, x]))


def test_gaps_by_hand():
    t = np.r_[np.arange(5.0), np.arange(7.0, 10)]
    found = regular(t, t[:, None])
    assert [p[:, 0].tolist() for p in found.pieces] == [[0, 1, 2, 3, 4], [7, 8, 9]]
    assert found.starts == [0.0, 7.0]
    assert found.dt == 1.0
    assert found.said == ("1 gaps; no pair is formed across one",)
    alone = regular(np.array([0.0, 1.0, 2.0, 5.0, 8.0, 9.0]), np.arange(6.0))
    assert [len(p) for p in alone.pieces] == [3, 2]
    assert alone.starts == [0.0, 8.0]
    rough = np.r_[0.0, 1.1, 1.9, 3.2, 4.0, 4.0 + 4.1, 9.0, 10.2, 11.1]
    bent = regular(rough, rough**2, dt=1.0)
    assert bent.starts == [0.0, 8.1]
    assert [len(p) for p in bent.pieces] == [5, 4]
    np.testing.assert_allclose(bent.pieces[0][:, 0], [0, 1, 4, 9, 16], atol=1e-9)  # a spline is exact for a square
    joined = regular(np.r_[rough[:5], 4 + 3.9, 9.0], np.r_[rough[:5], 7.9, 9.0] ** 2, dt=1.0)
    assert len(joined.pieces) == 1
    assert [len(p) for p in without_gaps(np.array([[1.0], [np.nan], [2.0], [3.0], [np.inf]]))] == [2]


def test_a_forecast_by_hand():
    f = Forecast(np.array([2.0, 3.0]), np.array([[1.0], [2.0]]), np.array([[0.5], [np.inf]]), np.array([0.0, 1.0]),
                 np.zeros((2, 1)), ("x",), ("said",))  # fmt: skip
    assert f.rows()[:2] == [["time", "x", "x_low", "x_high"], [2.0, 1.0, 0.0, 2.0]]
    assert f.to_dict()["errors"] == [[0.5], [None]]
    assert f.lines()[1].split() == ["2", "1", "+-", "1"]
    wide = replace(f, values=np.ones((2, 6)), errors=np.ones((2, 6)), names=tuple("abcdef"))
    assert "... and 2 more states" in wide.lines()
    assert not any("more states" in line for line in replace(wide, names=tuple("abcd")).lines())
    long = Forecast(np.arange(20.0), np.ones((20, 1)), np.ones((20, 1)), np.zeros(1), np.zeros((1, 1)), ("x",), ())
    assert [line.split()[0] for line in long.lines()[1:]] == ["0", "3", "7", "11", "15", "19"]


def test_fourier_features_and_redundant_observables_by_hand():
    """(sin, cos) / sqrt(M / 2) at normal frequencies over the bandwidth; a column twice is one direction."""
    Z = np.array([[0.3, -0.7], [1.0, 2.0]])
    found = RandomFourier(6, bandwidth=2.0, seed=1).fit(Z)
    w = np.random.default_rng(1).standard_normal((2, 3)) / 2
    np.testing.assert_array_equal(found.frequencies_, w)
    np.testing.assert_allclose(found.transform(Z), np.hstack([np.sin(Z @ w), np.cos(Z @ w)]) / np.sqrt(3))
    for options in ({"n_features": 3}, {"n_features": 0}, {"bandwidth": 0.0}):
        with pytest.raises(ValueError, match="RandomFourier"):
            RandomFourier(**options).fit(Z)
    assert RandomFourier(2).fit(Z).frequencies_.shape == (2, 1)
    X, Y = lifted()
    twice = EDMD(lambda z: np.c_[z[:, :2], z[:, 0]]).fit((X, Y))
    assert twice.rank_ == 2
    assert EDMD(lambda z: np.c_[z[:, 0], z[:, 0]]).fit((X, 0 * X)).rank_ == 1
    nothing = EDMD(Identity()).fit((X, 0 * X)).solution_
    assert nothing.relative_residual == 0.0
    assert nothing.misfit(np.eye(4), np.eye(4)) == 0.0
    assert boxes_of(np.arange(5.0)[:, None], 1).edges[0].tolist() == [0, 4]
    with pytest.raises(ValueError, match="at least 1"):
        boxes_of(np.arange(5.0)[:, None], 0)
    for chunk in (7, 25, None):  # fed in pieces, or at once, with rows to spare or fewer than columns
        model = EDMD(lambda z: np.c_[np.ones(len(z)), z, z**2], chunk=chunk).fit((X, Y))
        phi, after = model.transform(X), model.transform(Y)
        s = model.solution_
        np.testing.assert_allclose(phi @ s.down @ s.constant, 1, atol=1e-6)
        K = np.linalg.lstsq(phi @ s.down, after @ s.down, rcond=None)[0]
        np.testing.assert_allclose(s.core, K, atol=1e-6)
        wrong = np.linalg.norm(after @ s.down - phi @ s.down @ K) / np.linalg.norm(after @ s.down)
        assert s.relative_residual == pytest.approx(wrong, rel=1e-6)
