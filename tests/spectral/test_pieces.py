"""The theorems the verdict stands on, each against a slow twin."""

from fractions import Fraction

import data_cases
import matrix_cases
import numpy as np
import pytest
from independent_witness import right_up_to_noise
from scipy.linalg import block_diag

from koopsim.spectral import EDMD, analyze
from koopsim.spectral.clusters import extract, isolate, reordered, schur_form
from koopsim.spectral.eigenbasis import eigenbasis
from koopsim.spectral.exponentials import fit_exponentials
from koopsim.spectral.invariant_density import default_sides
from koopsim.spectral.jordan import blocks_of_at_least, commuting, nilpotent
from koopsim.spectral.mean_embedding import median_distance
from koopsim.spectral.noise import balanced, could_be_float32, effective_noise
from koopsim.spectral.powers import period_of, phase, scaled_power, turns_of
from koopsim.spectral.resolvent import (
    Allowance,
    Circles,
    clear_of_circle,
    singular_value_at_most,
    smallest_singular_values,
)
from koopsim.spectral.separation import separation
from koopsim.spectral.snapshots import above_noise
from koopsim.spectral.structure import jordan_sizes, nilpotency
from koopsim.spectral.witness import Condition, smallest


@pytest.mark.parametrize("real", [True, False])
def test_projector_splits_the_matrix(real):
    rng = np.random.default_rng(1)
    A = rng.standard_normal((7, 7)) + (0 if real else 1j * rng.standard_normal((7, 7)))
    form = schur_form(A)
    T, Q = form.T, form.Q
    np.testing.assert_allclose(Q @ T @ Q.conj().T, A, atol=1e-12)
    block = extract(form, (1, 3, 4))
    P = block.V @ block.W
    np.testing.assert_allclose(block.W @ block.V, np.eye(3), atol=1e-10)
    np.testing.assert_allclose(P @ A, A @ P, atol=1e-9)
    np.testing.assert_allclose(P @ P, P, atol=1e-9)
    assert block.norm == pytest.approx(np.linalg.norm(P, 2))
    np.testing.assert_allclose(np.sort(np.diag(block.B)), np.sort(np.diag(T)[[1, 3, 4]]), atol=1e-10)


@pytest.mark.parametrize("k", [1, 4, 12])
@pytest.mark.parametrize("coupling", [0.05, 1.0])
def test_separation_is_a_lower_bound(k, coupling, monkeypatch):
    """Never more than the Kronecker matrix says, and not much less where the cluster is tight."""
    rng = np.random.default_rng(2)
    A = np.triu(rng.standard_normal((30, 30)) + 1j * rng.standard_normal((30, 30)))
    A[:k, :k] = 0.3 * np.eye(k) + coupling * np.triu(A[:k, :k], 1)
    T11, T22 = A[:k, :k], 0.1 * A[k:, k:] + 2 * np.eye(30 - k)
    operator = np.kron(np.eye(30 - k), T11) - np.kron(T22.T, np.eye(k))
    slow = np.linalg.svd(operator, compute_uv=False)[-1]
    assert separation(T11, T22) <= slow * (1 + 1e-9)
    monkeypatch.setattr("koopsim.spectral.separation.WRITTEN_OUT", 0)
    for dense in (48, 5):  # s_i by SVD, and by the Frobenius norm of an inverse
        monkeypatch.setattr("koopsim.spectral.resolvent.DENSE", dense)
        bound = separation(T11, T22)
        assert bound <= slow * (1 + 1e-9)
        if coupling < 1:
            assert bound > slow / 12
    assert separation(T11, T22, Allowance(0.0)) == 0.0


@pytest.mark.parametrize("coupling", [0.0, 0.3, 3.0])
def test_large_circles_are_cleared_by_proof_only(coupling, monkeypatch):
    """Eigenvectors, and inverses where they do not serve: never clear above the true distance, often just below."""
    monkeypatch.setattr("koopsim.spectral.resolvent.DENSE", 5)
    rng = np.random.default_rng(5)
    n = 30
    T = np.triu(coupling * (rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))) / np.sqrt(n), 1)
    T = T + np.diag(0.8 * rng.uniform(0, 1, n) * np.exp(2j * np.pi * rng.uniform(0, 1, n)))
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 4001))
    distance = min(np.linalg.svd(T - z * np.eye(n), compute_uv=False)[-1] for z in circle)
    basis = eigenbasis(T)
    for share in (1.01, 1.5, 10):
        assert not Circles(T, False).clear(1.0, share * distance)
        assert not basis.clear_of_circle(1.0, share * distance, 2 * np.pi)
    assert Circles(T, False).clear(1.0, distance / 8)
    assert Circles(T, False).clear(1.0, distance / 300)
    assert not Circles(T, False, Allowance(0.0))._large(1.0, distance / 300)
    assert Circles(T, False)._large(1.0, distance / 12)


