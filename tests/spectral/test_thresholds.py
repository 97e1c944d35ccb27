"""At the thresholds themselves: what is exactly there counts as the sentence beside the number says."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import block_diag
from scipy.sparse import csr_matrix
from test_fitting_inside import TERMS, told_by

from koopsim.spectral import EDMD, Delays, Identity, Monomials, Nystrom, analyze, exponentials, markov
from koopsim.spectral.assembly import ROUNDING, Evidence, _rotations, _snap, decided, nearest, propagators
from koopsim.spectral.clusters import Block, extract, isolate, schur_form
from koopsim.spectral.continuous import logarithm
from koopsim.spectral.eigenbasis import eigenbasis
from koopsim.spectral.invariant_density import default_sides
from koopsim.spectral.judgement import decide, unfit
from koopsim.spectral.kept import without_constant
from koopsim.spectral.noise import Noise
from koopsim.spectral.resolvent import Circles, _from_inverse
from koopsim.spectral.sampling import regular
from koopsim.spectral.snapshots import above_noise
from koopsim.spectral.structure import Finding, classify, elsewhere, jordan_sizes, resolved
from koopsim.spectral.trajectories import controls, held_inputs, layout
from koopsim.spectral.witness import Condition, smallest

E, L = 2.0**-10, 128  # an error and a length whose products are exact


@pytest.mark.parametrize(
    ("changed", "case"),
    [
        ({"growth": [-4 * E, -0.2], "error": [E, E]}, "undecided"),  # high = 0: it may be on the circle
        ({"growth": [-4 * E - 2.0**-40, -0.2], "error": [E, E]}, "origin"),
        ({"growth": [4 * E, -0.2], "error": [E, E]}, "undecided"),  # low = 0: it need not grow
        ({"growth": [4 * E + 2.0**-40, -0.2], "error": [E, E]}, "divergent"),
        ({"growth": [-0.05, 0.005], "amplitude": [1.0, 0.1]}, "divergent"),  # a tenth is major
        ({"growth": [-0.05, 6 * E], "error": [E, E], "amplitude": [1.0, 0.05], "length": L}, "undecided"),
        ({"growth": [-0.05, 6.001 * E], "error": [E, E], "amplitude": [1.0, 0.05], "length": L}, "divergent"),
        ({"growth": [0.0, -0.2], "error": [E / 2, E], "length": L}, "invariant-set"),  # 4 errors L = 1/4
        ({"growth": [0.0, -0.2], "error": [E / 2, E], "length": L + 1}, "undecided"),
        ({"growth": [0.0, -0.2], "error": [E / 4, E], "length": L, "angle": [4 * np.pi / L, 0.0]}, "invariant-set"),
        ({"growth": [0.0, -0.2], "error": [E / 4, E], "length": L, "angle": [3.999 * np.pi / L, 0.0]}, "undecided"),
        ({"rest": [[2.0**-4, 2.0**-4]], "rest_error": 2.0**-6}, "origin"),  # four errors
        ({"rest": [[2.0**-4, 2.1 * 2.0**-5]], "rest_error": 2.0**-6}, "fixed-point"),
    ],
)  # fmt: skip
def test_decisions_at_their_thresholds(changed, case):
    assert decide(told_by(**changed))[0] == case


@pytest.mark.parametrize(
    ("changed", "good"),
    [
        ({"noise": 0.6}, True),
        ({"foretold": 2.0, "noise": 0.5}, True),
        ({"foretold": 4.0, "noise": 0.005}, True),
        ({"drift": [0.1 * 0.05, 0.0]}, True),
        ({"drift": [0.0, 0.0201], "amplitude": [1.0, 0.1]}, False),
        ({"drift": [0.1 * (1 / 100), 0.0], "growth": [0.001, -0.2]}, True),
    ],
)
def test_fits_at_the_edge_of_belief(changed, good):
    assert (unfit(told_by(**changed)) is None) == good


def finding(kind="fixed"):
    block = extract(schur_form(np.diag([1.0, 0.5, 0.25, 0.1])), (0,))
    return Finding(block, kind, 1 + 0j, 1e-3, "it is")


@pytest.mark.parametrize(("level", "share", "case"), [(2.0**-40, 1.0, "fixed-point"), (0.2, 1.2499, "fixed-point"),
                                                    (0.2, 1.2501, "undecided"), (32 * 2.0**-52, 1.999, "fixed-point"),
                                                    (32 * 2.0**-52, 2.001, "undecided")])  # fmt: skip
def test_how_far_a_witness_may_be(level, share, case, monkeypatch):
    """1 / (1 - noise) times the noise, and eight roundings a row: of four rows one, where the noise is 32 of them."""
    form = schur_form(np.diag([1.0, 0.5, 0.25, 0.1]))
    given = Evidence(form, [finding()], [], False, Noise(level, "", True, False), 0.7, 0.0)
    monkeypatch.setattr("koopsim.spectral.assembly.nearest", lambda *_: share * 0.7)
    found, distance, said = decided(given)
    assert found == case
    assert distance == (share * 0.7 if case != "undecided" else None)
    assert len(said) == 1


def test_rotations_of_a_torus_next_to_one():
    """Of angles that the error cannot tell from zero the turns are none; of others their own."""
    B = np.diag(np.exp(1j * np.array([0.9e-3, 0.2, np.pi - 0.9e-3, -0.3])))
    block = replace(extract(schur_form(np.eye(4)), (0, 1, 2, 3)), B=B)
    f = Finding(block, "torus", 1 + 0j, 1e-3, "")
    turns = sorted(float(t.turns) for t in propagators(f, schur_form(np.eye(4) + 0j)))
    assert_allclose(turns, [-0.3 / (2 * np.pi), 0.0, 0.2 / (2 * np.pi), 0.5], atol=1e-12)
    assert [t for t in turns if t in (0.0, 0.5)] == [0.0, 0.5]


def test_small_and_large_matrices_are_told_at_48_rows():
    rng = np.random.default_rng(0)
    for n in (48, 49):
        circles = Circles(np.triu(rng.uniform(-0.01, 0.01, (n, n))) + 0j, False)
        assert circles.clear(1.0, 0.1)
        assert (circles._basis is None) == (n == 48)
    far = _from_inverse(np.diag([1.0, 2.0]) + 0j, -1000.0)  # a distance of more than ten is one too
    assert far == pytest.approx(1 / np.hypot(1 / 1001, 1 / 1002))
    assert _from_inverse(np.diag([1.0, 2.0]) + 0j, 2.0) == 0.0


def test_equal_forms_are_compared_by_identity():
    A = np.array([[0.5, 1.0], [0.0, 0.25]])
    form = schur_form(A)
    assert form == form
    assert form != schur_form(A)
    assert form.basis != schur_form(A).basis
    assert len({form, schur_form(A)}) == 2


def test_couplings_that_are_odd_and_entries_that_are_too_large():
    assert analyze(np.array([[1e150]])).case == "divergent"
    with pytest.raises(ValueError, match="below 1e150"):
        analyze(np.array([[1.0000001e150]]))
    for noise in (0.0, 1.0 - 1e-9):
        assert analyze(np.array([[0.1]]), noise).noise >= noise


def test_logarithms_in_units_of_the_largest():
    with pytest.raises(ValueError, match="no logarithm"):
        logarithm(np.diag([100.0, 9e-11]), 1.0)
    assert_allclose(np.diag(logarithm(np.diag([100.0, 1.1e-10]), 1.0)), np.log([100.0, 1.1e-10]))
    turning = 1e-7 * np.array([[-1.0, -1e-10], [1e-10, -1.0]])  # next to the negative half-axis, and not on it
    assert np.isrealobj(logarithm(turning, 1.0))
    on = 1e-7 * np.array([[-1.0, 0.0], [0.0, 1.0]])
    assert np.iscomplexobj(logarithm(on, 1.0))


def test_centres_that_are_too_close_for_a_distance():
    assert Nystrom(2).fit(np.array([[0.0], [1e-200]])).bandwidth_ == 1.0


def test_where_delays_keep_the_state():
    z = np.arange(12.0).reshape(6, 2)
    assert Delays(2).fit(np.hstack([z, z, z])).state_columns_.tolist() == [0, 1, 2, 3, 4, 5]
    assert Delays(1, Monomials(1)).fit(z).state_columns_.tolist() == [1, 2]
    assert getattr(Delays(1, lambda w: w**2).fit(z), "state_columns_", None) is None
    for bad in (0, 1.5, True):
        with pytest.raises(ValueError, match="whole number"):
            assert Delays(bad).history
    assert Delays(1).history == 1
    assert Delays(2.0, stride=3).history == 6
    assert Delays(2).windows(np.arange(3.0)[:, None]).tolist() == [[2, 1, 0]]
    with pytest.raises(ValueError, match="longer than that"):
        Delays(3).windows(np.arange(3.0)[:, None])


def test_directions_that_hardly_move():
    """A billionth of the variance is the least that counts."""
    t = np.linspace(-1, 1, 41)
    for share, count in ((0.97e-9, 1), (1.03e-9, 2)):
        small = np.sqrt(share / (1 - share)) * np.abs(t) / np.linalg.norm(np.abs(t) - np.abs(t).mean())
        z = np.c_[t, small * np.linalg.norm(t)]
        assert exponentials._prepared([z])[0][0].shape == (41, count)
    wrong = exponentials._foretold([np.full((20, 1), np.nan)], TERMS, 1.0)
    assert wrong == (np.inf, 0.0)


def test_more_eigenvalues_than_arnoldi_has_room_for(monkeypatch):
    """Six vectors for each eigenvalue: a chain with fewer states is asked densely, however many are wanted."""
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(13), 13)
    pi = markov.stationary_law(csr_matrix(P))
    exact = np.sort(np.abs(np.linalg.eigvals(P)))[::-1]
    monkeypatch.setattr(markov, "DENSE", 2)
    for count in (2, 3, 12):
        assert_allclose(np.sort(np.abs(markov.leading(csr_matrix(P), pi, 1, count)))[::-1], exact[:count], atol=1e-9)


def test_pairs_that_vanish_have_no_residual():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 2))
    s = EDMD(Identity()).fit((X, 0.5 * X)).solution_
    assert s.residuals(np.array([0.5, 0.25]), np.array([[0.0, 1.0], [0.0, 0.0]])).tolist() == pytest.approx([0, 0.25])
    assert s.misfit(np.zeros((2, 1)), np.zeros((1, 1))) == 0.0


def test_inputs_of_another_shape_are_refused():
    z = np.ones((3, 2))
    for u in (np.ones((2, 1)), np.ones((3, 1, 1)), np.ones((2, 2, 2))):
        with pytest.raises(ValueError, match="give one vector, or 3 rows"):
            held_inputs(u, "one", [z])
    for u in (np.ones((3, 1, 1)), np.ones((5, 1)), np.ones((1, 1))):
        with pytest.raises(ValueError, match="need 2 rows of control"):
            controls(u, "one", [z])
    with pytest.raises(ValueError, match="need 2 inputs; got 1"):
        held_inputs([1.0], "many", [z, z])
    with pytest.raises(ValueError, match="need 2 controls; got 1"):
        controls([np.ones(3)], "many", [z, z])
    assert controls(np.ones(3), "one", [z])[0].shape == (2, 1)
    assert held_inputs(2.0, "one", [z])[0].tolist() == [[2.0]] * 3
    assert held_inputs(np.arange(3.0)[:, None], "pairs", [z, z])[1].tolist() == [[0], [1], [2]]
    with pytest.raises(ValueError, match="of equal shape"):
        layout((z, z, z))
    with pytest.raises(ValueError, match="of equal shape"):
        layout((z, z[:2]))
    with pytest.raises(ValueError, match="equal shapes"):
        layout(z, np.ones((2, 2)))
    assert layout(z, np.ones((3, 5)))[0] == "one"  # a target of its own width
    with pytest.raises(ValueError, match="Complex"):
        layout(z, 1j * np.ones(3))


def test_boxes_where_ten_samples_each_decide():
    assert [default_sides(m, 1, False) for m in (100, 150, 160, 170)] == [10, 15, 16, 17]
    assert default_sides(600, 2, False) == 8


def test_a_missing_sample_is_a_gap_and_an_even_clock_may_be_off():
    found = regular(np.array([0.0, 1.0, 3.0, 4.0]), np.arange(4.0))
    assert [p[:, 0].tolist() for p in found.pieces] == [[0, 1], [2, 3]]
    assert found.said == ("1 gaps; no pair is formed across one",)
    for size, off, even in ((100, 0.019, True), (100, 0.0215, False), (400, 0.039, True), (400, 0.0415, False)):
        t = np.arange(float(size))
        t[size // 2] += off
        assert (regular(t, t, dt=1.0).said == ()) == even


def test_noise_counts_from_the_threshold_on():
    s = np.array([2.0, 1.0, 0.5])
    edge = np.polyval([0.56, -0.95, 1.82, 1.43], 0.25)
    assert above_noise(s * np.array([edge / 2, 1, 1]), 0.25) == 1
    assert above_noise(np.array([9.0, edge, 1.0, 0.5, 0.5]), 0.25) == 1  # not above it
    assert above_noise(np.array([9.0, 1e-3]), 0.25) == 1


def test_a_constant_observable_is_found_whatever_its_size():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((40, 1))
    for size in (1.0, -3.0, 1e-5):
        model = EDMD(lambda z, size=size: np.c_[np.full(len(z), size), z, 0 * z]).fit((X, 0.5 * X))
        assert without_constant(model).shape == (1, 2)
        assert model.verdict().case == "origin"
    alone = EDMD(lambda z: np.ones((len(z), 1))).fit((X, X))
    assert without_constant(alone).shape == (0, 1)


def test_projectors_of_complex_matrices_are_complex():
    v = analyze(np.diag([np.exp(0.5j), 0.2]))
    (p,) = v.projectors
    assert np.iscomplexobj(p.matrix)
    assert_allclose(p.matrix, np.diag([1.0, 0.0]), atol=1e-12)
    (r,) = analyze(np.diag([1.0, 0.2])).projectors
    assert np.isrealobj(r.matrix)
    assert_allclose(r.matrix, np.diag([1.0, 0.0]), atol=1e-12)


def test_a_cluster_at_its_own_threshold():
    """Three errors off the circle is not clear of it; the error itself may be five thousandths."""
    d = 2.0**-9
    one = np.eye(1, dtype=complex)
    block = replace(extract(schur_form(np.diag([1.0, 0.0])), (0,)), V=one, W=one)
    assert classify(replace(block, B=one * (1 - 3 * d), separation=np.inf), d, True).kind != "inside"
    assert classify(replace(block, B=one * (1 - 3.001 * d), separation=np.inf), d, True).kind == "inside"
    assert classify(replace(block, B=one, separation=np.inf), 5e-3, True).kind == "fixed"
    assert classify(replace(block, B=one, separation=np.inf), 5.001e-3, True).kind == "unclear"


def test_control_of_forecasts_from_along_a_run():
    """z' = 0.5 z + u, u of its own at each step: every forecast from every start is right."""
    rng = np.random.default_rng(0)
    u = rng.uniform(-1, 1, (30, 1))
    z = np.zeros((31, 1))
    for l in range(30):
        z[l + 1] = 0.5 * z[l] + u[l]
    model = EDMD(Identity()).fit(z, control=u)
    for given in (u, u[:, 0], np.r_[u, [[9.0]]]):
        found = model.forecast_errors(z, 4, control=given)
        assert found.shape == (5, 1)
        assert_allclose(found, 0, atol=1e-9)
    delayed = EDMD(Delays(1)).fit(z, control=u)
    assert_allclose(delayed.forecast_errors(z, 3, control=u), 0, atol=1e-8)


