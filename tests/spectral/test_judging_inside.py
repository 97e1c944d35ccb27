"""The inner functions of a verdict on a matrix: closed forms of small cases, tables on both sides of thresholds."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from inside import upper, words
from kept_numbers import same
from scipy.linalg import block_diag

from koopsim.spectral import analyze
from koopsim.spectral.clusters import Block, extract, isolate, reordered, schur_form
from koopsim.spectral.eigenbasis import EPS, eigenbasis
from koopsim.spectral.noise import balanced, could_be_float32, effective_noise
from koopsim.spectral.powers import Propagator, period_of, phase, scaled_power, total, turns_of
from koopsim.spectral.resolvent import Allowance, Circles, _arcs_clear, singular_value_at_most, smallest_singular_values
from koopsim.spectral.separation import by_rows, separation
from koopsim.spectral.structure import SNAP, SNAP_ROUNDING, classify, nilpotency, resolved, single_errors


def block(B, norm=1.0, sep=np.inf):
    one = np.eye(len(B), dtype=complex)
    return Block(tuple(range(len(B))), one, one, np.asarray(B, dtype=complex), norm, sep)


def told(f):
    return f"{f.kind} {f.sizes} {f.certain} {words(f.reason)}"


def test_errors_of_a_block():
    """p d (1 + min(1, 4 p d / sep)); of the mean that over k, times ||W||_F / p."""
    b = block(np.diag([1.0, 3.0]), norm=2.0, sep=0.8)
    assert b.mean == 2
    assert b.error(0.01) == pytest.approx(0.02 * 1.1)
    assert b.error(0.5) == pytest.approx(2.0)  # at most twice
    assert replace(b, separation=0.0).error(0.01) == pytest.approx(0.04)
    assert b.mean_error(0.01) == pytest.approx(0.022 * 2**0.5 / 2 / 2)
    assert b.defect(1.5) == pytest.approx(1.5)


OFF = (0.0, 0.02, 0.03, 0.5, 1.0, 1.04, 1.06, 2.0, 2.95, 3.0, 3.05, 4.0)


@pytest.mark.parametrize("delta", [2.0**-13, 2.0**-31, 5e-3, 0.00501])
def test_numbers_of_single_eigenvalues(delta):
    found, errors = [], []
    for t, sign, real, snap in product(OFF, (1, -1), (True, False), (SNAP, SNAP_ROUNDING)):
        if sign < 0 and (real or snap == SNAP):
            continue  # as outside
        for direction in (1.0, -1.0, np.exp(0.7j), np.exp(1.5j * delta), -np.exp(-3.1j * delta), np.exp(3.2j * delta)):
            f = classify(block([[direction * (1 + sign * t * delta)]]), delta, real, snap)
            found.append(told(f))
            errors.append([f.error / delta, f.eigenvalue])
    same(f"spectral/inside single {delta}", [found, np.array(errors)])


@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-5, 1e-3])
def test_numbers_of_clusters(delta):
    """Multiples of the identity, rotations side by side, Jordan blocks and what is neither."""
    found, errors = [], []
    for mu, k in ((1.0, 2), (-1.0, 3), (np.exp(0.7j), 2), (np.exp(0.7j), 3)):
        for c in (0.0, 0.5, 1.02, 1.08, 1.95, 2.05, 3.0, 500.0, 990.0, 1010.0, 1e5, 1 / delta):
            for spread in (0.0, 0.9, 2.5):
                B = mu * (np.eye(k) + spread * delta * np.diag([1, -1, 0][:k])) + c * delta * np.eye(k, k=1)
                f = classify(block(B), delta, True)
                found.append(told(f))
                errors.append([f.error / delta, f.eigenvalue])
        for angle in (5e2, 9.9e2, 1.01e3, 1e4):
            for size in (0.0, 1.9, 2.1):
                turned = np.exp(1j * angle * delta * np.array([1, -1, 0][:k])) * (1 + size * delta)
                found.append(told(classify(block(np.diag(mu * turned)), delta, False)))
    same(f"spectral/inside clusters {delta}", [found, np.array(errors)])


def test_numbers_of_blocks_that_are_not_orthogonal():
    """With projectors longer than one and own errors: an eigenvalue that is elsewhere, halves that are resolved."""
    found, errors = [], []
    for tilt, a, delta in product((0.0, 1.0, 30.0), (0.2, 0.9, 1.2, 2.2, 7.0, 400.0), (1e-9, 1e-6)):
        S = np.array([[1.0, tilt], [0.0, 1.0]])
        B = np.eye(2) + a * delta * np.diag([1.0, -0.9])
        W = np.linalg.inv(S)
        b = Block((0, 1), S + 0j, W + 0j, B + 0j, float(np.linalg.norm(S, 2) * np.linalg.norm(W, 2)), 0.5)
        _, own = single_errors(b, delta)
        errors += [*(np.sort(own) / delta), resolved(b, delta)]
        found.append(told(classify(b, delta, True)))
    same("spectral/inside tilted", [found, errors])
    J = np.eye(2) + np.eye(2, k=1)
    assert not resolved(block(J), 1e-9)


@pytest.mark.parametrize("k", [2, 3, 4, 9])
def test_where_a_nilpotent_is_none(k):
    """||N^k|| is its corner c alone: zero while c <= (||N|| + eta)^k - ||N||^k, a quarter of it, and little is seen."""
    found = []
    for eta, share in product((1e-9, 1e-4), (0.0, 0.1, 0.2, 0.24, 0.26, 0.5, 2.0)):
        N = np.eye(k, k=1, dtype=complex)
        N[-1, 0] = share * ((1 + eta) ** k - 1)
        for seen in (0.0, 0.4, 0.6):
            M = N.copy()
            M[0, 0], M[-1, -1] = (seen * (k * eta) ** (1 / k) * np.array([1, -1])) if k > 1 else (0, 0)
            found.append(str(nilpotency(M, eta)))
    same(f"spectral/inside nilpotent {k}", found)


def test_numbers_of_isolation():
    """Eigenvalues at all distances: which the noise joins, of normal matrices and of others."""
    rng, found = np.random.default_rng(0), []
    for _ in range(25):
        w = np.cumsum(10.0 ** rng.uniform(-4, 0, 7))
        form = schur_form(np.diag(w) if rng.random() < 0.5 else np.diag(w * np.exp(1j * rng.uniform(0, 6, 7))))
        assert form.normal
        for delta in (1e-4, 1e-3, 1e-2, 4e-2):
            b = isolate(form, delta, (int(rng.integers(7)),))
            found.append([sorted(b.indices), b.norm, min(b.separation, 1e9)])
    for seed in range(6):
        form = schur_form(upper(6, seed, 0.1, real=True) + np.diag(np.arange(6) * 0.02))
        for delta in (1e-6, 1e-4, 1e-3, 5e-3):
            b = isolate(form, delta, (seed % 6,))
            found.append([len(b.indices), b.norm, min(b.separation, 1e9)])
    same("spectral/inside isolation", np.array([[len(str(i)), n, s] for i, n, s in found]))
    same("spectral/inside isolated", " ".join(str(i) for i, _, _ in found))


def test_a_pair_that_meets_its_mirror_image_takes_it_along():
    c, s = np.cos(1e-3), np.sin(1e-3)
    form = schur_form(block_diag([[c, -s], [s, c]], 0.2))
    assert form.conjugate.tolist() in ([1, 0, 2], [0, 2, 1])
    pair = tuple(i for i in range(3) if form.conjugate[i] != i)
    assert isolate(form, 1e-5, pair[:1]).indices == pair[:1]
    both = isolate(form, 1e-3, pair[:1])
    assert both.indices == pair
    assert form.symmetric(both)
    assert not form.mirrored(both)
    assert form.mirrored(isolate(form, 1e-5, pair[:1]))
    assert form.with_mirror(pair[:1]) == set(pair)
    assert extract(form, (0, 1, 2)).separation == np.inf


def test_a_cluster_of_one_by_hand():
    """[[a, c], [0, b]]: P = [[1, r], [0, 0]] with r = c / (a - b), ||P|| = sqrt(1 + r^2), sep = |a - b|."""
    a, b, c = 0.9, 0.4, 2.0
    form = schur_form(np.array([[a, c], [0, b]]))
    first = reordered(form, (0,))
    r = c / (a - b)
    np.testing.assert_allclose(first.V @ first.W, [[1, r], [0, 0]], atol=1e-12)
    assert first.norm == pytest.approx(np.hypot(1, r))
    assert first.separation == pytest.approx(a - b)
    second = reordered(form, (1,))
    np.testing.assert_allclose(second.V @ second.W, [[0, -r], [0, 1]], atol=1e-12)
    same_twice = reordered(schur_form(np.array([[1.0, 1.0], [0, 1.0]])), (0,))
    assert (same_twice.norm, same_twice.separation) == (np.inf, 0.0)
    np.testing.assert_allclose(same_twice.W, same_twice.V.conj().T)
    twins = reordered(schur_form(np.kron(np.eye(2), [[1.0, 1], [0, 0.5]]) + np.eye(4, k=2)), (0, 2))
    assert (twins.norm, twins.separation) == (np.inf, 0.0) or twins.norm > 1


def test_the_eigenvectors_of_a_diagonal_matrix():
    """X = Y = I: what is left is the rounding that is added, n eps sqrt(n) for each row of Y X, and n eps ||T||."""
    w = np.array([0.5, -0.25, 2.0, 1.0])
    basis, n = eigenbasis(np.diag(w) + 0j), 4
    wrong = n * EPS * 2.0
    np.testing.assert_allclose(basis.norms - 1, wrong * 2.0 / (1 - 2 * wrong), rtol=1e-6)
    assert basis.slack == pytest.approx(n * EPS * np.linalg.norm(w), rel=1e-12, abs=0)
    np.testing.assert_array_equal(basis.residuals, 0)
    for i in range(4):
        gap = np.delete(np.abs(w - w[i]), i)
        assert basis.isolation(i) == pytest.approx(1 / np.sum(1 / gap) / 4, rel=1e-12)
    assert replace(basis, slack=0.1).isolation(0) == pytest.approx(basis.isolation(0) - 0.1)
    assert replace(basis, slack=np.inf).isolation(0) == 0.0
    assert eigenbasis(np.array([[0.3 + 0j]])).isolation(0) == np.inf


def test_a_circle_is_clear_of_eigenvectors_up_to_the_bound(monkeypatch):
    """Along |z| = r the sum of p / |lambda - z| has a largest value M: clear for every level below 1 / M - slack."""
    for seed, radius in ((0, 1.0), (1, 0.8), (2, 1.3)):
        basis = eigenbasis(upper(6, seed, 0.3, 0.7))
        for arc in (np.pi, 2 * np.pi):
            z = radius * np.exp(1j * np.linspace(0, arc, 40001))
            largest = (basis.norms / np.abs(basis.eigenvalues - z[:, None])).sum(axis=1).max()
            assert basis.clear_of_circle(radius, 0.999 / largest, arc)
            assert not basis.clear_of_circle(radius, 1.001 / largest, arc)
            assert not replace(basis, slack=0.01 / largest).clear_of_circle(radius, 0.999 / largest, arc)
            rough = np.sum(basis.norms / np.abs(np.abs(basis.eigenvalues) - radius))
            monkeypatch.setattr("koopsim.spectral.eigenbasis.EVALUATIONS", 64 * 6 - 1)
            assert not basis.clear_of_circle(radius, 0.999 / largest, arc)
            assert basis.clear_of_circle(radius, 0.99 / rough, arc)  # by the moduli alone
            assert not basis.clear_of_circle(radius, 1.01 / rough, arc)
            monkeypatch.undo()
    on = eigenbasis(np.diag([1.0, 0.3]) + 0j)
    assert not on.clear_of_circle(1.0, 1e-9, np.pi)
    half = eigenbasis(np.diag([-1j, 0.3]))  # an eigenvalue on the half that is not looked at
    assert half.clear_of_circle(1.0, 1e-3, np.pi)
    assert not half.clear_of_circle(1.0, 1e-3, 2 * np.pi)


def test_an_arc_about_a_point_by_hand():
    """For one eigenvalue a the series is geometric: the largest level is (1 - q^8) / (|R| (1 + q + ... + q^7))."""
    a, z = 0.3 + 0.2j, np.array([1.0, 1j])
    R = 1 / np.abs(a - z)
    for h in (0.05, 0.4):
        q = h * R
        level = (1 - q**8) / (R * sum(q**j for j in range(8)))
        for i in (0, 1):
            for share, clear in ((1 - 1e-9, True), (1 + 1e-9, False)):
                said = _arcs_clear(np.array([[a]]), z, np.full(2, h), share * level[i])
                assert said[i] == clear
    assert not _arcs_clear(np.array([[a]]), z, np.full(2, 5.0), 1e-9).any()
    assert _arcs_clear(np.array([[a]]), np.array([a]), np.full(1, 0.1), 1e-9).tolist() == [False]
    two = upper(4, 3)
    z = np.exp(1j * np.array([0.1, 2.0, 4.0]))
    inverse = [np.linalg.inv(two - x * np.eye(4)) for x in z]
    norms = np.array([[np.linalg.norm(np.linalg.matrix_power(R, j)) for j in range(1, 9)] for R in inverse])
    h = 0.02
    level = (1 - h**8 * norms[:, 7]) / (norms @ h ** np.arange(8))
    for share, clear in ((1 - 1e-9, True), (1 + 1e-9, False)):
        said = [bool(_arcs_clear(two, z, np.full(3, h), share * x)[i]) for i, x in enumerate(level)]
        assert said == [clear] * 3


@pytest.mark.parametrize("half", [True, False])
def test_small_circles_are_clear_up_to_the_distance(half, monkeypatch):
    for seed in range(2):
        T = upper(5, seed, 0.5, 0.6)
        if half:  # symmetric about the real axis
            T = schur_form(upper(5, seed, 0.5, 0.6, real=True)).T
        z = np.exp(1j * np.linspace(0, 2 * np.pi, 801))
        distance = smallest_singular_values(T, z).min()
        shown = min(1 / np.linalg.norm(np.linalg.inv(T - x * np.eye(5))) for x in z[::2])  # by Frobenius norms
        circles = Circles(T, half)
        assert circles.clear(1.0, 0.98 * shown)
        assert not circles._small(1.0, 1.02 * shown)
        assert not circles.clear(1.0, 1.005 * distance)
        monkeypatch.setattr("koopsim.spectral.resolvent.BUDGET", 15)  # 16 arcs are looked at first
        assert not circles.clear(1.0, 0.01 * distance)
        monkeypatch.setattr("koopsim.spectral.resolvent.BUDGET", 16)
        assert circles.clear(1.0, 0.01 * distance)
        monkeypatch.undo()
    one = Circles(np.array([[0.75 + 0j]]), False)
    assert one.clear(1.0, 0.2499)
    assert not one.clear(1.0, 0.25)
    assert Circles(np.diag([0.75, 1.5j]), False).clear(1.0, 0.2)
    middle, h = one._arcs()
    np.testing.assert_allclose(middle, (np.arange(16) + 0.5) * 2 * np.pi / 16)
    np.testing.assert_allclose(h, np.pi / 16)
    near = Circles(np.diag([0.2, 0.9j, -1.2]), False)._probes(2.0, 2)
    np.testing.assert_allclose(near, 2 * np.exp(1j * np.array([0, np.pi, np.pi, np.pi / 2])), atol=1e-12)


def test_allowance_and_large_matrices(monkeypatch):
    allowance = Allowance(2000.0)
    assert allowance.spend(10)
    assert allowance.spend(10)
    assert allowance.left == 0
    assert not allowance.spent
    assert not allowance.spend(1)
    assert allowance.spent
    T = upper(8, 1)
    z = np.array([0.3 + 0.1j, 2.0, -1.5j])
    exact = np.linalg.svd(T - z[:, None, None] * np.eye(8), compute_uv=False)[:, -1]
    np.testing.assert_allclose(smallest_singular_values(T, z), exact)
    steps = [singular_value_at_most(T, 2.0, steps=k) for k in (1, 2, 6)]
    x = np.exp(1j * np.arange(8) ** 2) / np.sqrt(8)
    M = np.linalg.inv((T - 2 * np.eye(8)).conj().T @ (T - 2 * np.eye(8)))
    assert steps[0] == pytest.approx(1 / np.sqrt(np.linalg.norm(M @ x)))
    assert steps[1] == pytest.approx(1 / np.sqrt(np.linalg.norm(M @ M @ x) / np.linalg.norm(M @ x)))
    assert steps[2] == pytest.approx(singular_value_at_most(T, 2.0))
    assert singular_value_at_most(T, T[3, 3]) == 0.0
    monkeypatch.setattr("koopsim.spectral.resolvent.DENSE", 5)
    rough = [1 / np.linalg.norm(np.linalg.inv(T - x * np.eye(8))) for x in z]
    np.testing.assert_allclose(smallest_singular_values(T, z), rough)
    assert smallest_singular_values(T, T[3, 3][None])[0] == 0.0
    small = 0.3 * T
    found = [smallest_singular_values(small, np.exp(1j * np.linspace(0, 2 * np.pi, 4001))).min()]
    spent = []
    for share in (0.3, 0.6, 0.9, 0.97):
        circles = Circles(small, False, Allowance())
        assert circles._large(1.0, share * found[0])
        spent.append((Allowance().left - circles.allowance.left) / 512)
    same("spectral/inside inverses", [found, [round(s) for s in spent]])
    few = Circles(small, False, Allowance(512.0 * spent[1] * 0.9))
    assert not few._large(1.0, 0.6 * found[0])
    hopeless = Allowance(512.0 * 3)
    assert not Circles(small, False, hopeless)._large(1.0, 0.97 * found[0])
    assert hopeless.left == 512.0 * 2  # it saw after one that three will not do
    assert not Circles(small, False)._large(1.0, 1.3 * exact.max())


def test_separation_against_the_operator(monkeypatch):
    """Written out it is exact, whichever block is the larger; else a bound that is exact for diagonal blocks."""
    T = upper(7, 4)
    for k in (2, 3, 5):
        A, B = T[:k, :k], T[k:, k:] + 2 * np.eye(7 - k)
        slow = np.linalg.svd(np.kron(np.eye(7 - k), A) - np.kron(B.T, np.eye(k)), compute_uv=False)[-1]
        assert separation(A, B) == pytest.approx(slow, rel=1e-9)
    monkeypatch.setattr("koopsim.spectral.separation.WRITTEN_OUT", 5)
    A, B = np.diag([0.5, 0.1j]), np.diag([1.0, 2.0, -1.0])
    assert separation(A, B) == pytest.approx(0.5)
    c = 0.2
    A = np.array([[0.5, c], [0, 0.25]], complex)
    S = np.diag([1 / 0.5, 1 / 0.75])
    bound = np.linalg.norm(np.linalg.inv(np.eye(2) - S @ [[0, c], [0, 0]]) @ S, 2)
    assert separation(A, B) == pytest.approx(1 / bound)
    assert separation(np.diag([1.0, 2.0]), np.diag([1.0, 3.0, 4.0])) == 0.0
    allowance = Allowance(60.0)
    assert by_rows(A, B, allowance) == pytest.approx(1 / bound)
    assert allowance.left == 60 - 2 * 27
    assert by_rows(A, B, allowance) == separation(A, B, allowance) == 0.0


def test_powers_by_hand():
    one, N = np.eye(3), np.eye(3, k=1)
    third = Fraction(1, 3)
    mu = np.exp(2j * np.pi / 3)
    B = mu * one + 0.5 * N
    term = Propagator(one, one, B, third, 3)
    for l in (0, 1, 2, 5, 40):
        M, s = term.scaled(l)
        np.testing.assert_allclose(M * np.exp(s), np.linalg.matrix_power(B, l), atol=1e-9)
    assert term.scaled(40)[1] == pytest.approx(np.log(780))
    assert Propagator(one, one, one, Fraction(0), 1).scaled(10**18)[1] == 0
    for t in (Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(9, 4), Fraction(-1, 4)):
        assert phase(t) == (1, 1j, -1, -1j)[int(4 * t) % 4]
    assert phase(Fraction(5, 8)) == pytest.approx(np.exp(2j * np.pi * 5 / 8))
    assert turns_of(np.exp(2j * np.pi * 0.4)) == Fraction(2, 5)
    assert turns_of(np.exp(-2j * np.pi * 0.4)) == Fraction(-2, 5)
    q = int((1e-4 / 1e-13) ** 0.5)  # 31,622 turns are the most that can be told
    assert turns_of(complex(np.exp(2j * np.pi / (q - 2)))).denominator == q - 2
    assert turns_of(complex(np.exp(2j * np.pi / (q + 9)))).denominator != q + 9
    assert turns_of(complex(np.exp(2j * np.pi * (1 / 3 + 0.9e-6))), 2 * np.pi * 1e-6) == third
    assert turns_of(complex(np.exp(2j * np.pi * (1 / 3 + 1.1e-6))), 2 * np.pi * 1e-6) != third
    assert turns_of(complex(np.exp(2j * np.pi / 9)), 2 * np.pi * 1e-6) == Fraction(1, 9)
    assert turns_of(complex(np.exp(2j * np.pi / 11)), 2 * np.pi * 1e-6) != Fraction(1, 11)
    assert period_of([]) == 1
    assert period_of([Fraction(1, 4), Fraction(1, 6)]) == 12
    assert period_of([Fraction(1, q - 2)]) == q - 2
    assert period_of([Fraction(1, q + 9)]) is None


def test_scaled_powers_by_hand():
    B = np.array([[0.5, 1], [0, 0.25]], complex)
    for l in (0, 1, 2, 3, 6, 13):
        M, s = scaled_power(B, l)
        np.testing.assert_allclose(M * np.exp(s), np.linalg.matrix_power(B, l), atol=1e-14)
    assert np.linalg.norm(scaled_power(B, 13)[0]) == pytest.approx(1)
    nothing, size = scaled_power(np.eye(2, k=1) + 0j, 2)
    assert not nothing.any()
    assert size == 0.0
    assert not scaled_power(np.eye(3, k=1) + 0j, 3)[0].any()
    half = np.array([[0.5 + 0j]])
    assert scaled_power(half, 7200)[1] == pytest.approx(-7200 * np.log(2))  # -4990: still carried
    assert scaled_power(half, 8192) == (np.zeros((1, 1)), 0.0)  # -5678
    one = np.eye(1)
    M, s = total([Propagator(one, one, 2 * half), Propagator(one, one, 6 * half)], 2, None, True)
    assert M[0, 0] * np.exp(s) == pytest.approx(10)
    assert s == pytest.approx(np.log(9))
    turned = Propagator(np.eye(1), np.eye(1), np.array([[1j]]), Fraction(1, 4), 1, True)
    M, s = total([turned], 1, np.array([[2.0, 1j]]), False)
    np.testing.assert_allclose(M * np.exp(s), 2 * np.real(1j) * np.array([[2.0, 1j]]), atol=1e-12)
    M, s = total([turned], 2, None, True)
    assert M[0, 0] == -2
    empty, s = total([Propagator(np.eye(2), np.eye(2), np.zeros((2, 2)))], 3, np.ones((2, 5)), True)
    assert empty.shape == (2, 5)
    assert s == 0.0
    assert total([Propagator(np.eye(2), np.eye(2), np.zeros((2, 2)))], 3, None, False)[0].dtype == complex


def test_noise_of_each_type():
    eps = 2.0**-52
    A = np.ones((3, 3))
    for given, matrix, level, declared, rounding, source in (
        (None, A, 192 * eps, False, True, "float64 rounding"),
        (192 * eps, A, 192 * eps, True, False, "as given"),
        (191 * eps, A, 192 * eps, True, True, "float64 rounding, more than was given"),
        (0.5, A, 0.5, True, False, "as given"),
        (None, A.astype(np.float32), 2.0**-22, False, False, "the entries are float32 numbers"),
        (None, A.astype(np.complex64), 2.0**-22, False, False, "the entries are complex64 numbers"),
        (None, A.astype(np.float16), 2.0**-9, False, False, "the entries are float16 numbers"),
        (None, A + 0j, 192 * eps, False, True, "float64 rounding"),
    ):
        found = effective_noise(matrix, given)
        assert (found.level, found.declared, found.rounding, found.source) == (level, declared, rounding, source)
    for bad in (1.0, 1j, -1e-9, np.inf):
        with pytest.raises(ValueError, match="noise"):
            effective_noise(A, bad)
    assert effective_noise(A, 0).level == 192 * eps
    assert not could_be_float32(np.array([1 + 2.0**-11]))  # twelve binary digits
    assert could_be_float32(np.array([1 + 2.0**-12]))
    assert could_be_float32(np.array([1, 1j * (1 + 2.0**-12)]))
    assert not could_be_float32(np.array([1 + 2.0**-30]))


def test_balancing_by_hand():
    """Entries 2^k and 2^-k become ones; what gains less than a factor of four is left as it is."""
    A = np.array([[1.0, 2.0**20], [2.0**-20, 1.0]])
    scaled, D = balanced(A)
    np.testing.assert_array_equal(D, [1.0, 2.0**-20])
    np.testing.assert_array_equal(scaled, [[1.0, 1.0], [1.0, 1.0]])
    found = []
    for k in range(2, 9):
        for answer in (0.0, 1.0, 2.0**-k):
            scaled, D = balanced(np.array([[0.5, 2.0**k], [answer, 0.25]]))
            found.append([float(scaled[0, 1]), float(scaled[1, 0]), *D.tolist()])
    chain = np.diag(np.full(4, 0.5)) + np.diag([2.0**9, 2.0**5, 2.0**12], 1) + np.diag([2.0**-9, 0.0, 2.0**-3], -1)
    scaled, D = balanced(chain)
    same("spectral/inside balanced", [found, scaled.tolist(), D.tolist()])
    assert analyze(np.array([[0.0, 1e-200], [1e149, 0.0]])).case == "origin"  # units 10^349 apart
    zeros = np.zeros((2, 2))
    assert balanced(zeros)[0] is zeros
