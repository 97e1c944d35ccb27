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


def crowd(coupling: float, radius: float = 1 - 1.5e-6) -> np.ndarray:
    """256 rotations just inside the circle, and between two of them one that the noise may reach by its coupling."""
    R = radius * rotation(np.pi / 2)
    hidden_one = np.block([[R, coupling * np.eye(2)], [np.zeros((2, 4))]])
    return block_diag(*[(1 - 1.3e-6) * rotation(np.pi * (j + 0.5) / 256) for j in range(256)], hidden_one)


@pytest.mark.parametrize("coupling", [600, 60])
def test_between_the_points_of_a_circle(coupling):
    """However many eigenvalues crowd a circle: it is clear by proof or not at all."""
    A = crowd(coupling)
    noise = 2e-8 / np.linalg.norm(A)
    verdict = analyze(A, noise, strict=True)
    assert verdict.case == "undecided"
    assert not verdict.certain
    E = np.zeros_like(A)  # a matrix within the noise that leaves the circle
    E[-2:, -4:-2] = 1.4e-8 * rotation(np.pi)
    assert np.linalg.norm(E) < 2e-8
    reach = max(np.abs(np.linalg.eigvals(A + s * E)).max() for s in (1, -1))
    assert (reach > 1) == (coupling == 600)


def test_a_crowd_that_is_clear():
    A = crowd(6)
    verdict = analyze(A, 2e-8 / np.linalg.norm(A), strict=True)
    assert verdict.case == "origin"
    assert verdict.certain


def test_float64_is_not_taken_for_float32():
    verdict = analyze(np.array([[1 - 2.0**-14, 0, 0], [0, 0.5, 300], [0, 0, 0.25]]))
    assert verdict.case == "origin"
    assert verdict.certain


@given(st.integers(0, 10**6), st.sampled_from(["origin", "fixed-point", "invariant-set", "divergent"]))
@settings(max_examples=60, deadline=None)
def test_gradings_by_powers_of_two_change_nothing(seed, case):
    rng = np.random.default_rng(seed)
    J = {
        "origin": block_diag(0.9 * rotation(1), 0.5, -0.99),
        "fixed-point": block_diag(1, 0.9 * rotation(1), 0.5),
        "invariant-set": block_diag(1, rotation(1.3), -0.5),
        "divergent": block_diag(JORDAN2, 0.3 * rotation(1)),
    }[case]
    A = hidden(J, seed, 3.0)
    D = 2.0 ** rng.integers(-25, 25, len(A))
    verdict = analyze(A * D / D[:, None])
    assert verdict.case == case, str(verdict)
    assert any("balanced" in r for r in verdict.reasons) or np.ptp(np.log2(D)) < 12
    if verdict.limit is not None:
        np.testing.assert_allclose(verdict.limit * D[:, None] / D, analyze(A).limit, atol=1e-7)
    np.testing.assert_allclose(verdict.at(3) * D[:, None] / D, np.linalg.matrix_power(A, 3), atol=1e-7)


def test_constant_of_a_graded_matrix():
    affine = np.array([[1.0, 0, 0], [1, 0.5, 0.2], [-2, -0.1, 0.6]])
    D = 2.0 ** np.array([0, 30, -30])
    verdict = analyze(affine * D / D[:, None], constant=0)
    assert verdict.case == "fixed-point"
    point = np.r_[1, np.linalg.solve(np.eye(2) - affine[1:, 1:], affine[1:, 0])]
    np.testing.assert_allclose(verdict.point * D, point, atol=1e-9)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("angle", [0.0, 0.9])
def test_jordan_blocks_have_a_witness(size, angle):
    """Of any size: a matrix within the noise with that block on the circle, and how far it is."""
    block = np.kron(np.eye(size), rotation(angle)) + np.kron(np.eye(size, k=1), np.eye(2))
    A = hidden(block_diag(block if angle else np.eye(size) + np.eye(size, k=1), 0.4, -0.2), 3, 5.0)
    E = np.random.default_rng(size).standard_normal(A.shape)
    noise = 1e-11
    A = A + 0.9 * noise * np.linalg.norm(A) * E / np.linalg.norm(E)
    verdict = analyze(A, noise)
    assert verdict.case == "divergent"
    assert not verdict.certain
    assert {b.size for b in verdict.defective} == {size}
    assert verdict.distance is not None
    assert 0 < verdict.distance <= noise
    assert analyze(A, noise, strict=True).case == "undecided"