def test_the_angle_of_a_rotation_is_free():
    """Of what is asked along the circle nothing is done: E is the part of D along the radius, over |V W| of one."""
    mu = np.exp(0.7j)
    one = np.eye(1, dtype=complex)
    D = 0.1 * mu * (1 + 0.5j) * one
    assert_allclose(smallest([Condition(one, one, D, 1j * mu * one)]), 0.1 * mu * one, atol=1e-15)
    assert_allclose(smallest([Condition(one, one, D, 0 * one)]), D, atol=1e-15)
    V, W = np.eye(2, dtype=complex)[:, :1], np.eye(2, dtype=complex)[1:]
    both = [Condition(V, V.T, D, 1j * mu * one), Condition(W.T, W, D, 0 * one)]
    assert_allclose(smallest(both), np.diag([0.1 * mu, D[0, 0]]), atol=1e-15)
    assert not np.isfinite(smallest([both[0], both[0]])).any()


def test_an_eigenvalue_that_is_elsewhere_by_its_own_error():
    """P = V W is thirty long in one direction only: the other eigenvalue is known thirty times better."""
    d = 1e-6
    V = np.eye(3, 2, dtype=complex)
    W = np.array([[1.0, 0, 0], [0, 1.0, 30.0]], complex)
    for off, kind in ((1.9, "fixed"), (2.1, "unclear"), (5.0, "unclear")):
        block = Block((0, 1), V, W, np.diag([1 + off * d, 1.0]) + 0j, float(np.linalg.norm(W, 2)), np.inf)
        found = classify(block, d, True)
        assert found.kind == kind
        assert ("further from it than its own error" in found.reason) == (kind == "unclear")
        other = Block((0, 1), V, W, np.diag([1.0, 1 + off * d]) + 0j, float(np.linalg.norm(W, 2)), np.inf)
        assert classify(other, d, True).kind == "fixed"


