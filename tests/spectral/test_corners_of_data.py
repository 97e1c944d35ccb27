"""Boxes, densities, samples, dictionaries, forecasts where they begin and end: the last that counts, the first not."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix

from koopsim.spectral import (
    EDMD,
    Delays,
    Identity,
    Monomials,
    RandomFourier,
    almost_invariant,
    embedding_of_density,
    forecasts,
    intake,
    invariant_density,
    kept,
    mean_embedding,
    mmd,
    perron_frobenius,
)
from koopsim.spectral.boxes import Boxes, _without_gaps, boxes_of
from koopsim.spectral.dictionary import Lift, Observables, as_dictionary
from koopsim.spectral.intake import checked_parts, checked_states
from koopsim.spectral.invariant_density import InvariantDensity, without_accidents
from koopsim.spectral.markov import markov_chain
from koopsim.spectral.observations import Observations, _standing_still, _without_times, fitted
from koopsim.spectral.sampling import regular, without_gaps
from koopsim.spectral.ulam import Transitions, cells, going_on, is_a_map, pairs_of, transitions

RNG = np.random.default_rng


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


def chain(P, samples, edges=None):
    """A density of a chain that is written down."""
    n = len(P)
    boxes = Boxes((np.arange(n + 1.0) if edges is None else np.asarray(edges),))
    found = Transitions(boxes, np.arange(n), csr_matrix(np.asarray(P, float)), np.asarray(samples), 0.0)
    return InvariantDensity(found, markov_chain(found.matrix), "counts")


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


def test_sets_of_many_boxes_by_arnoldi(monkeypatch):
    rng = RNG(0)
    n = 30
    P = np.kron(np.eye(3), rng.uniform(0.5, 1, (10, 10))) + 0.02 * rng.uniform(0, 1, (n, n))
    d = chain(P / P.sum(axis=1, keepdims=True), np.full(n, 10))
    dense = d.almost_invariant_sets()
    assert dense.count == 3
    monkeypatch.setattr(almost_invariant, "DENSE", 29)
    sparse = d.almost_invariant_sets()
    assert_allclose(sparse.eigenvalues, dense.eigenvalues, atol=1e-9)
    assert sparse.labels.tolist() == dense.labels.tolist()
    assert (np.diff(sparse.eigenvalues) <= 0).all()


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


def test_embeddings_of_coarse_boxes_are_exact():
    """Two boxes a side: the mean of psi over each, against a fine grid."""
    rng = RNG(0)
    Z = rng.uniform(0, 1, (400, 2))
    d = invariant_density((Z, rng.uniform(0, 1, (400, 2))), boxes=[np.array([0, 0.4, 1.0])] * 2)
    psi = RandomFourier(8, 0.2, seed=3).fit(Z)
    t = (np.arange(400) + 0.5) / 400
    grid = np.stack([g.ravel() for g in np.meshgrid(t, t, indexing="ij")], axis=1)
    fine = (psi.transform(grid) * d.evaluate(grid)[0][:, None]).mean(axis=0)
    assert_allclose(embedding_of_density(d, psi)[0], fine, atol=2e-4)
    unfitted = RandomFourier(8, 0.2, seed=3)
    assert_allclose(embedding_of_density(d, unfitted)[0], fine, atol=2e-4)
    x = rng.uniform(0, 1, 7)
    one = RandomFourier(4, 1.0, seed=0)
    exact = one.fit(x[:, None]).transform(x[2:, None]).mean(axis=0)
    assert_allclose(mean_embedding(x, one, burn=2), exact)
    assert_allclose(mean_embedding([x, x[:3]], one, burn=2), (exact + one.transform(x[2:3, None])[0]) / 2)
    with pytest.raises(ValueError, match="none left"):
        mean_embedding([x, x[:2]], one, burn=2)
    assert_allclose(mmd(np.array([[3.0, 0.0], [0.0, 1.0]]), np.array([0.0, 4.0])), [5, 3])
    with pytest.raises(ValueError, match="as many numbers"):
        mmd(np.ones(3), np.ones((2, 2)))


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


def test_samples_at_the_edges_of_pieces():
    t = np.r_[0.0, 1.1, 1.9, 3.0, 8.0, 9.1, 9.9]  # four samples are bent through, three are not
    found = regular(t, t**2, dt=1.0)
    assert found.starts == [0.0]
    assert_allclose(found.pieces[0][:, 0], [0, 1, 4, 9], atol=1e-9)
    found = regular(np.r_[t, 11.2], np.r_[t, 11.2] ** 2, dt=1.0)
    assert found.starts == [0.0, 8.0]
    assert_allclose(found.pieces[1][:, 0], [64, 81, 100, 121], atol=1e-9)
    joined = np.r_[0.0, 1.1, 1.9, 3.0, 7.0, 8.1]  # four steps without a sample are no gap yet
    assert [len(p) for p in regular(joined, joined, dt=1.0).pieces] == [9]
    assert regular(np.array([0.0, 2.0]), np.array([1.0, 2.0])).dt == 2.0
    assert regular(np.array([0.0, 1.0, 2.0, 5.0]), np.arange(4.0)).dt == 1.0
    slow = regular(1.001 * np.arange(20.0), np.arange(20.0))
    assert slow.dt == pytest.approx(1.001, rel=1e-12)
    assert regular(np.arange(5.0), np.arange(5.0), dt=1).dt == 1.0
    for t, z, options, sentence in (
        ([0.0], [1.0], {}, "needs two samples"), ([0.0, 0.0], [1.0, 2.0], {}, "must increase"),
        ([0.0, 1.0], [1.0, 2.0], {"dt": 0.0}, "dt must be"), ([0.0, 5.0], [1.0, 2.0], {"dt": 1.0}, "are left"),
        ([[0.0, 1.0]], [1.0, 2.0], {}, "as many times"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=sentence):
            regular(np.array(t), np.array(z), **options)
    missing = regular(np.array([0.0, np.nan, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, np.nan]), dt=2.0)
    assert missing.said == ("2 rows with missing values are left out",)
    assert [p.tolist() for p in without_gaps(np.array([[1.0], [2.0], [np.nan], [3.0]]))] == [[[1.0], [2.0]]]


def test_states_that_are_taken_as_they_are():
    """Good arrays are not copied; all others are looked at by scikit-learn."""
    model = EDMD()
    z = RNG(0).standard_normal((4, 2))
    assert checked_states(model, z, True) is z
    assert model.n_features_in_ == 2
    wide = np.asfortranarray(z)
    assert checked_states(model, wide) is wide
    big = np.full((3, 2), 1e200)  # the sum of squares overflows, no entry does
    assert_allclose(checked_states(model, big), big)
    assert checked_states(model, z.astype(np.float32)).dtype == np.float64
    assert checked_states(model, z.tolist()).dtype == np.float64
    assert checked_states(model, np.arange(4).reshape(2, 2)).dtype == np.float64
    assert checked_states(model, z + 1j).dtype == np.complex128
    for bad, sentence in ((z[:, :1], "features"), (z[:0], "minimum"), (z[0], "Reshape"), (z[None], "dim"),
                          (np.where(z > z.min(), z, np.nan), "1 of 8 values"), (z * [1, np.inf], "4 of 8"),
                          (z + 1j * np.inf, "8 of 8")):  # fmt: skip
        with pytest.raises(ValueError, match=sentence):
            checked_states(model, bad)
    with pytest.raises(ValueError, match="minimum of 2"):
        checked_states(model, z[:1], False, 2)
    assert checked_parts(model, (z[:1], z[:1]), None, False)[0] == "pairs"
    for one in (z[:1], [z, z[:1]]):
        with pytest.raises(ValueError, match=r"minimum of 2|at least 2"):
            checked_parts(model, one, None, False)
    assert [len(p) for p in checked_parts(model, [z, z[:2]], None, False)[1]] == [4, 2]


def test_good_states_are_not_looked_at_twice(monkeypatch):
    """What scikit-learn would let pass unchanged it is not asked about: its checks cost as much as a small fit."""
    asked = []
    real = intake.validate_data
    monkeypatch.setattr(intake, "validate_data", lambda *a, **k: asked.append(1) or real(*a, **k))
    model = EDMD()
    z = RNG(0).standard_normal((4, 2))
    checked_states(model, z, True)
    checked_states(model, z[:1])
    assert asked == []
    for odd in (z.astype(np.float32), z.tolist(), np.full((2, 2), 1e200), z + 0j):
        checked_states(model, odd)
    assert len(asked) == 4
    model.feature_names_in_ = np.array(["a", "b"], dtype=object)
    with pytest.warns(UserWarning, match="feature names"):
        checked_states(model, z)
    assert len(asked) == 5


def test_dictionaries_by_what_they_are():
    assert isinstance(as_dictionary(None, 30), Monomials)  # 496 of them
    assert isinstance(as_dictionary(None, 31), Identity)
    assert isinstance(as_dictionary(np.sin, 1), Observables)
    with pytest.raises(ValueError, match="got int"):
        as_dictionary(3, 1)
    z = np.arange(10.0).reshape(5, 2)
    assert Observables(lambda w: w[:, 0]).transform(z).tolist() == z[:, :1].tolist()
    for bad in (lambda w: w[:2], lambda w: w[:, :, None]):
        with pytest.raises(ValueError, match="one row per sample"):
            Observables(bad).transform(z)
    with pytest.raises(ValueError, match="degree"):
        Monomials(0).fit(z)
    both = Monomials(2, constant=False).fit(z)
    assert both.names_ == ["z0", "z1", "z0 z0", "z0 z1", "z1 z1"]
    assert both.state_columns_.tolist() == [0, 1]
    assert_allclose(both.transform(z)[2], [4, 5, 16, 20, 25])
    assert Monomials(1).fit(z).names_ == ["1", "z0", "z1"]
    assert Identity().fit(z).names_ == ["z0", "z1"]


def test_a_module_is_left_as_it_was():
    torch = pytest.importorskip("torch")
    z = np.arange(10.0).reshape(5, 2)
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout(0.9))
    for training in (True, False):
        net.train(training)
        lifted = Lift(net, batch=2).transform(z)
        assert net.training == training
        with torch.no_grad():
            assert_allclose(lifted, net[0](torch.as_tensor(z).float()).double().numpy())
    assert lifted.dtype == np.float64
    assert_allclose(Lift(lambda w: 2 * w[:, None]).transform(z), 2 * z)  # no parameters, no training


def seen(*lengths, d=1, **given):
    pieces = [np.cumsum(RNG(k).standard_normal((m, d)), axis=0) for k, m in enumerate(lengths)]
    return Observations(pieces, given.get("control"), [0.0] * len(lengths), 1.0, tuple("abcdefgh"[:d]), ())


def test_how_a_file_is_fitted():
    """Delays for a single series, a quarter of its length at most; truncated with fewer than four pairs a number."""
    assert fitted(seen(200)).dictionary_.delays == 30
    assert fitted(seen(40)).dictionary_.delays == 10
    assert not isinstance(fitted(seen(40), dictionary=Monomials(1)).dictionary_, Delays)
    assert not isinstance(fitted(seen(40, d=2)).dictionary_, Delays)
    assert not isinstance(fitted(seen(40), delays=0).dictionary_, Delays)
    for length, rank in ((15, None), (14, "auto")):  # 12 pairs for three numbers
        assert fitted(seen(length), delays=2).rank == rank
    for length, rank in ((9, None), (8, "auto")):
        assert fitted(seen(length, d=2), dictionary=Identity()).rank == rank
    assert fitted(seen(14), dictionary=Monomials(1), delays=2).rank is None
    assert fitted(seen(14), delays=2, rank=2).rank == 2
    assert fitted(seen(9, 4, 3), delays=2).n_samples_seen_ == 6 + 1
    with pytest.raises(ValueError, match="2 delays need 4"):
        fitted(seen(3), delays=2)
    steered = seen(20, control=[RNG(9).standard_normal((20, 1))])
    assert fitted(steered, delays=0).n_controls_ == 1
    assert isinstance(fitted(steered, delays=0).dictionary_, Identity)


def test_what_is_said_of_a_file():
    hole = np.array([[1.0], [2.0], [np.nan], [3.0], [4.0]])
    found = _without_times([hole, hole[:2]], None)
    assert [len(p) for p in found.pieces] == [2, 2, 2]
    assert found.said == ("missing values cut the file into 3 pieces",)
    assert (found.dt, found.starts) == (1.0, [0.0] * 3)
    assert _without_times([hole[:2]], 0.5).said == ()
    assert _without_times([hole[:2]], 0.5).dt == 0.5
    assert _without_times([hole[:3]], None).said == ()
    moving = np.arange(4.0)[:, None] * np.r_[1.0, np.zeros(6)]
    assert _standing_still(tuple("abcdefg"), [moving]) == ("b, c, d, e, f ... never changes",)
    assert _standing_still(tuple("abcdef"), [moving[:, :6]]) == ("b, c, d, e, f never changes",)
    assert _standing_still(("a",), [moving[:, :1]]) == ()
    assert _standing_still(("a", "b"), [moving[:, :2], moving[:, :2] + 1]) == ("b never changes",)
    with pytest.raises(ValueError, match="nothing ever changes"):
        _standing_still(("b",), [moving[:, 1:2]])


@pytest.mark.parametrize(
    ("m", "d", "count"), [(100, 1, 2), (100, 3, 6), (100, 5, 8), (20, 5, 5), (9, 2, 2), (7, 2, 1), (3, 1, 1)]
)
def test_how_many_exponentials_a_forecast_has(m, d, count, monkeypatch):
    """Two for each of four states, four samples for each; errors are the spread and what was left over together."""

    class Exact:
        def __init__(self, n_modes, bags):
            self.n_modes, self.bags = n_modes, bags
            self.rates_, self.rates_std_ = np.array([-1.0 + 2j]), np.array([0.5])

        def fit(self, Z, times):
            self.Z, self.times = Z, times
            asked.append(self)
            return self

        def forecast(self, times):
            return np.tile(times[:, None], d), np.full((len(times), d), 3.0)

        def predict(self, times):
            return self.Z + np.where(np.arange(len(times)) % 2, 4.0, -4.0)[:, None]

    asked = []
    monkeypatch.setattr(forecasts, "OptimisedDMD", Exact)
    given = Observations([np.ones((m, d))], None, [10.0], 0.5, tuple("abcde"[:d]), ())
    found = forecasts.forecast_by_exponentials(given, 2, None)
    assert (asked[0].n_modes, asked[0].bags) == (count, 40)
    assert_allclose(asked[0].times, 0.5 * np.arange(m))
    assert_allclose(found.values[:, 0], [0.5 * m, 0.5 * (m + 1)])
    assert_allclose(found.times, 10 + found.values[:, 0])
    assert_allclose(found.errors, 5.0)
    assert found.said == ("optimised DMD, rates -1 +2i (+- 0.5)",)
    forecasts.forecast_by_exponentials(given, 1, 3)
    assert asked[1].n_modes == 3


def test_rows_that_are_kept_for_a_judgement(monkeypatch):
    monkeypatch.setattr(kept, "MOST_ROWS", 10)
    z = RNG(0).standard_normal((41, 2))
    found = kept.kept_by(EDMD(Identity()).fit(z))
    assert len(found.now) == len(found.after) == len(found.states) == 10
    assert_allclose(found.now, z[:10])
    assert_allclose(found.after, z[1:11])
    assert len(found.runs) == 1
    assert kept.kept_by(EDMD(Identity()).fit(z, control=z[:, :1])) is None
    assert kept.kept_by(EDMD(Identity()).fit(z, inputs=[1.0])).runs is None
    assert kept.kept_by(EDMD(Identity()).fit((z, z))).runs is None


@pytest.mark.parametrize(("dictionary", "past"), [(Identity(), 0), (Delays(2), 2)])
def test_errors_are_those_of_what_was_held_back(dictionary, past):
    """Forecasts from the first sample that was not fitted on; short pieces are fitted if they make a pair."""
    z = np.zeros((40, 1))
    for l in range(39):
        z[l + 1] = 0.8 * z[l] + RNG(l).standard_normal(1)
    other = RNG(99).standard_normal((past + 2, 1))
    given = Observations([z, other, other[1:]], None, [0.0] * 3, 1.0, ("z",), ())
    model = EDMD(dictionary).fit([z, other])
    found = forecasts.forecast_by_edmd(given, 3, model, 0.2)
    apart = EDMD(dictionary).fit([z[:32], other])
    assert_allclose(found.errors, apart.forecast_errors(z[32 - past :], 3)[1:])
    assert_allclose(found.values, model.forecast(z if past else z[-1], 3)[1:])
    assert found.said == ("errors as on the last 8 samples, held back",)
    early = forecasts.forecast_by_edmd(given, 3, model, 0.97)  # too little is left to be fitted
    assert "too few to hold any back" in early.said[0]
    assert_allclose(early.errors, model.forecast_errors(z, 3)[1:])


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
