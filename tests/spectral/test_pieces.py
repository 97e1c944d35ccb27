"""The theorems the verdict stands on, each against a slow twin."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import block_diag

from koopsim.spectral.clusters import extract, isolate, schur_form
from koopsim.spectral.noise import effective_noise, looks_like_float32
from koopsim.spectral.powers import period_of, phase, scaled_power, turns_of
from koopsim.spectral.resolvent import _inverse_iteration, clear_of_circle, smallest_singular_values
from koopsim.spectral.separation import separation
from koopsim.spectral.structure import jordan_sizes, nilpotency

BENCH = Path(__file__).parents[2] / "benchmarks" / "spectral_verdicts.py"


def study():
    spec = importlib.util.spec_from_file_location("spectral_verdicts", BENCH)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["spectral_verdicts"] = module
    spec.loader.exec_module(module)
    return module


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


def test_study_finds_nothing_wrong():
    module = study()
    result = module.study([module.random_case(np.random.default_rng([7, i])) for i in range(150)])["shares"]
    assert result["decidable"]["wrong"] == 0
    assert result["decidable"]["undecided"] < 0.05
    assert result.get("ambiguous", {"wrong": 0})["wrong"] == 0
    assert result["strict"]["wrong"] == 0


def test_exact_rational_matrices():
    module = study()
    result = module.study(module.exact_cases(np.random.default_rng(3), 25))["shares"]
    assert result["decidable"]["wrong"] == 0
    assert result["decidable"]["undecided"] <= 0.08


@pytest.mark.slow
def test_larger_study():
    module = study()
    rng = np.random.default_rng(11)
    result = module.study([module.random_case(rng) for _ in range(4000)])["shares"]
    assert result["decidable"]["wrong"] == result["ambiguous"]["wrong"] == result["strict"]["wrong"] == 0
    assert result["decidable"]["undecided"] < 0.05
    exact = module.study(module.exact_cases(rng, 200))["shares"]["decidable"]
    assert exact["wrong"] == 0
    assert exact["undecided"] < 0.05
