"""How clusters become a verdict: circles, witnesses, Jordan blocks, the constant; closed forms, twins and tables."""

import numpy as np
import pytest
from inside import upper, words
from kept_numbers import same
from scipy.linalg import block_diag

from koopsim.spectral import analyze
from koopsim.spectral.analysis import _coupled, _inner_circle, _outer_circle, _residuals, examine_clusters
from koopsim.spectral.clusters import extract, schur_form
from koopsim.spectral.jordan import blocks_of_at_least, centre, commuting, jordan_distance, newton_step
from koopsim.spectral.structure import Finding, classify
from koopsim.spectral.witness import condition, missing, smallest, witness_distance


def turn(angle, size=1.0):
    return size * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


TILT = np.array([[1.0, 2.0, -1.0, 0.5], [0, 1.0, 0.5, 3.0], [0, 0, 1.0, -2.0], [0.1, 0, 0.2, 1.0]])


def tilted(J):
    S = TILT[: len(J), : len(J)]
    return S @ J @ np.linalg.inv(S)


def small_matrices():
    """Each with what it is at a noise of 1e-6, 1e-9 and rounding: on the circle, near it, beside it, coupled."""
    t = 1e-6
    J2, J3 = np.eye(2) + np.eye(2, k=1), np.eye(3) + np.eye(3, k=1)
    plain = [
        np.diag([1.0, 0.5]), np.diag([-1.0, 0.5]), np.diag([1 + t, 0.5]), np.diag([1 - 3 * t, -1 + t]), np.eye(3),
        block_diag(turn(0.7), 0.4), block_diag(turn(2 * np.pi / 5), -1.0), block_diag(turn(0.7, 1 + t), 1.0),
        block_diag(turn(t), 0.2), block_diag(turn(np.pi - 2 * t), 0.2), np.diag([1.2, 1.5, 0.1]), J2, -J2, J3,
        block_diag(J2, 0.3), block_diag(J2, turn(0.3)), np.kron(np.eye(2), turn(0.9)) + np.eye(4, k=2),
        block_diag(1.0, 1.0, turn(0.4)), np.array([[1.0, 5e-5], [0, 1.0]]), np.array([[1.0, 1.0], [1e-7, 1.0]]),
        np.array([[1.0, 2e-6], [0, 1.0]]), np.diag([1 + 1e-5, 1 - 1e-5, 0.2]), block_diag(turn(1e-3), turn(-2e-3)),
        np.diag([1j, -1j, 0.5]), np.diag([np.exp(0.3j), 1.0]), 1j * J2, np.diag([1.0, 1j, 0.1 + 0.1j]),
    ]  # fmt: skip
    return [*plain, np.zeros((2, 2)), *(tilted(A) for A in plain[1:22:2] if len(A) <= 4)]


@pytest.mark.parametrize("noise", [None, 1e-9, 1e-6, 4e-5])
def test_numbers_of_small_verdicts(noise):
    said, numbers = [], []
    for A in small_matrices()[: 28 if noise is None else None]:
        v = analyze(A, noise)
        said.append(f"{v.case} {v.certain} {v.period} {' '.join(map(words, v.reasons))}")
        far = 0.0 if v.distance is None else v.distance / v.noise if noise else 0.0
        ends = [0.0 if M is None else float(np.linalg.norm(M)) for M in (v.limit, v.cesaro, v.rotation)]
        of = [[p.norm, min(p.separation, 10.0), p.error / v.noise, len(p.indices)] for p in v.projectors]
        snaps = [[s.error / v.noise, s.distance / v.noise if noise else 0.0, len(s.indices)] for s in v.snapped]
        counts = [len(v.fixed), len(v.flipping), len(v.rotating), *(b.size for b in v.defective)]
        parts = [float(x) for table in (of, snaps) for x in (np.sort(table, axis=0).ravel() if table else [])]
        numbers.append([far, *ends, *counts, *parts, *sorted(np.abs(v.angles)), float(np.linalg.norm(v.at(3)))])
    same(f"spectral/small verdicts {noise}", [said, numbers], rel=2e-3, near=2e-3)