def test_the_largest_class_comes_first():
    P = block_diag(1.0, [[0.5, 0.5], [0.5, 0.5]], np.roll(np.eye(3), 1, axis=1))
    found = markov.markov_chain(P)
    assert [c.tolist() for c in found.classes] == [[3, 4, 5], [1, 2], [0]]
    assert found.periods == (3, 1, 1)
    assert [len(w) for w in found.spectra] == [3, 2, 1]
    assert_allclose(found.mixing_rates, [1, 0, 0], atol=1e-12)


D = 2.0**-10


def cluster(B):
    one = np.eye(len(B), dtype=complex)
    return Block(tuple(range(len(B))), one, one, np.asarray(B, complex), 1.0, np.inf)


def test_clusters_exactly_at_an_error():
    """One error off the circle is on it, three of angle may be none, three apart are not resolved, two are here."""
    assert classify(cluster([[1 - D]]), D, True, snap=1.0).kind == "fixed"
    assert classify(cluster([[-1 + D]]), D, True, snap=1.0).kind == "flipping"
    assert classify(cluster([[1 - D * (1 + 2.0**-30)]]), D, True, snap=1.0).kind == "unclear"
    assert classify(cluster([[1 + 3j * D]]), D, False, snap=1.0).kind == "unclear"
    assert classify(cluster([[1 + 3j * D]]), D, True, snap=1.0).kind == "rotating"
    assert classify(cluster([[1 + 3.001j * D]]), D, False, snap=1.0).kind == "rotating"
    assert not resolved(cluster(np.diag([0, 6 * D])), D)
    assert resolved(cluster(np.diag([0, 6.001 * D])), D)
    assert not elsewhere(cluster(np.diag([0, 2 * D])), 0.0, D)
    assert elsewhere(cluster(np.diag([0, 2.001 * D])), 0.0, D)
    N = block_diag(np.eye(2, k=1), 2 * D * np.eye(2, k=1)).astype(complex)
    assert jordan_sizes(N, D, 2) == (2,)  # a coupling of two errors is none
    form = schur_form(np.diag([0.0, 4.5 * D, 1.0]))
    assert isolate(form, D, (0,)).indices == (0, 1)  # 4.5 errors apart are joined
    assert isolate(form, D * (1 - 2.0**-30), (0,)).indices == (0,)


