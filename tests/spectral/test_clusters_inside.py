"""Joined eigenvalues and what their block is, chains, pairs and forecasts: by hand, thresholds from both sides."""

import numpy as np
import pytest
from inside import upper
from numpy.testing import assert_allclose
from scipy.linalg import block_diag

from koopsim.spectral import EDMD, Delays, Identity, Monomials, analyze, markov_chain
from koopsim.spectral.clusters import SchurForm, extract, isolate, reordered, schur_form
from koopsim.spectral.continuous import ModeTable, _mates, logarithm, rates
from koopsim.spectral.markov import closed_classes, leading, period, scaled_rows, stationary_law
from koopsim.spectral.perron_frobenius import _real_span, _vertices
from koopsim.spectral.resolvent import Allowance
from koopsim.spectral.structure import Finding, _blocks, _name, _near_unitary, _number, classify, jordan_sizes
from koopsim.spectral.trajectories import Stretch, controls, held_inputs, layout, lifted_pairs, lifted_runs, stretches


def joined(points, delta, seed=0):
    return isolate(schur_form(np.diag(np.asarray(points, complex))), delta, (seed,)).indices


def test_who_is_joined_by_hand():
    """Alone while all others are 4.5 errors away; the first reach is 1.01 of the nearest and two errors more."""
    d = 0.01
    assert joined([0, 4.51 * d, 1], d) == (0,)
    assert joined([0, 4.49 * d, 1], d) == (0, 1)
    assert joined([0, 4 * d, -6.02 * d, 9], d) == (0, 1, 2)  # 4.04 + 2 errors reach it
    assert joined([0, 4 * d, -6.15 * d, 9], d) == (0, 1)
    assert joined([0, 4 * d, 8.4 * d, 9], d) == (0, 1, 2)  # by the second: half as far again as the nearest
    assert joined([0, 4 * d, 8.6 * d, 9], d) == (0, 1)
    assert joined([0, 4 * d, 2 * d + 6.2j * d, 9], d) == (0, 1)
    chain = [4 * d * k for k in range(9)]
    assert joined([*chain, 9], d) == tuple(range(9))
    spent = schur_form(np.diag([0.0, 1.0, 2.0]))
    assert isolate(SchurForm(spent.T, spent.Q, spent.conjugate, Allowance(-1.0)), 1e-9, (0,)).indices == (0, 1, 2)
    assert isolate(SchurForm(spent.T, spent.Q, spent.conjugate, Allowance(0.0)), 1e-9, (0,)).indices == (0,)


def test_a_block_of_everything_and_of_a_normal_matrix():
    form = schur_form(np.array([[0.5, 1.0], [0, 0.25]]))
    whole = extract(form, (0, 1))
    assert (whole.norm, whole.separation) == (1.0, np.inf)
    assert_allclose(whole.V @ whole.B @ whole.W, [[0.5, 1.0], [0, 0.25]], atol=1e-12)
    normal = schur_form(np.diag([0.5, 0.2, 3.0, 1.0]))
    some = extract(normal, (0, 3))
    assert (some.norm, some.separation) == (1.0, pytest.approx(0.3))
    assert_allclose(np.sort(np.diag(some.B)), [0.5, 1.0])
    assert_allclose(some.V @ some.W, np.diag([1.0, 0, 0, 1.0]), atol=1e-12)
    assert some.B.shape == (2, 2)
    assert_allclose(form.as_normal().T, np.diag([0.5, 0.25]))
    assert form.as_normal().normal
    assert not form.normal