def test_powers_of_small_matrices():
    """Every term of A^l, whatever the verdict calls it: against repeated multiplication, of starts too."""
    for A in small_matrices()[:28]:
        v = analyze(A)
        for l in (0, 1, 2, 9):
            np.testing.assert_allclose(v.at(l), np.linalg.matrix_power(A, l), atol=1e-7)
        start = np.arange(1.0, len(A) + 1) * (1 if np.isrealobj(A) else 1j)
        np.testing.assert_allclose(v.at(9, start), np.linalg.matrix_power(A, 9) @ start, atol=1e-6)


def moduli_of(rng, n):
    return np.round(np.exp(rng.uniform(-0.6, 0.4, n)), 3)


def test_numbers_of_circles():
    """Of diagonal matrices: the circles that are tried, widest gap first, and what is counted on either side."""
    rng, found, said = np.random.default_rng(1), [], []
    for k in range(30):
        w = moduli_of(rng, 4 + 3 * (k % 8))
        form = schur_form(np.diag(w))
        for delta in (1e-4, 2e-3, 8e-3, 0.03):
            outer, inner = _outer_circle(form, w, delta), _inner_circle(form, w, delta)
            found += [-1.0 if outer is None else outer, -1.0 if inner is None else inner]
            findings, notes, escaped = examine_clusters(form, delta)
            said.append(f"{len(findings)} {escaped} {' '.join(sorted(f.kind for f in findings))} {notes}")
    same("spectral/circles tried", [found, said])


def test_circles_by_hand():
    def circles(*w, delta):
        form = schur_form(np.diag(np.array(w)))
        return _outer_circle(form, np.abs(form.eigenvalues), delta), _inner_circle(
            form, np.abs(form.eigenvalues), delta
        )

    assert circles(1.5, 0.5, delta=0.01) == (1.25, 1.0)
    assert circles(1.5, 1.0, 0.5, delta=0.01) == (1.25, 0.75)
    assert circles(1.0, 0.5, delta=0.0834) == (None, None)  # six errors: 0.5004 is wider than the gaps
    assert circles(1.0, 0.5, delta=0.0832) == (None, 0.75)
    assert circles(1.0, 1.25, delta=0.25 / 6) == (None, 0.5)
    assert circles(1.0, 1.25, delta=0.249 / 6) == (1.125, 0.5)
    assert _residuals(schur_form(np.diag([1.0, 2.0]))).tolist() == [0, 0]
    T = upper(4, 2)
    found = _residuals(schur_form(T))
    assert found.shape == (4,)
    assert found.max() < 1e-14
    A = np.array([[1.0, 1e-3], [0, 1.0]])
    size = np.sqrt(2 + 1e-6)
    assert not _coupled(np.array([[1.0, 0.99e-3 * size], [0, 1.0]]))
    assert _coupled(np.array([[1.0, 1.01e-3 * size], [0, 1.0]]))
    assert not _coupled(np.diag([1.0, 2.0]))
    assert analyze(A).case == "undecided"  # so small a coupling may be odd units
    assert "odd units" in analyze(A).reasons[-1]
    assert analyze(np.array([[1.0, 2e-3], [0, 1.0]])).case == "divergent"
    assert analyze(A, noise=1e-12).case == "divergent"
    with pytest.raises(ValueError, match="1e150"):
        analyze(np.array([[1.1e150]]))
    assert analyze(np.array([[1e150]])).case == "divergent"


def on_circle(A, noise):
    form = schur_form(A)
    findings, _, _ = examine_clusters(form, noise)
    return form, [f for f in findings if f.kind in ("fixed", "flipping", "rotating", "torus")]


def test_witness_of_a_normal_matrix():
    """The diagonal changes by what each eigenvalue is off: the root of the sum of squares, a pair counted twice."""
    a, b, c = 3e-7, 4e-7, 5e-7
    form, findings = on_circle(np.diag([1 - a, -1 + b, 0.3]), 1e-6)
    assert len(findings) == 2
    for enough in (0.0, 1.0):
        assert witness_distance(form, findings, enough) == pytest.approx(np.hypot(a, b), rel=1e-5)
    form, findings = on_circle(block_diag(turn(0.8, 1 + c), 0.3), 1e-6)
    assert witness_distance(form, findings, 0.0) == pytest.approx(c * 2**0.5, rel=1e-5)
    assert witness_distance(form, [], 0.0) == 0.0


