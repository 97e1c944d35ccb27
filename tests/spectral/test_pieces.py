"""The theorems the verdict stands on, each against a slow twin."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import block_diag

from koopsim.spectral.clusters import extract, isolate, reordered, schur_form
from koopsim.spectral.noise import effective_noise, looks_like_float32
from koopsim.spectral.powers import period_of, phase, scaled_power, turns_of
from koopsim.spectral.resolvent import _inverse_iteration, clear_of_circle, smallest_singular_values
from koopsim.spectral.separation import _by_rows as by_rows
from koopsim.spectral.separation import separation
from koopsim.spectral.structure import jordan_sizes, nilpotency
from koopsim.spectral.witness import Condition, smallest

BENCH = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("spectral_verdicts")


@pytest.mark.parametrize("real", [True, False])
def test_projector_splits_the_matrix(real):
    rng = np.random.default_rng(1)
    A = rng.standard_normal((7, 7)) + (0 if real else 1j * rng.standard_normal((7, 7)))
    T, Q, _ = schur_form(A)
    np.testing.assert_allclose(Q @ T @ Q.conj().T, A, atol=1e-12)
    block = extract(T, Q, (1, 3, 4))
    P = block.V @ block.W
    np.testing.assert_allclose(block.W @ block.V, np.eye(3), atol=1e-10)
    np.testing.assert_allclose(P @ A, A @ P, atol=1e-9)
    np.testing.assert_allclose(P @ P, P, atol=1e-9)
    assert block.norm == pytest.approx(np.linalg.norm(P, 2))
    np.testing.assert_allclose(np.sort(np.diag(block.B)), np.sort(np.diag(T)[[1, 3, 4]]), atol=1e-10)


def test_separation_agrees_with_the_kronecker_matrix():
    rng = np.random.default_rng(2)
    A = np.triu(rng.standard_normal((30, 30)) + 1j * rng.standard_normal((30, 30)))
    for k in (1, 4):
        T11, T22 = A[:k, :k], A[k:, k:]
        operator = np.kron(np.eye(30 - k), T11) - np.kron(T22.T, np.eye(k))
        slow = np.linalg.svd(operator, compute_uv=False)[-1]
        assert slow * (1 - 1e-6) <= separation(T11, T22) <= 1.1 * slow


def test_inverse_iteration_agrees_with_the_svd():
    rng = np.random.default_rng(3)
    T = np.triu(rng.standard_normal((20, 20)) + 1j * rng.standard_normal((20, 20)))
    for z in (0.3 + 0.1j, 2.0, -1j):
        exact = smallest_singular_values(T, np.array([z]))[0]
        assert _inverse_iteration(T, z) == pytest.approx(exact, rel=0.05)


def test_circle_is_clear_exactly_when_no_small_perturbation_reaches_it():
    T = np.array([[0.9, 5.0], [0, 0.9]], dtype=complex)
    distance = min(np.linalg.svd(T - z * np.eye(2))[1][-1] for z in np.exp(1j * np.linspace(0, 2 * np.pi, 20001)))
    assert clear_of_circle(T, 1.0, 0.98 * distance)
    assert not clear_of_circle(T, 1.0, 1.02 * distance)


def test_halves_of_a_jordan_block_stay_together():
    rng = np.random.default_rng(4)
    J = block_diag(np.eye(2) + np.eye(2, k=1), 0.3, -0.5)
    A = J + 1e-8 * rng.standard_normal((4, 4))
    T, Q, conjugate = schur_form(A)
    seed = int(np.argmax(np.abs(np.diag(T))))
    block = isolate(T, Q, 4e-8, (seed,), conjugate)
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


def test_scaled_power():
    B = np.array([[1.5, 1], [0, 0.5]], dtype=complex)
    M, s = scaled_power(B, 11)
    np.testing.assert_allclose(M * np.exp(s), np.linalg.matrix_power(B, 11))
    assert not np.any(scaled_power(0.5 * np.eye(2, dtype=complex), 10**18)[0])


def test_default_noise():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((3, 3))
    assert not looks_like_float32(A)
    assert looks_like_float32(A.astype(np.float32).astype(np.float64))
    assert not looks_like_float32(np.array([[1.0, 0.5], [3, -7.25]]))
    assert effective_noise(A, 1e-30)[0] == effective_noise(A, None)[0]


def nothing_wrong(result, undecided):
    assert not result["wrong up to the noise"]
    assert not result["wrong against the generating matrix where no noise was declared"]
    shares = result["shares"]
    assert shares["decidable"]["generating"]["wrong"] == shares["all"]["strict"]["wrong"] == 0
    assert shares["decidable"]["generating"]["undecided"] <= undecided


def test_study_finds_nothing_wrong(study):
    nothing_wrong(study.study([study.random_case(np.random.default_rng([7, i])) for i in range(150)]), 0.05)


def test_near_misses(study):
    rng = np.random.default_rng(8)
    nothing_wrong(study.study([study.random_case(rng, study.near_miss_blocks, (0.0, 1e-12)) for _ in range(150)]), 0.05)


def test_exact_rational_matrices(study):
    nothing_wrong(study.study(study.exact_cases(np.random.default_rng(3), 25)), 0.08)


@pytest.mark.slow
def test_larger_study(study):
    rng = np.random.default_rng(11)
    nothing_wrong(study.study([study.random_case(rng) for _ in range(4000)]), 0.05)


def test_a_false_claim_has_no_witness(study):
    from dataclasses import replace

    from spectral_witness import right_up_to_noise

    from koopsim.spectral import analyze

    verdict = analyze(np.diag([1 - 1e-6, 0.3]), noise=1e-4)
    ok, distance = right_up_to_noise(np.diag([1 - 1e-6, 0.3]), verdict)
    assert ok
    assert distance == pytest.approx(verdict.distance / verdict.noise, rel=1e-6)
    assert not right_up_to_noise(np.diag([1 - 1e-6, 0.3]), replace(verdict, noise=1e-8))[0]


def test_one_eigenvalue_of_a_large_matrix():
    rng = np.random.default_rng(0)
    A = 0.1 * rng.standard_normal((60, 60))
    A[0] *= 20
    T, Q, _ = schur_form(A)
    for i in range(0, 60, 7):
        slow, fast = reordered(T, Q, (i,)), extract(T, Q, (i,))
        np.testing.assert_allclose(fast.V @ fast.W, slow.V @ slow.W, atol=1e-12)
        assert fast.norm == pytest.approx(slow.norm)
        assert fast.separation == pytest.approx(slow.separation, rel=0.05)


@pytest.mark.parametrize("k", [2, 5])
def test_sylvester_by_rows(k):
    rng = np.random.default_rng(k)
    T11, T22 = (np.triu(rng.standard_normal((m, m)) + 1j * rng.standard_normal((m, m))) for m in (k, 40))
    T22 = 0.2 * T22 + 3 * np.eye(40)
    C = rng.standard_normal((k, 40)) + 0j
    solve, adjoint = by_rows(T11, T22)
    X, Y = solve(C), adjoint(C)
    np.testing.assert_allclose(T11 @ X - X @ T22, C, atol=1e-9)
    np.testing.assert_allclose(T11.conj().T @ Y - Y @ T22.conj().T, C, atol=1e-9)
    exact = np.linalg.svd(np.kron(np.eye(40), T11) - np.kron(T22.T, np.eye(k)), compute_uv=False)[-1]
    assert separation(T11, T22) == pytest.approx(exact, rel=0.1)


def test_smallest_witness_against_least_squares():
    rng = np.random.default_rng(2)
    A = rng.standard_normal((6, 6))
    T, Q, _ = schur_form(A)
    blocks = [extract(T, Q, (0,)), extract(T, Q, (2, 3))]
    conditions = [Condition(b.V, b.W, 1e-3 * np.ones_like(b.B), np.zeros_like(b.B)) for b in blocks]
    E = smallest(conditions)
    rows = np.vstack([np.kron(c.W, c.V.T) for c in conditions])
    twin = np.linalg.lstsq(rows, np.concatenate([c.D.ravel() for c in conditions]), rcond=None)[0]
    np.testing.assert_allclose(E.ravel(), twin, atol=1e-10)