@pytest.mark.parametrize("n", [48, 49])
def test_one_eigenvalue_by_the_eigenvectors(n):
    """From 49 rows on by X and Y where they show it isolated: the same projector as by reordering."""
    T = upper(n, 3, 0.02)
    form = schur_form(T)
    for i in (0, n // 2, n - 1):
        quick, slow = extract(form, (i,), 1e-9), reordered(form, (i,))
        assert_allclose(quick.V @ quick.W, slow.V @ slow.W, atol=1e-9)
        assert_allclose(quick.B, [[form.eigenvalues[i]]])
        assert quick.norm == pytest.approx(slow.norm, rel=1e-6)
        assert (quick.separation == pytest.approx(slow.separation, rel=1e-12)) == (n == 48)
        rough = extract(form, (i,), 1.0)  # nothing is shown at that noise
        assert rough.separation == pytest.approx(slow.separation, rel=1e-12)
    assert (form.circles._basis is None) == (n == 48)
    assert schur_form(np.diag(np.arange(60.0))).circles._basis is None


def test_sizes_of_jordan_blocks():
    for sizes in ((2,), (3,), (2, 2), (3, 2), (4, 2), (3, 3), (5,)):
        N = block_diag(*(np.eye(s, k=1) for s in sizes), np.zeros((2, 2))).astype(complex)
        assert jordan_sizes(N, 1e-8, max(sizes)) == tuple(sorted(sizes, reverse=True))
    eta = 1e-3
    for share, sizes in ((0.5, (2,)), (1.9, (2,)), (2.1, (2, 2))):  # a coupling of two errors is none
        N = block_diag(np.eye(2, k=1), share * eta * np.eye(2, k=1)).astype(complex)
        assert jordan_sizes(N, eta, 2) == sizes
    assert jordan_sizes(np.zeros((2, 2), complex), eta, 2) == (2,)
    N = np.eye(3, k=1).astype(complex)
    N[1, 2] = 0.9e-3  # N^2 has 0.9e-3: below 2 (2 eta + eta^2), it is zero
    assert jordan_sizes(N, 1e-3, 3) == (2,)


def test_a_jordan_block_that_the_error_spreads():
    """(s nu^(s-1) eta)^(1/s) is what the eigenvalues of it may be moved by: above 0.05 nothing is said."""
    for eta, kind in ((1.2e-3, "defective"), (1.3e-3, "unclear")):  # (2 nu eta)^(1/2), nu = 1
        block = extract(schur_form(np.array([[1.0, 1.0], [0, 1.0]])), (0, 1))
        assert classify(block, eta, True).kind == "unclear"  # below a thousand errors
        wide = extract(schur_form(np.array([[1.0, 4.0], [0, 1.0]])), (0, 1))
        found = classify(wide, eta / 4, True)
        assert found.kind == kind
    turned = extract(schur_form(np.exp(0.5j) * 1.00004 * np.array([[1.0, 1], [0, 1]])), (0, 1))
    found = classify(turned, 2e-4, False)
    assert found.kind == "defective"
    assert found.eigenvalue == pytest.approx(np.exp(0.5j))
    assert found.sizes == (2,)


def test_near_unitary_blocks():
    eta = 1e-4
    for size, angle, said in ((0.0, 0.11, True), (0.0, 0.09, False), (1.9, 0.2, True), (2.1, 0.2, False)):
        w = (1 + size * eta) * np.exp(1j * angle * np.array([1, -1]))
        assert _near_unitary(np.diag(w), eta) is said


def test_words_for_numbers():
    assert _number(0.25 + 0j) == "0.25"
    assert _number(0.25 + 1e-15j) == "0.25"
    assert _number(0.25 - 0.5j) == "0.25-0.5i"
    assert _name(1, 1 + 0j) == "the eigenvalue 1 is"
    assert _name(3, 1 + 0j) == "a cluster of 3 eigenvalues at 1 is"
    assert _blocks((3, 2, 2)) == "a block of size 3 and 2 blocks of size 2"
    block = extract(schur_form(np.eye(2)), (0, 1))
    assert [Finding(block, kind, 1 + 0j, 0.0, "").certain for kind in ("inside", "outside", "fixed")] == [
        True,
        True,
        False,
    ]


def test_clusters_that_overlap_are_joined():
    """Two pairs near 1 and their mirror images, found one after the other, are one cluster."""
    t = 1e-3
    A = block_diag(*(np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) for a in (t, 2.5 * t)), 0.3)
    for noise, count in ((1e-3, 1), (2e-4 / 2.02, 2), (1e-9, 2)):
        v = analyze(A, noise)
        assert len({p.indices for p in v.projectors}) == count
        assert sum(len(p.indices) for p in v.projectors) == 4


def test_rates_and_logarithms():
    w = np.array([np.exp((-0.2 + 3j) * 0.5), -0.5, 0.0])
    found = rates(w, 0.5)
    assert_allclose(found[:2], [-0.2 + 3j, np.log(0.5) / 0.5 + 2j * np.pi])
    assert found[2] == complex(-np.inf, 0)
    A = np.array([[0.5, 0.2], [0.0, 0.8]])
    L = logarithm(A, 0.5)
    assert np.isrealobj(L)
    assert_allclose(np.diag(L), np.log([0.5, 0.8]) / 0.5)
    assert np.iscomplexobj(logarithm(np.diag([-0.5, 0.3]), 1.0))
    assert np.iscomplexobj(logarithm(A + 0j, 0.5))
    with pytest.raises(ValueError, match="no logarithm"):
        logarithm(np.diag([1.0, 1e-12]), 1.0)
    assert_allclose(logarithm(np.diag([1.0, 1e-11]), 1.0)[1, 1], np.log(1e-11))
    assert _mates(np.array([1 + 1j, 0.5, 1 - 1j, 2 + 2j, 2 - 2j])).tolist() == [2, 1, 0, 4, 3]
    assert _mates(np.array([1 + 1j, 0.5])).tolist() == [0, 1]