def test_witness_of_others_is_the_smallest():
    """Between the true least (Lagrange, to first order) and the quick bound; A + E then has it exactly."""
    numbers = []
    for k, J in enumerate((np.diag([1 - 1e-4, 0.3, 0.1, -0.2]), np.diag([1 - 1e-4, -1 - 2e-4, 0.1, 0.4]),
                           block_diag(turn(0.8, 1 + 1e-4), 0.3, 1 + 5e-5))):  # fmt: skip
        A = tilted(J)
        form, findings = on_circle(A, 1e-3)
        assert findings
        quick, best = (witness_distance(form, findings, enough) for enough in (1.0, 0.0))
        assert best < quick
        conditions = []
        for f in findings:
            one = condition(f, f.block)
            conditions += [one, type(one)(*(M.conj() for M in one))] if form.mirrored(f.block) else [one]
        E = smallest(conditions)
        for c in conditions:  # met, up to a turn where the angle is free
            left = c.W @ E @ c.V - c.D
            theta = np.vdot(c.turn, left) / max(np.vdot(c.turn, c.turn).real, 1e-300)
            assert np.linalg.norm(left - np.real(theta) * c.turn) < 1e-12
        more = missing(form, findings, E)
        w = np.linalg.eigvals(A + np.real(E + more))
        near = [abs(f.eigenvalue) if f.kind == "rotating" else f.eigenvalue for f in findings]
        seen = np.abs(w) if k == 2 else w
        assert max(np.abs(seen - mu).min() for mu in near) < 1e-11
        assert best == pytest.approx(np.linalg.norm(E + more), rel=1e-6)
        np.testing.assert_allclose(np.linalg.norm(missing(form, findings, 0 * E)), quick, rtol=1e-6)
        numbers += [quick, best, float(np.linalg.norm(more))]
    same("spectral/witnesses", numbers, rel=1e-3, near=1e-14)


def test_a_witness_that_is_large_or_near_enough_is_the_quick_one(monkeypatch):
    form, findings = on_circle(tilted(np.diag([1 - 1e-4, 0.3, 0.1, -0.2])), 1e-3)
    quick = witness_distance(form, findings, 1.0)
    assert witness_distance(form, findings, quick) == quick
    assert witness_distance(form, findings, 0.99 * quick) < quick
    monkeypatch.setattr("koopsim.spectral.witness.LARGEST_GRAM", 0)
    assert witness_distance(form, findings, 0.0) == quick