def test_a_circle_through_what_eigenvectors_tell():
    basis = replace(eigenbasis(np.zeros((1, 1), complex)), slack=0.0, norms=np.ones(1))
    assert not basis.clear_of_circle(1.0, 1.0, 2 * np.pi)
    assert basis.clear_of_circle(1.0, 1.0 - 2.0**-30, 2 * np.pi)
    assert not Circles(np.zeros((1, 1), complex), False).clear(1.0, 1.0)
    assert Circles(np.zeros((1, 1), complex), False).clear(1.0, 1.0 - 2.0**-30)


def test_a_witness_exactly_as_far_as_it_may_be(monkeypatch):
    form = schur_form(np.diag([1.0, 0.5, 0.25, 0.1]))
    given = Evidence(form, [finding()], [], False, Noise(0.5, "", True, False), 0.5, 0.0)
    far = 0.5 * (1 / (1 - 0.5) + ROUNDING * 4 / 0.5)
    for distance, case in ((far, "fixed-point"), (np.nextafter(far, 2), "undecided")):
        monkeypatch.setattr("koopsim.spectral.assembly.nearest", lambda *_, distance=distance: distance)
        assert decided(given)[0] == case


def test_the_first_jordan_block_that_is_near_enough(monkeypatch):
    """Half of the noise is near enough: no other block is looked at."""
    form = schur_form(np.diag([1.0, 0.5]))
    two = [replace(finding("defective"), reason=str(k)) for k in range(3)]
    for first, best in ((0.25, 0.25), (0.26, 0.0)):
        far = iter((first, 0.0, 9.0))
        monkeypatch.setattr("koopsim.spectral.assembly.jordan_distance", lambda *_, far=far: next(far))
        assert nearest(Evidence(form, two, [], False, Noise(0.5, "", True, False), 0.5, 0.0), "divergent") == best
    assert nearest(Evidence(form, [], [], False, Noise(0.5, "", True, False), 0.5, 0.0), "divergent") == np.inf
    quiet = Evidence(form, [], [], False, Noise(0.5, "", True, False), 0.5, 3.0)
    assert nearest(quiet, "origin") == 3.0  # what was dropped to make it normal


