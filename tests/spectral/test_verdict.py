"""The four cases, the limits, and the honesty of `undecided`."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag

from koopsim.spectral import analyze


def rotation(angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s], [s, c]])


def hidden(J: np.ndarray, seed: int = 0, cond: float = 10.0) -> np.ndarray:
    """J in a random basis of the given condition."""
    rng = np.random.default_rng(seed)
    n = len(J)
    U, V = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    S = U * np.geomspace(1, cond, n) @ V
    return S @ J @ np.linalg.inv(S)


JORDAN2, JORDAN3 = np.array([[1.0, 1], [0, 1]]), np.eye(3) + np.eye(3, k=1)
PAIR2 = np.block([[rotation(0.7), np.eye(2)], [np.zeros((2, 2)), rotation(0.7)]])

CASES = [
    ("origin", np.zeros((2, 2))),
    ("origin", np.array([[0.8, -0.05], [0, 0.7]])),
    ("origin", hidden(block_diag(1 - 1e-9, 0.5, 0.3))),
    ("origin", hidden(block_diag(0.999 * JORDAN3, 0.2))),
    ("fixed-point", np.eye(3)),
    ("fixed-point", hidden(block_diag(1, 1, 0.5, 0.9 * rotation(1)))),
    ("fixed-point", hidden(block_diag(1, 1 - 1e-7, 0.5))),
    ("invariant-set", rotation(0.7)),
    ("invariant-set", hidden(block_diag(1, -1, 0.5))),
    ("invariant-set", hidden(block_diag(1, rotation(2.1), rotation(2.1), 0.4))),
    ("divergent", np.array([[1.0, 0], [0.3, 1]])),
    ("divergent", hidden(block_diag(JORDAN3, 0.5))),
    ("divergent", hidden(block_diag(-JORDAN2, 1, 0.5))),
    ("divergent", hidden(PAIR2)),
    ("divergent", hidden(block_diag(1 + 1e-9, 1, 0.5))),
    ("divergent", hidden(block_diag(1.2 * rotation(0.3), 1, -1))),
]


@pytest.mark.parametrize(("case", "A"), CASES)
def test_case(case, A):
    verdict = analyze(A)
    assert verdict.case == case, str(verdict)
    assert verdict.reasons
    assert verdict.case in str(verdict)
    json.dumps(verdict.to_dict(), allow_nan=False)


@pytest.mark.parametrize(("case", "A"), CASES)
def test_powers_agree_with_repeated_multiplication(case, A):
    verdict = analyze(A)
    for l in (0, 1, 2, 7, 40):
        expected = np.linalg.matrix_power(A, l)
        # a projector is known to rounding over separation: 1 and 1 + 1e-9 are told apart to seven digits
        separation = min((p.separation for p in verdict.projectors), default=1.0)
        atol = max(1e-9, 1e-14 / separation) * max(1, np.abs(expected).max())
        np.testing.assert_allclose(verdict.at(l), expected, atol=atol)
    start = np.arange(1.0, len(A) + 1)
    np.testing.assert_allclose(verdict.at(7, start), verdict.at(7) @ start, atol=1e-9)


def test_fixed_point_limit_is_a_projector():
    A = hidden(block_diag(1, 1, 0.5, -0.3, 0.9 * rotation(1)), cond=100)
    verdict = analyze(A)
    P = verdict.limit
    np.testing.assert_allclose(P @ P, P, atol=1e-9)
    np.testing.assert_allclose(A @ P, P, atol=1e-9)
    np.testing.assert_allclose(P @ A, P, atol=1e-9)
    np.testing.assert_allclose(verdict.at(10**18), P, atol=1e-9)
    assert len(verdict.fixed) == 2
    assert verdict.period == 1
    assert round(np.trace(P)) == 2
    (projector,) = verdict.projectors
    np.testing.assert_allclose(projector.matrix, P, atol=1e-12)
    assert projector.norm == pytest.approx(np.linalg.norm(P, 2))
    assert projector.separation > 0


def test_invariant_set_rotation_and_cesaro():
    J = block_diag(1, -1, rotation(2 * np.pi / 3), 0.5)
    A = hidden(J)
    verdict = analyze(A)
    assert len(verdict.fixed) == len(verdict.flipping) == len(verdict.rotating) == 1
    assert verdict.period == 6
    assert verdict.limit is None
    np.testing.assert_allclose(verdict.cesaro, sum(verdict.at(600 + k) for k in range(6)) / 6, atol=1e-9)
    np.testing.assert_allclose(verdict.rotation @ verdict.rotation, verdict.at(1002 - 1000 + 600), atol=1e-9)
    np.testing.assert_allclose(verdict.at(6 * 10**17 + 1), verdict.at(601), atol=1e-9)


@pytest.mark.parametrize("angle", [0.3, 1.2, 2.0, 3.0])
def test_angles_keep_their_quadrant(angle):
    (found,) = analyze(hidden(block_diag(rotation(angle), 0.2))).rotating
    assert found.angle == pytest.approx(angle, abs=1e-9)
    assert len(found.indices) == 2


def test_defective_blocks_and_their_sizes():
    verdict = analyze(hidden(block_diag(JORDAN3, JORDAN2, 1, 0.5)))
    assert sorted(b.size for b in verdict.defective) == [2, 3]
    assert all(b.eigenvalue == 1 for b in verdict.defective)
    huge = analyze(JORDAN3).at(10**9)
    np.testing.assert_allclose(huge, [[1, 1e9, 1e9 * (1e9 - 1) / 2], [0, 1, 1e9], [0, 0, 1]], rtol=1e-9)


def test_divergence_overflows_honestly():
    verdict = analyze(np.diag([2.0, 0.5]))
    assert verdict.certain
    assert np.isinf(verdict.at(10**18)[0, 0])
    assert verdict.at(10**18)[1, 1] == 0
    M, s = verdict.scaled_at(10**6)
    assert s + np.log(M[0, 0]) == pytest.approx(1e6 * np.log(2))


def test_complex_matrices():
    assert analyze(np.diag([1j, 0.5])).case == "invariant-set"
    assert analyze(np.diag([1j, 0.5])).period == 4
    assert analyze(np.diag([1, 0.5j])).case == "fixed-point"
    assert analyze(np.array([[1j, 1], [0, 1j]])).case == "divergent"
    assert analyze(np.diag([0.9j, 0.5])).case == "origin"


def test_float32_rounding_is_seen():
    A = hidden(block_diag(1, rotation(0.9), 0.5), cond=5)
    rounded = A.astype(np.float32)
    assert analyze(rounded).case == "invariant-set"
    widened = analyze(rounded.astype(np.float64))  # believed to all its digits, but asked about
    assert any("float32 numbers" in r for r in widened.reasons)
    assert analyze(rounded.astype(np.float64), noise=2.4e-7).case == "invariant-set"
    assert analyze(np.array([[1, 0.5], [0, 0.25]])).noise < 1e-12  # written down, not rounded


def test_noise_decides_what_can_be_told():
    A = np.diag([1 - 1e-6, 0.3])
    assert analyze(A).case == "origin"
    assert analyze(A, noise=1e-9).case == "origin"
    assert analyze(A, noise=5e-7).case == "undecided"
    assert analyze(A, noise=1e-4).case == "fixed-point"  # by the stated assumption
    assert not analyze(A, noise=1e-4).certain
    assert analyze(A, noise=1e-4, strict=True).case == "undecided"
    assert analyze(A, strict=True).case == "origin"
    assert analyze(np.eye(2), noise=0.1).case == "undecided"


def test_what_was_snapped_is_said():
    verdict = analyze(np.diag([1 - 1e-6, 0.3]), noise=1e-4)
    (snap,) = verdict.snapped
    assert snap.indices == verdict.fixed
    assert snap.taken == 1
    assert snap.distance == pytest.approx(1e-6)
    assert snap.distance < snap.error
    assert verdict.distance == pytest.approx(1e-6 / np.hypot(1, 0.3), rel=1e-5)
    assert any("0.999999 is 1.0e-06 from 1" in r for r in verdict.reasons)
    certain = analyze(np.diag([1 - 1e-6, 0.3]))
    assert certain.snapped == ()
    assert certain.distance == 0


@given(st.integers(0, 10**6), st.floats(0, 3), st.sampled_from([1, -1]))
@settings(max_examples=60, deadline=None)
def test_a_billionth_inside_is_never_a_fixed_point(seed, exponent, sign):
    """Whatever the basis: without a declared noise, 1 - 1e-9 is inside or undecided."""
    A = hidden(block_diag(sign * (1 - 1e-9), 0.5, 0.3 * rotation(1), -0.2), seed, 10**exponent)
    assert analyze(A).case in ("origin", "undecided")
    assert analyze(A, noise=0).case in ("origin", "undecided")


def test_all_at_once_has_to_be_within_the_noise():
    """Each of 30 eigenvalues is within the noise of the circle, all together are not."""
    A = np.diag(np.r_[np.full(15, 1 - 9e-7), np.full(15, -1 + 9e-7)])
    noise = 1e-6 / np.linalg.norm(A)
    verdict = analyze(A, noise=noise)
    assert verdict.case == "undecided"
    assert verdict.distance is None
    assert analyze(A, noise=6 * noise).case == "invariant-set"


def test_summary_stays_short():
    A = np.linalg.qr(np.random.default_rng(0).standard_normal((50, 50)))[0]
    verdict = analyze(A)
    assert len(verdict.reasons) > 20
    assert len(str(verdict).splitlines()) < 20


def test_undecided_says_why():
    verdict = analyze(np.array([[1, 3e-6], [0, 1]]), noise=1e-6)
    assert verdict.case == "undecided"
    assert any("semisimple or defective" in r for r in verdict.reasons)


def test_constant_observable_is_discounted():
    W, c = np.array([[0.5, 0.2], [-0.1, 0.6]]), np.array([1.0, -2.0])
    affine = np.block([[np.ones((1, 1)), np.zeros((1, 2))], [c[:, None], W]])
    verdict = analyze(affine, constant=0)
    assert verdict.case == "fixed-point"
    assert verdict.fixed == ()
    np.testing.assert_allclose(verdict.point, [1, *np.linalg.solve(np.eye(2) - W, c)], atol=1e-12)
    affine[1:, 0] = 0
    assert analyze(affine).case == "fixed-point"
    assert analyze(affine, constant=0).case == "origin"
    assert analyze(affine, constant=[1.0, 0, 0]).case == "fixed-point"  # a vector names no origin
    drift = np.array([[1.0, 0], [0.3, 1]])
    assert analyze(drift, constant=0).case == "divergent"
    turning = block_diag(1, rotation(0.4))
    assert analyze(turning, constant=0).fixed == ()
    with pytest.raises(ValueError, match="constant"):
        analyze(affine, constant=1)
    with pytest.raises(ValueError, match="no index"):
        analyze(affine, constant=7)


@pytest.mark.parametrize(
    ("A", "message"),
    [
        (np.ones((2, 3)), "square"),
        (np.ones(4), "square"),
        (np.empty((0, 0)), "empty"),
        (np.array([[1, np.nan], [0, 1]]), "NaN"),
        (np.array([["a"]]), "numbers"),
        (np.array([[1e200]]), "1e150"),
    ],
)
def test_bad_input(A, message):
    with pytest.raises(ValueError, match=message) as caught:
        analyze(A)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("noise", [-1, 1.5, np.nan])
def test_bad_noise(noise):
    with pytest.raises(ValueError, match="noise"):
        analyze(np.eye(2), noise=noise)


def test_bad_step_and_start():
    verdict = analyze(np.eye(2))
    with pytest.raises(ValueError, match="whole number"):
        verdict.at(-1)
    with pytest.raises(ValueError, match="2 rows"):
        verdict.at(1, np.ones(3))


@given(st.integers(0, 10**6), st.sampled_from(["origin", "fixed-point", "invariant-set", "divergent"]), st.floats(0, 2))
@settings(max_examples=60, deadline=None)
def test_random_structures_are_never_misjudged(seed, case, exponent):
    rng = np.random.default_rng(seed)
    inside = [r * rotation(a) for r, a in zip(rng.uniform(0, 0.9, 2), rng.uniform(0, np.pi, 2), strict=True)]
    extra = {
        "origin": [],
        "fixed-point": [np.eye(int(rng.integers(1, 4)))],
        "invariant-set": [[-np.ones((1, 1)), rotation(rng.uniform(0.1, 3))][rng.integers(2)], np.eye(1)],
        "divergent": [[JORDAN2, -JORDAN3, PAIR2, 1.1 * np.eye(1)][rng.integers(4)]],
    }[case]
    A = hidden(block_diag(*inside, *extra), seed, 10**exponent)
    assert analyze(A).case in (case, "undecided")
    noise = 10.0 ** -rng.integers(5, 12)
    E = rng.standard_normal(A.shape)
    noisy = A + noise * np.linalg.norm(A) * E / np.linalg.norm(E)
    assert analyze(noisy, noise=noise).case in (case, "undecided")


def test_large_matrix_is_fast():
    import time

    rng = np.random.default_rng(0)
    n = 500
    start = time.perf_counter()
    assert analyze(rng.standard_normal((n, n)) / np.sqrt(n) * 0.9).case == "origin"
    assert analyze(np.linalg.qr(rng.standard_normal((n, n)))[0]).case == "invariant-set"
    assert time.perf_counter() - start < 10