def test_a_jordan_block_out_of_reach_is_undecided():
    """Two eigenvalues that no Jordan block within the noise has, though each of its marks is nearly there."""
    from koopsim.spectral.clusters import extract, schur_form
    from koopsim.spectral.jordan import jordan_distance
    from koopsim.spectral.structure import Finding

    A = np.array([[1.0, 1.0], [1e-6, 1.0]])  # 1 +- 1e-3; a Jordan block needs the 1e-6 away
    form = schur_form(A)
    f = Finding(extract(form, (0, 1)), "defective", 1 + 0j, 1e-9, "", (2,))
    assert jordan_distance(form, f) == pytest.approx(1e-6, rel=1e-3)
    turned = schur_form(1.001 * np.exp(0.5j) * np.array([[1, 1.0], [0, 1]]))
    f = Finding(extract(turned, (0, 1)), "defective", complex(np.exp(0.5j)), 1e-9, "", (2,))
    assert jordan_distance(turned, f) == pytest.approx(1e-3 * 2**0.5, rel=0.05)


@pytest.mark.parametrize("period", [25, 97, 211])
def test_long_periods(period):
    cycle = np.roll(np.eye(period), 1, axis=0)
    assert analyze(cycle).period == period
    angle = 2 * np.pi * (period // 3) / period
    assert analyze(hidden(block_diag(rotation(angle), 1, 0.3))).period == period
    assert analyze(hidden(block_diag(rotation(angle + 1e-9), 1, 0.3))).period is None


def test_sparse_matrices():
    import scipy.sparse as sp

    A = sp.random_array((60, 60), density=0.05, rng=np.random.default_rng(0), format="csr")
    assert analyze(A).case == analyze(A.toarray()).case
    assert analyze(sp.eye(5)).case == "fixed-point"
    with pytest.raises(ValueError, match="sparse") as caught:
        analyze(sp.eye(5000))
    assert "5,000 x 5,000" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_large_matrices_are_fast():
    """1,000 x 1,000 within five seconds of one core, and by proof."""
    import time

    rng = np.random.default_rng(0)
    n = 1000
    G = rng.standard_normal((n, n)) / np.sqrt(n)
    chain = rng.random((n, n))
    cases = [(0.9 * G, "origin"), (chain / chain.sum(axis=1, keepdims=True), "fixed-point"), (1.1 * G, "divergent")]
    for A, case in cases:
        began = time.process_time()
        verdict = analyze(A)
        assert time.process_time() - began < 5
        assert verdict.case == case
        assert verdict.certain == (case != "fixed-point")


def test_a_phase_that_is_not_known_is_said():
    """By 10^15 steps rounding has turned the state by a tenth of a radian; a quarter turn is exact."""
    turning = analyze(np.array([[0.6, -0.8], [0.8, 0.6]]))
    turning.at(10**13)  # warnings are errors here
    with pytest.warns(UserWarning, match=r"eigenvalue 0\.6\+0\.8i .* from l = 1\.0e\+14 on"):
        turning.at(10**15, [1, 0])
    with pytest.warns(UserWarning, match="its phase is not"):
        turning.scaled_at(10**400)
    with pytest.warns(UserWarning, match=r"from l = 7\.1e\+04 on"):
        analyze(np.array([[0.6, -0.8], [0.8, 0.6]]), noise=1e-6).at(10**5)
    with pytest.warns(UserWarning, match=r"1 more eigenvalues likewise"):
        analyze(block_diag(rotation(1), rotation(2))).at(10**17)
    analyze(rotation(np.pi / 2)).at(10**400)
    analyze(block_diag(1, 0.9 * rotation(1))).at(10**18)