JORDAN = {
    "two": (np.eye(2) + np.eye(2, k=1), (2,), 1.0), "three": (np.eye(3) + np.eye(3, k=1), (3,), 1.0),
    "minus": (-np.eye(2) + np.eye(2, k=1), (2,), -1.0),
    "and one": (block_diag(np.eye(2) + np.eye(2, k=1), 1.0), (2,), 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", [*JORDAN, "turning", "complex"])
def test_numbers_of_jordan_blocks(name):
    """How far Newton's method finds one: less than the perturbation that hid it, and the same as ever."""
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        if name in JORDAN:
            J, sizes, mu = JORDAN[name]
            A0, indices = block_diag(J, 0.2 * np.eye(5 - len(J))), range(len(J))
        else:
            mu, sizes = np.exp(0.9j), (2,)
            A0 = np.kron(np.eye(2), turn(0.9)) + np.eye(4, k=2)
            A0 = block_diag(A0, 0.2) if name == "turning" else np.array([[mu, 1, 0], [0, mu, 0], [0, 0, 0.3]])
        S = np.eye(len(A0)) + 0.4 * np.triu(rng.uniform(-1, 1, A0.shape), 1)
        E = rng.uniform(-1, 1, A0.shape) + (1j * rng.uniform(-1, 1, A0.shape) if name == "complex" else 0)
        A = S @ A0 @ np.linalg.inv(S) + 1e-5 * E
        form = schur_form(A)
        near = np.argsort(np.abs(form.eigenvalues - mu))[: len(indices) if name in JORDAN else 2]
        b = extract(form, tuple(sorted(int(i) for i in near)))
        f = Finding(b, "defective", complex(mu), 1e-5, "", sizes)
        far = jordan_distance(form, f)
        assert 0 < far <= 1e-5 * np.linalg.norm(E) * (1 + 1e-6)
        found.append(far)
    same(f"spectral/jordan {name}", found, rel=1e-3, near=1e-12)


@pytest.mark.parametrize("radial", [None, np.exp(-0.9j)])
@pytest.mark.parametrize("real", [True, False])
def test_a_newton_step_against_least_squares(radial, real):
    """The least E with tr(G W E V) = tr(G D) + tr(G W E0 V), of the first condition only the part along the radius."""
    rng = np.random.default_rng(3)
    A = rng.uniform(-1, 1, (5, 5)) + (0 if real else 1j * rng.uniform(-1, 1, (5, 5)))
    form = schur_form(A)
    b = extract(form, (0, 1, 3))
    N = np.eye(3, k=1) + 0j
    G = commuting(N, [1, 1, 1])
    assert len(G) == 4
    np.testing.assert_allclose(G[0], np.eye(3))
    assert all(abs(np.trace(g)) < 1e-12 for g in G[1:])
    D = 1e-3 * (rng.uniform(-1, 1, (3, 3)) + 1j * rng.uniform(-1, 1, (3, 3)))
    E0 = 1e-3 * rng.uniform(-1, 1, (5, 5)) * (1 if real else 1j)
    E = newton_step(E0, b, D, G, radial, real)
    assert np.isrealobj(E) == real
    rows, right = [], []
    for i, g in enumerate(G):
        F = (b.V @ g @ b.W).T.ravel()
        size = np.linalg.norm(F)
        d = np.trace(g @ D) + F @ E0.ravel()
        if i == 0 and radial is not None:
            rows.append(radial * F / size)
            right.append((radial * d).real / size)
        else:
            rows.append(F / size)
            right.append(d / size)
    F, d = np.array(rows), np.array(right)
    if real:
        skip = 0 if radial is None else 1
        F, d = np.vstack([F.real, F.imag[skip:]]), np.r_[d.real, d.imag[skip:]]
    twin = np.linalg.lstsq(F, d, rcond=1e-7)[0].reshape(5, 5)
    np.testing.assert_allclose(E, twin, atol=1e-9)


def test_where_a_jordan_block_is_centred():
    A = 1.01 * np.exp(0.5j) * np.array([[1, 1.0], [0, 1]])
    b = extract(schur_form(A), (0, 1))
    f = Finding(b, "defective", complex(np.exp(0.4j)), 0.0, "")
    assert centre(f, b) == pytest.approx(np.exp(0.5j))
    assert centre(Finding(b, "defective", 1 + 0j, 0.0, ""), b) == 1
    assert blocks_of_at_least((3, 2), 6) == [3, 2, 1]
    assert blocks_of_at_least((2,), 2) == [1, 1]


def test_the_constant_and_what_vanishes_beside_it():
    """phi = (1, z), z' = z / 2 + c: u = (1, 2 c) is zero, unclear or a point by how it compares with its error."""
    noise = 1e-6
    p = analyze(np.array([[1.0, 0], [0, 0.5]]), noise).projectors[0]
    error = 10 * p.error * p.norm * max(1.0, 1 / p.separation)
    for share, case in (
        (0.0, "origin"),
        (0.9, "origin"),
        (1.1, "undecided"),
        (9.0, "undecided"),
        (11.0, "fixed-point"),
    ):
        v = analyze(np.array([[1.0, 0], [share * error / 2, 0.5]]), noise, constant=0)
        assert v.case == case, share
        assert v.certain == (case == "fixed-point")
        np.testing.assert_allclose(v.point, [1, share * error], atol=1e-9)
        assert v.constant is not None
        assert v.fixed == ()
    v = analyze(np.array([[0.5, 0.3], [0, 1.0]]), constant=-1)
    assert v.case == "fixed-point"
    np.testing.assert_allclose(v.point, [0.6, 1])
    two = analyze(np.diag([1.0, 1.0, 0.2]), constant=0)
    assert two.case == "fixed-point"
    assert len(two.fixed) == 1
    assert two.point is None
    assert "not counted in J1" in two.reasons[-1]
    wide = analyze(np.array([[1.0, 0], [0.2, 0.5]]), constant=[2.0, 0.0])
    np.testing.assert_allclose(wide.point, [0.5, 0.2])
    for off, fits in ((9.9e-6, True), (1.1e-5, False)):
        A = np.array([[1.0, off * np.sqrt(1.25)], [0.2, 0.5]])
        noise = 1e-6 * np.sqrt(1.25) / np.linalg.norm(A)
        if fits:
            analyze(A, noise, constant=0)
        else:
            with pytest.raises(ValueError, match="is none"):
                analyze(A, noise, constant=0)
    for bad in ([0.0, 0.0], [1.0], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="nonzero vector of 2"):
            analyze(np.eye(2), constant=bad)
    for bad in (2, -3):
        with pytest.raises(ValueError, match="no index"):
            analyze(np.eye(2), constant=bad)


def test_what_a_verdict_says_of_itself():
    A = block_diag(turn(2 * np.pi / 5), 1.0, -1.0, 0.3)
    v = analyze(A)
    said = v.to_dict()
    assert said["case"] == "invariant-set"
    assert said["period"] == 10
    assert said["rotating"][0]["angle"] == pytest.approx(2 * np.pi / 5)
    assert sorted(len(p["indices"]) for p in said["projectors"]) == [1, 1, 2]
    assert len(said["eigenvalues"]) == 5
    np.testing.assert_allclose(sum(p.matrix for p in v.projectors), np.diag([1, 1, 1, 1, 0]), atol=1e-9)
    np.testing.assert_allclose(v.rotation, block_diag(turn(2 * np.pi / 5), 1.0, -1.0, 0.0), atol=1e-9)
    np.testing.assert_allclose(v.cesaro, np.diag([0, 0, 1.0, 0, 0]), atol=1e-9)
    lines = str(v).splitlines()
    assert "J1 1, J2 1, J3 1" in lines[1]
    assert "certainly" not in lines[0]
    assert ", certainly" in str(analyze(np.diag([0.5, 0.2])))
    many = analyze(np.diag(np.r_[np.exp(1j * np.arange(13) / 3), 0.5]))
    shown = str(many).splitlines()[2:]
    assert len(many.reasons) == 16
    assert len(shown) == 12
    assert shown[-2] == "  - ... 5 more, in `reasons`."
    assert shown[-1] == f"  - {many.reasons[-1]}"
    strict = analyze(np.eye(2), strict=True)
    assert strict.case == "undecided"
    assert strict.reasons[-1].startswith("Strict: fixed-point")
    assert strict.withheld().reasons == strict.reasons
    big = analyze(np.diag([2.0, 0.5]))
    assert big.at(1020)[0, 0] == pytest.approx(2.0**1020)
    for bad in (True, 1.5, -1):
        with pytest.raises(ValueError, match="whole number"):
            big.at(bad)
    with pytest.raises(ValueError, match="2 rows"):
        big.at(1, np.ones((2, 1, 1)))
    np.testing.assert_allclose(big.at(2, np.ones((2, 3))), [[4.0] * 3, [0.25] * 3])


def test_a_finding_of_a_large_cluster():
    """Off the circle as a whole: which side is told by the largest modulus."""
    for w, kind in (([0.5, 0.6], "inside"), ([0.5, 1.6], "outside"), ([1.5, 1.6], "outside")):
        b = extract(schur_form(np.diag(w)), (0, 1))
        f = classify(b, 1e-3, True)
        assert f.kind == kind
        assert f.eigenvalue == pytest.approx(np.mean(w))


def test_a_large_cluster_of_jordan_blocks_is_not_refined(monkeypatch):
    """What commutes with 30 blocks of size 2 is an SVD of 3,600 x 3,600, with 250 of them of a terabyte: not begun."""

    def refuse(*_):
        raise AssertionError("refined")

    monkeypatch.setattr("koopsim.spectral.jordan.commuting", refuse)
    random = np.random.default_rng(0)
    U, V = (np.linalg.qr(random.standard_normal((60, 60)))[0] for _ in range(2))
    S = U * np.geomspace(1, 1e3, 60) @ V
    J = np.kron(np.eye(30), [[1.0, 1.0], [0.0, 1.0]])
    assert analyze(S @ J @ np.linalg.inv(S)).case in ("divergent", "undecided")