def test_a_table_of_modes_by_hand():
    """z = (0.9^l cos, 0.9^l sin) and 2 (-0.5)^l, dt = 0.5: amplitudes are root mean squares along the run."""
    l = np.arange(40)
    z = np.c_[0.9**l * np.cos(0.4 * l), 0.9**l * np.sin(0.4 * l), 2 * (-0.5) ** l]
    model = EDMD(Identity(), dt=0.5).fit(z)
    table = model.mode_table(z)
    assert len(table) == 2
    assert_allclose(table.frequency, [0.4 / (2 * np.pi) / 0.5, 1.0], rtol=1e-8)
    assert_allclose(table.growth, np.log([0.9, 0.5]) / 0.5, rtol=1e-8)
    assert_allclose(table.lifetime, -0.5 / np.log([0.9, 0.5]), rtol=1e-8)
    assert_allclose(table.amplitude, [2 * np.sqrt(np.mean(0.81**l) / 2), 2 * np.sqrt(np.mean(0.25**l))], rtol=1e-8)
    assert table.residual.max() < 1e-9
    assert len(str(table).splitlines()) == 3
    assert table.lines(1)[-1] == "  ... and 1 more"
    assert len(table.lines(2)) == 3
    rows = table.to_dict()
    assert rows[0]["imag"] == pytest.approx(0.9 * np.sin(0.4))
    assert ModeTable(*(np.array([v]) for v in (1.0, 0.0, 0.0, np.inf, 1.0, 0.0, 0))).to_dict()[0]["lifetime"] is None
    fitted = [2 * np.sqrt(np.mean(0.81 ** l[:-1]) / 2), 2 * np.sqrt(np.mean(0.25 ** l[:-1]))]
    assert_allclose(model.mode_table().amplitude, fitted, rtol=1e-6)


def test_chains_by_hand():
    P = np.array(
        [[0.5, 0.5, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0.2, 0, 0.3, 0.5, 0], [0, 0, 0, 0, 1.0], [0, 0, 0, 1.0, 0]]
    )
    chain = markov_chain(P)
    assert sorted(c.tolist() for c in chain.classes) == [[0, 1], [3, 4]]
    assert sorted(chain.periods) == [1, 2]
    assert_allclose(np.sort(chain.absorption()[:, 2]), [2 / 7, 5 / 7])
    assert_allclose(chain.absorption()[:, [0, 3]], np.eye(2)[:, [0, 1] if 0 in chain.classes[0] else [1, 0]])
    assert_allclose(sorted(chain.mixing_rates), [0, 1], atol=1e-12)
    from scipy.sparse import csr_matrix

    assert [c.tolist() for c in closed_classes(csr_matrix(np.eye(3)))] == [[0], [1], [2]]
    assert period(csr_matrix(np.array([[0, 1.0, 0], [0, 0, 1], [0.5, 0.5, 0]]))) == 1
    assert period(csr_matrix(np.ones((1, 1)))) == 1
    assert_allclose(stationary_law(csr_matrix(np.array([[0.8, 0.2], [0.6, 0.4]]))), [0.75, 0.25])
    assert_allclose(scaled_rows(csr_matrix(np.array([[2.0, 2.0], [1.0, 3.0]]))).toarray(), [[0.5, 0.5], [0.25, 0.75]])
    three = csr_matrix(np.roll(np.eye(3), 1, axis=1))
    assert_allclose(leading(three, np.full(3, 1 / 3), 3, 3), np.exp(2j * np.pi * np.array([0, 1, 2]) / 3)[[0, 1, 2]])
    assert len(leading(three, np.full(3, 1 / 3), 3, 2)) == 2
    for off, fits in ((0.9e-9, True), (1.1e-9, False)):
        A = np.array([[0.5, 0.5 + off], [0.5, 0.5]])
        if fits:
            assert len(markov_chain(A).classes) == 1
        else:
            with pytest.raises(ValueError, match="sum to 1"):
                markov_chain(A)
    assert markov_chain(np.ones((1, 1))).mixing_rates.tolist() == [0.0]


def test_corners_of_a_simplex():
    corners = np.array([[1.0, 2.0], [3.0, -1.0]])
    shares = np.array([[1, 0], [0, 1], [0.5, 0.5], [0.2, 0.8]])
    found = shares @ corners @ _vertices(shares @ corners)
    assert_allclose(np.sort(found[:2], axis=0), [[0, 0], [1, 1]], atol=1e-12)
    assert_allclose(found.sum(axis=1), 1)
    v = np.array([[1.0, 1.0], [1j, -1j], [0, 0]])
    assert_allclose(_real_span(v, 2) @ _real_span(v, 2).T, np.diag([1.0, 1, 0]), atol=1e-12)
    with pytest.raises(ValueError, match="cut in two"):
        _real_span(v[:, :1], 1)