def test_rotations_that_are_real():
    """Of a torus with 1 and -1 in it both are told, of a pair the one above the axis."""
    form = schur_form(np.diag([1.0, -1.0]))
    block = extract(form, (0, 1))
    found = _rotations(Finding(block, "torus", 1 + 0j, 0.1, ""), form)
    assert sorted(r.angle for r in found) == [0, np.pi]
    assert [len(r.indices) for r in found] == [1, 1]
    turn = schur_form(np.array([[0.0, -1.0], [1.0, 0.0]]))
    (r,) = _rotations(Finding(extract(turn, (0, 1)), "torus", 1 + 0j, 0.1, ""), turn)
    assert r.angle == pytest.approx(np.pi / 2)
    assert sorted(r.indices) == [0, 1]


def test_how_far_a_torus_is_from_the_circle():
    """The furthest of its moduli; of one eigenvalue how far it is from what it is taken for."""
    form = schur_form(np.diag([1.5j, -0.75, 0.1]))
    some = extract(form, tuple(int(i) for i in np.flatnonzero(np.abs(form.eigenvalues) > 0.5)))
    found = _snap(Finding(some, "torus", 1 + 0j, 0.1, ""), form)
    assert found.distance == 0.5
    assert found.eigenvalue == pytest.approx((1.5j - 0.75) / 2)
    assert found.error == 0.1
    assert _snap(Finding(some, "fixed", 1 + 0j, 0.1, ""), form).distance == pytest.approx(abs((1.5j - 0.75) / 2 - 1))
