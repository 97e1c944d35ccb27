"""Large matrices in a bad basis: what a proof may cost, and that a sharper one is not missed."""

import numpy as np
import pytest
from scipy.linalg import block_diag

from koopsim.spectral import analyze
from koopsim.spectral.analysis import _inside, examine_clusters
from koopsim.spectral.clusters import SchurForm, schur_form
from koopsim.spectral.noise import EPS64
from koopsim.spectral.resolvent import Allowance
from koopsim.spectral.structure import SNAP_ROUNDING

N = 100


def in_a_bad_basis(*parts, condition=1e3, seed=0, n=N):
    """The direct sum of the parts, the rest up to n rows inside, under a similarity of this condition."""
    rng = np.random.default_rng(seed)
    J = block_diag(*parts)
    J = block_diag(J, np.diag(rng.uniform(-0.9, 0.9, n - len(J))))
    U, V = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    S = U * np.geomspace(1, condition, n) @ V
    return S @ J @ np.linalg.inv(S)


def rotation(angle):
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def jordan(mu, size):
    return mu * np.eye(size) + np.eye(size, k=1)


ANGLES = np.random.default_rng(3).uniform(0.05, 3.1, N // 2)
INSIDE = np.linspace(-0.8, 0.8, N // 2)
KNOWN = {
    "half of the eigenvalues at 1": ("fixed-point", [np.eye(N // 2)]),
    "rotations by even angles": ("invariant-set", [rotation(t) for t in np.linspace(0.01, 3.13, N // 2)]),
    "rotations by random angles": ("invariant-set", [rotation(t) for t in ANGLES]),
    "1, -1 and rotations": ("invariant-set", [np.eye(N // 2), -np.eye(5), *map(rotation, ANGLES[:10])]),
    "a drift beside others": ("divergent", [jordan(1, 2)]),
    "1 and Jordan blocks inside": ("fixed-point", [np.eye(N // 2), *[jordan(t, 2) for t in INSIDE[::4]]]),
    "1 and one Jordan block inside": ("fixed-point", [np.eye(3), jordan(0.8, 3)]),
    "Jordan blocks inside": ("origin", [jordan(t, 2) for t in INSIDE]),
    "many just inside": ("origin", [(1 - 1e-4) * np.eye(N // 2)]),
    "some just outside": ("divergent", [1.01 * np.eye(3), jordan(0.8, 3)]),
}
BY_EIGENVECTORS = 3  # inverses of the whole that may be paid for on the side; it was up to 17
BY_SERIES = 400  # where a Jordan block leaves no eigenvectors; it was 1,700 to 3,700


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_is_told(name):
    case, parts = KNOWN[name]
    for seed in range(2):
        verdict = analyze(in_a_bad_basis(*parts, seed=seed))
        assert verdict.case == case
        assert verdict.certain == (case == "origin" or name == "some just outside")


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_is_cheap(name):
    """In inverses of the whole matrix, which is what proofs are paid in."""
    form = schur_form(in_a_bad_basis(*KNOWN[name][1]))
    jordans = "Jordan" in name or name in ("a drift beside others", "some just outside")
    paid = Allowance((BY_SERIES if jordans else BY_EIGENVECTORS) * N**3)
    delta = 64 * N * EPS64 * float(np.linalg.norm(form.T))
    findings, _, _ = examine_clusters(SchurForm(form.T, form.Q, form.conjugate, paid), delta, SNAP_ROUNDING)
    assert not paid.spent
    assert "unclear" not in {f.kind for f in findings}


def test_no_certainty_that_a_matrix_within_the_noise_breaks():
    """Certainly at the origin: put the smallest matrix that has an eigenvalue on the circle beside the noise."""
    rng = np.random.default_rng(5)
    certain = 0
    for gap in (1e-2, 1e-3, 1e-4, 1e-5, 1e-7):
        for part in (jordan(1 - gap, 2), (1 - gap) * np.eye(20), np.diag(1 - gap * rng.uniform(1, 2, 30))):
            A = in_a_bad_basis(part, condition=30.0)
            for noise in (1e-10, 1e-8, 1e-6):
                verdict = analyze(A, noise)
                if verdict.certain and verdict.case == "origin":
                    certain += 1
                    z = np.exp(1j * np.r_[0, gap * np.arange(1, 4), 1, np.pi])
                    reached = np.linalg.svd(A - z[:, None, None] * np.eye(N), compute_uv=False)[:, -1].min()
                    assert reached > noise * np.linalg.norm(A)
    assert 15 <= certain < 45


def test_the_others_taken_together():
    """No circle between them and the others is shown to be clear; as one cluster they are shown to be inside."""
    form = schur_form(in_a_bad_basis(np.eye(3), jordan(0.8, 3)))
    delta = 64 * N * EPS64 * float(np.linalg.norm(form.T))
    little = SchurForm(form.T, form.Q, form.conjugate, Allowance(BY_SERIES * N**3))
    findings, notes, _ = examine_clusters(little, delta, SNAP_ROUNDING)
    assert [f.kind for f in findings] == ["fixed"]
    assert notes == [f"{N - 3} of {N} eigenvalues, together, lie inside for every matrix within the noise."]
    rest = set(range(N)) - set(findings[0].block.indices)
    assert _inside(form, rest, delta)
    assert not _inside(form, rest, 1e3 * delta)  # not isolated at that noise
    assert not _inside(form, rest | set(findings[0].block.indices), delta)
    assert not _inside(schur_form(np.diag(np.linspace(-0.9, 0.9, N))), {0, 1}, delta)  # nobody needs it


def test_five_hundred_rows():
    """What benchmarks/spectral_speed.py had as undecided: as many rows, as bad a basis."""
    half = in_a_bad_basis(np.eye(250), n=500)
    verdict = analyze(half)
    assert verdict.case == "fixed-point"
    assert len(verdict.fixed) == 250
    assert np.linalg.norm(half @ verdict.limit - verdict.limit) < 1e-8 * np.linalg.norm(half)
    turning = in_a_bad_basis(*map(rotation, np.random.default_rng(1).uniform(0, np.pi, 250)), n=500)
    verdict = analyze(turning)
    assert verdict.case == "invariant-set"
    assert len(verdict.rotating) == 250
