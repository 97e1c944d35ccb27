"""What eigenvectors prove, also inexact ones, and those that prove nothing."""

import numpy as np
import pytest
from inside import upper
from numpy.testing import assert_allclose

from koopsim.spectral import eigenbasis as module
from koopsim.spectral.eigenbasis import eigenbasis


def test_eigenvectors_that_prove_nothing():
    """A Jordan block has no basis of them: infinite slack, and neither circle nor isolation is claimed."""
    J = np.eye(3) + np.eye(3, k=1) + 0j
    basis = eigenbasis(J)
    assert basis.slack == np.inf
    assert np.isinf(basis.norms).all()
    assert basis.isolation(0) == 0.0
    assert not basis.clear_of_circle(3.0, 1e-9, 2 * np.pi)
    zero = eigenbasis(np.zeros((2, 2), complex))
    assert_allclose(zero.X, np.eye(2))
    assert zero.isolation(0) <= 0.0


def smallest(T, z):
    """sigma_min(T - z I) for each z."""
    return np.linalg.svd(T - np.asarray(z)[:, None, None] * np.eye(len(T)), compute_uv=False)[:, -1]


@pytest.mark.parametrize("seed", range(6))
def test_inexact_eigenvectors_are_paid_for_by_their_slack(seed, monkeypatch):
    """Columns that are off by 1e-4 bound the resolvent of T itself, and one error a column is all they cost."""
    T = upper(9, seed, 0.4, 0.9)
    exact = eigenbasis(T)
    noise = np.random.default_rng(seed).standard_normal((9, 9, 2)) @ [1e-4, 1e-4j]
    monkeypatch.setattr(module, "_halves", lambda *_: (exact.X + noise, np.linalg.inv(exact.X + noise)))
    rough = eigenbasis(T)
    off = np.linalg.norm(T @ rough.X - rough.X * np.diag(T), axis=0)
    assert rough.slack == pytest.approx(off.max(), rel=1e-9)
    assert_allclose(rough.residuals, off)
    z = np.concatenate([w + r * np.exp(1j * np.arange(40)) for w in np.diag(T) for r in (1e-3, 0.1, 0.5)])
    claimed = 1 / (rough.norms / np.abs(np.diag(T) - z[:, None])).sum(axis=1) - rough.slack
    assert np.all(claimed <= smallest(T, z))
    assert np.any(claimed > 0) == (seed != 5)  # whose eigenvalues are close


@pytest.mark.parametrize("seed", range(6))
def test_one_eigenvalue_in_a_disc(seed):
    """Nothing within the noise has an eigenvalue on |z - lambda_i| = 2 p (noise + slack), lambda_i is alone in it."""
    T = upper(9, seed, 1.5, 0.9)
    basis, w = eigenbasis(T), np.diag(T)
    for i in range(9):
        noise = basis.isolation(i)
        assert noise > 0
        r = 2 * basis.norms[i] * (noise + basis.slack)
        assert np.sum(np.abs(w - w[i]) <= 2 * r * (1 - 1e-12)) == 1
        assert smallest(T, w[i] + r * np.exp(2j * np.pi * np.arange(200) / 200)).min() > noise
    gap = np.abs(w[:, None] - w) + np.diag(np.full(9, np.inf))
    by_sum, by_gap = 1 / (basis.norms / gap).sum(axis=1), gap.min(axis=1) / basis.norms
    found = [basis.isolation(i) for i in range(9)]
    assert_allclose(found, np.minimum(by_sum, by_gap) / 4 - basis.slack)