def test_the_bound_by_eigenvectors_is_one():
    rng = np.random.default_rng(6)
    T = np.triu(0.2 * rng.standard_normal((40, 40)) + 0.2j * rng.standard_normal((40, 40)))
    T[np.diag_indices(40)] *= 5
    basis = eigenbasis(T)
    np.testing.assert_allclose(T @ basis.X, basis.X * np.diag(T), atol=1e-9)
    np.testing.assert_allclose(basis.Y @ basis.X, np.eye(40), atol=1e-6)
    assert basis.slack < 1e-3
    for z in (0.1, 1j, 3 - 2j):
        bound = np.sum(basis.norms / np.abs(np.diag(T) - z))
        assert np.linalg.norm(np.linalg.inv(T - z * np.eye(40)), 2) <= bound
    jordan = eigenbasis(np.eye(60) + np.eye(60, k=1) + 0j)
    assert jordan.slack == np.inf
    assert not jordan.clear_of_circle(3.0, 1e-9, 2 * np.pi)


def test_inverse_iteration_agrees_with_the_svd():
    rng = np.random.default_rng(3)
    T = np.triu(rng.standard_normal((20, 20)) + 1j * rng.standard_normal((20, 20)))
    for z in (0.3 + 0.1j, 2.0, -1j):
        exact = smallest_singular_values(T, np.array([z]))[0]
        assert exact * (1 - 1e-9) <= singular_value_at_most(T, z, 12) <= 1.05 * exact


def test_circle_is_clear_exactly_when_no_small_perturbation_reaches_it():
    T = np.array([[0.9, 5.0], [0, 0.9]], dtype=complex)
    distance = min(np.linalg.svd(T - z * np.eye(2))[1][-1] for z in np.exp(1j * np.linspace(0, 2 * np.pi, 20001)))
    assert clear_of_circle(T, 1.0, 0.98 * distance)
    assert not clear_of_circle(T, 1.0, 1.02 * distance)


def test_halves_of_a_jordan_block_stay_together():
    rng = np.random.default_rng(4)
    J = block_diag(np.eye(2) + np.eye(2, k=1), 0.3, -0.5)
    A = J + 1e-8 * rng.standard_normal((4, 4))
    form = schur_form(A)
    seed = int(np.argmax(np.abs(form.eigenvalues)))
    block = isolate(form, 4e-8, (seed,))
    assert len(block.indices) == 2
    assert block.mean == pytest.approx(1, abs=1e-7)


def test_jordan_sizes_from_ranks():
    N = block_diag(np.eye(3, k=1), np.eye(2, k=1), np.zeros((1, 1))).astype(complex)
    assert nilpotency(N, 1e-10) == 3
    assert jordan_sizes(N, 1e-10, 3) == (3, 2)
    assert nilpotency(np.eye(2, dtype=complex), 1e-10) is None


def test_phases_are_exact_for_simple_fractions():
    assert turns_of(1j) == 0.25
    assert phase(turns_of(-1 + 0j) * (10**18 + 1)) == -1
    assert phase(turns_of(complex(np.exp(2j * np.pi / 3))) * 3 * 10**17) == 1
    assert period_of([turns_of(-1 + 0j), turns_of(complex(np.exp(2j * np.pi / 3)))]) == 6
    assert period_of([turns_of(complex(np.exp(0.7j)))]) is None
    assert turns_of(complex(np.exp(2j * np.pi * 137 / 1009))).denominator == 1009
    assert turns_of(complex(np.exp(2j * np.pi * (137 / 1009 + 1e-9)))).denominator > 10**6
    assert turns_of(complex(np.exp(2j * np.pi * (1 / 3 + 1e-9))), 1e-7).denominator == 3


def test_scaled_power():
    B = np.array([[1.5, 1], [0, 0.5]], dtype=complex)
    M, s = scaled_power(B, 11)
    np.testing.assert_allclose(M * np.exp(s), np.linalg.matrix_power(B, 11))
    assert not np.any(scaled_power(0.5 * np.eye(2, dtype=complex), 10**18)[0])


def test_default_noise():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((3, 3))
    assert not could_be_float32(A)
    assert could_be_float32(A.astype(np.float32).astype(np.float64))
    assert not could_be_float32(np.array([[1.0, 0.5], [3, -7.25]]))
    assert effective_noise(A, 1e-30).level == effective_noise(A, None).level
    assert effective_noise(A.astype(np.float32), None).level == 2 * np.finfo(np.float32).eps