def test_pairs_of_blocks_by_hand():
    """Every pair once, in order, whatever the blocks; none across two trajectories."""
    runs = [Stretch(z, z, u) for z, u in ((np.arange(5.0)[:, None], np.arange(4.0)[:, None]),
                                          (np.arange(10.0, 13)[:, None], np.arange(10.0, 12)[:, None]))]  # fmt: skip
    for rows in (1, 2, 3, 4, 5, 50):
        found = list(lifted_runs(runs, lambda z: 2 * z, rows))
        now, after, states, control = (
            np.concatenate([getattr(b, name) for b in found])[:, 0] for name in ("now", "after", "states", "control")
        )
        assert states.tolist() == control.tolist() == [0, 1, 2, 3, 10, 11]
        assert (now / 2).tolist() == states.tolist()
        assert (after / 2).tolist() == [1, 2, 3, 4, 11, 12]
        assert max(len(b.now) for b in found) <= rows + 4
        pairs = list(lifted_pairs(Stretch(runs[0].states, runs[0].seen, None), runs[0].seen + 1, lambda z: z, rows))
        assert [len(b.now) for b in pairs] == [min(rows, 5 - i) for i in range(0, 5, rows)]
    assert layout(np.ones((3, 2)))[0] == "one"
    assert layout([np.ones((3, 2))])[0] == "many"
    assert layout((np.ones((3, 2)), np.ones((3, 2))))[0] == "pairs"
    assert layout(np.ones((3, 2)), np.ones((3, 2)))[0] == "pairs"
    assert layout(np.ones((3, 2)), np.ones(3))[0] == "one"
    assert layout([[1.0, 2.0], [3.0, 4.0]])[0] == "one"
    (u,) = held_inputs([1.0, 2.0], "one", [np.ones((3, 2))])
    assert u.tolist() == [[1, 2]] * 3
    assert controls(np.arange(3.0), "one", [np.ones((3, 2))])[0].tolist() == [[0], [1]]
    assert controls(np.arange(3.0), "pairs", [np.ones((3, 2))] * 2)[0].tolist() == [[0], [1], [2]]
    with pytest.raises(ValueError, match="need 2 rows of control"):
        controls(np.arange(4.0), "one", [np.ones((3, 2))])
    past = Delays(2, stride=2)
    z = np.arange(7.0)[:, None]
    (found,) = stretches([z], [np.full((7, 1), 9.0)], [np.arange(6.0)[:, None]], past)
    assert found.seen.tolist() == [[4, 2, 0, 9], [5, 3, 1, 9], [6, 4, 2, 9]]
    assert found.states[:, 0].tolist() == [4, 5, 6]
    assert found.control[:, 0].tolist() == [4, 5]
    with pytest.raises(ValueError, match="it needs 6"):
        stretches([z[:5]], [None], [None], past)
    assert len(stretches([z[:6]], [None], [None], past)[0].states) == 2


def test_forecasts_by_hand():
    """z' = 0.5 z + u: a step, several, several starts, and the error along a run that obeys it."""
    rng = np.random.default_rng(0)
    X, u = rng.uniform(-1, 1, (20, 1)), rng.uniform(-1, 1, (20, 1))
    model = EDMD(Identity()).fit((X, 0.5 * X + u), control=u)
    assert_allclose(model.forecast([1.0], 2, control=np.array([[1.0], [0.0]])), [[1.0], [1.5], [0.75]], atol=1e-9)
    assert_allclose(model.predict([[2.0]], control=[[3.0]]), [[4.0]], atol=1e-9)
    plain = EDMD(Identity()).fit((X, 0.5 * X))
    assert plain.forecast([[1.0], [2.0]], 3).shape == (4, 2, 1)
    assert_allclose(plain.forecast([[1.0], [2.0]], 3)[3], [[0.125], [0.25]], atol=1e-9)
    wrong = np.array([[1.0], [1.0], [1.0], [1.0]])  # it does not halve
    found = plain.forecast_errors(wrong, 5)
    assert_allclose(found[:4, 0], [0, 0.5, 0.75, 0.875], atol=1e-9)
    assert np.isnan(found[4:]).all()
    assert plain.score(0.5 ** np.arange(6.0)[:, None]) == pytest.approx(1)
    square = EDMD(Monomials(2)).fit((X, X**2))
    assert_allclose(square.forecast([0.5], 2, relift=True)[:, 0], [0.5, 0.25, 0.0625], atol=1e-9)
    assert abs(square.forecast([0.5], 2)[2, 0] - 0.0625) > 1e-3
    assert_allclose(plain.pseudospectrum([0.5, 0.7, 0.5 + 0.1j]), [0, 0.2, 0.1], atol=1e-9)
    assert_allclose(plain.residuals_on(wrong), [0.5], atol=1e-9)
    assert_allclose(plain.residuals_on([wrong, 0.5 ** np.arange(2.0)[:, None]]), [np.sqrt(0.75 / 4)], atol=1e-9)