@pytest.mark.parametrize("n", [3, 20])
def test_balancing_undoes_gradings_exactly(n):
    rng = np.random.default_rng(n)
    A = rng.standard_normal((n, n))
    D = 2.0 ** rng.integers(-30, 30, n)
    graded = A * D / D[:, None]
    found, units = balanced(graded)
    np.testing.assert_array_equal(found * units[:, None] / units, graded)
    assert np.linalg.norm(found) < 8 * np.linalg.norm(A)
    assert np.all(np.log2(units) % 1 == 0)
    same, ones = balanced(A)
    assert same is A
    assert np.all(ones == 1)
    one_way, _ = balanced(np.array([[0.5, 1e9], [0, 0.25]]))
    assert np.linalg.norm(one_way) < 2


def test_nilpotent_next_to_a_perturbed_one():
    rng = np.random.default_rng(9)
    for sizes in ((2,), (3,), (4,), (3, 2), (2, 2)):
        k = sum(sizes) + 1
        S = np.linalg.qr(rng.standard_normal((k, k)))[0]
        J = S @ block_diag(*(np.eye(s, k=1) for s in sizes), np.zeros((1, 1))) @ S.T
        E = rng.standard_normal((k, k))
        noisy = J + 1e-9 * E / np.linalg.norm(E)
        N = nilpotent(noisy, blocks_of_at_least(sizes, k))
        assert np.linalg.norm(np.linalg.matrix_power(N, max(sizes))) < 1e-14
        assert np.linalg.norm(np.linalg.matrix_power(N, max(sizes) - 1)) > 0.1
        assert np.linalg.norm(N - noisy) < 3e-9
        found = commuting(N, blocks_of_at_least(sizes, k))
        assert all(np.linalg.norm(G @ N - N @ G) < 1e-9 for G in found)
        assert np.linalg.matrix_rank(np.array([G.ravel() for G in found]), 1e-8) == len(found) - 1


def judged(cases, most_undecided):
    """No certain answer wrong, no decidable case wrong, few of them undecided; and others right up to the noise."""
    undecided = decidable = 0
    for case in cases:
        verdict = analyze(case.A, noise=case.noise or None)
        if verdict.case not in (case.truth, "undecided"):
            assert not verdict.certain, (case.truth, str(verdict))
            assert case.ambiguous, (case.truth, str(verdict))
            assert case.noise, (case.truth, str(verdict))
            assert right_up_to_noise(case.A, verdict)[0], (case.truth, str(verdict))
        undecided += not case.ambiguous and verdict.case == "undecided"
        decidable += not case.ambiguous
    assert undecided <= most_undecided * decidable


def test_random_structures():
    judged((matrix_cases.random_case(np.random.default_rng([7, i])) for i in range(150)), 0.03)


def test_near_misses():
    rng = np.random.default_rng(8)
    judged((matrix_cases.random_case(rng, matrix_cases.near_miss_blocks, (0.0, 1e-12)) for _ in range(150)), 0.03)


def test_crowds():
    rng = np.random.default_rng(9)
    cases = [matrix_cases.large_case(rng) for _ in range(25)]
    for case in cases:
        verdict = analyze(case.A, noise=case.noise or None)
        assert not verdict.certain or verdict.case == case.truth
        assert case.ambiguous or verdict.case in (case.truth, "undecided")


def test_exact_rational_matrices():
    judged(matrix_cases.exact_cases(np.random.default_rng(3), 25), 0.08)


@pytest.mark.slow
def test_larger_study():
    rng = np.random.default_rng(11)
    judged((matrix_cases.random_case(rng) for _ in range(4000)), 0.02)


def test_data_of_known_systems():
    """A few of each family of the study in benchmarks/spectral_verdicts.py."""
    for family in data_cases.FAMILIES:
        for i in range(6):
            case = family(np.random.default_rng([12, i]))
            verdict = EDMD(case.dictionary).fit(case.data).verdict()
            allowed = case.allowed or {case.truth, "undecided"}
            assert verdict.case in allowed, (case.kind, case.truth, str(verdict))


def test_a_false_claim_has_no_witness():
    from dataclasses import replace

    verdict = analyze(np.diag([1 - 1e-6, 0.3]), noise=1e-4)
    ok, distance = right_up_to_noise(np.diag([1 - 1e-6, 0.3]), verdict)
    assert ok
    assert distance == pytest.approx(verdict.distance / verdict.noise, rel=1e-6)
    assert not right_up_to_noise(np.diag([1 - 1e-6, 0.3]), replace(verdict, noise=1e-8))[0]


def test_one_eigenvalue_of_a_large_matrix():
    rng = np.random.default_rng(0)
    A = 0.1 * rng.standard_normal((60, 60))
    A[0] *= 20
    form = schur_form(A)
    for i in range(0, 60, 7):
        slow, fast = reordered(form, (i,)), extract(form, (i,))
        np.testing.assert_allclose(fast.V @ fast.W, slow.V @ slow.W, atol=1e-12)
        assert fast.norm == pytest.approx(slow.norm)
        assert 0 < fast.separation < 10 * slow.separation


def test_smallest_witness_against_least_squares():
    rng = np.random.default_rng(2)
    A = rng.standard_normal((6, 6))
    form = schur_form(A)
    blocks = [extract(form, (0,)), extract(form, (2, 3))]
    conditions = [Condition(b.V, b.W, 1e-3 * np.ones_like(b.B), np.zeros_like(b.B)) for b in blocks]
    E = smallest(conditions)
    rows = np.vstack([np.kron(c.W, c.V.T) for c in conditions])
    twin = np.linalg.lstsq(rows, np.concatenate([c.D.ravel() for c in conditions]), rcond=None)[0]
    np.testing.assert_allclose(E.ravel(), twin, atol=1e-10)


def test_boxes_a_coordinate_by_the_rule():
    """3 m^(1/(d+2)), at least ten samples a box; m^0.6 where the law is deterministic; two at least."""
    for m, d, boxes in ((1000, 1, 30), (100, 1, 10), (110, 1, 11), (1210, 2, 11), (100_000, 2, 53), (5, 3, 2)):
        assert default_sides(m, d, False) == boxes
    assert [default_sides(m, 1, True) for m in (2, 1000, 32)] == [2, 63, 8]


def test_the_median_distance_of_samples():
    line = np.array([[0.0], [1.0], [3.0]])
    assert median_distance(line) == 2.0
    assert median_distance(np.zeros((4, 2))) == 1.0  # nothing to tell
    assert median_distance(line[:1]) == 1.0
    many = np.arange(5000.0)[:, None]
    assert median_distance(many, most=400) == pytest.approx(5000 * (1 - np.sqrt(0.5)), rel=0.1)
    assert median_distance(many, 1, 50) != median_distance(many, 2, 50)


def test_singular_values_above_noise_by_the_published_threshold():
    """Gavish and Donoho (2014), table IV: 2.858 medians of a square matrix, about 2.17 of one with aspect 0.5."""
    for aspect, threshold in ((1.0, 2.858), (0.5, 2.172), (0.1, 1.605)):
        rest = np.ones(9)
        assert above_noise(np.array([1.005 * threshold, *rest]), aspect) == 1
        assert above_noise(np.array([9.0, 1.01 * threshold, *rest]), aspect) == 2
        assert above_noise(np.array([9.0, 0.98 * threshold, *rest]), aspect) == 1
    assert above_noise(np.ones(5), 1.0) == 1
    assert above_noise(np.ones(1), 1.0) == 1


def test_angles_that_are_simple_fractions_of_a_turn():
    for p, q in ((1, 3), (2, 7), (-5, 12)):
        mu = np.exp(2j * np.pi * p / q)
        assert turns_of(mu) == Fraction(p, q)
        assert turns_of(mu * np.exp(1e-7j), 2e-7) == Fraction(p, q)  # within the error
        assert turns_of(mu * np.exp(1e-7j), 5e-8) != Fraction(p, q)


def test_exponentials_say_their_eigenvalues_and_errors():
    """A damped rotation and a decay that changes sign, without noise: growth and angle a step, to many digits."""
    t = np.arange(80)[:, None]
    runs = [np.hstack([a * 0.97**t * np.cos(0.4 * t + b), a * 0.97**t * np.sin(0.4 * t + b), b * (-0.9) ** t + 1.0])
            for a, b in ((1.0, 0.3), (2.0, 1.1), (0.5, 2.0))]  # fmt: skip
    found = fit_exponentials(runs)
    assert found is not None
    w = found.eigenvalues
    near = lambda mu: float(np.min(np.abs(w - mu)))  # noqa: E731
    assert min(near(0.97 * np.exp(0.4j)), near(0.97 * np.exp(-0.4j))) < 1e-8
    assert near(-0.9) < 1e-8
    assert found.noise < 1e-8
    assert found.explained == pytest.approx(1.0, abs=1e-6)
    assert found.length == 80
    assert np.abs(found.drift).max() < 1e-6
