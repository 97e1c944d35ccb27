"""The separation of two blocks, written out and bounded."""

import numpy as np
import pytest
from inside import upper

from koopsim.spectral import separation
from koopsim.spectral.resolvent import Allowance


def test_blocks_that_are_written_out(monkeypatch):
    """Up to so many unknowns the operator itself, beyond it the bound; whichever block is the larger."""
    A, B = np.array([[0.5, 0.4], [0, 0.25]], complex), np.array([[1.0, 0.3, 0], [0, 2.0, 0.1], [0, 0, -1.0]], complex)
    exact = separation.separation(A, B)
    assert separation.separation(B[::-1, ::-1].T, A[::-1, ::-1].T) == pytest.approx(exact)
    monkeypatch.setattr(separation, "WRITTEN_OUT", 6)
    assert separation.separation(A, B) == pytest.approx(exact)
    monkeypatch.setattr(separation, "WRITTEN_OUT", 5)
    bound = separation.separation(A, B)
    assert 0.2 * exact < bound < exact
    assert separation.separation(B[::-1, ::-1].T, A[::-1, ::-1].T) == pytest.approx(bound)
    assert separation.separation(A[:1, :1], B) == pytest.approx(
        np.linalg.svd(B - 0.5 * np.eye(3), compute_uv=False)[-1]
    )


def exact(A, B):
    return np.linalg.svd(np.kron(np.eye(len(B)), A) - np.kron(B.T, np.eye(len(A))), compute_uv=False)[-1]


@pytest.mark.parametrize("seed", range(8))
def test_both_bounds_are_bounds(seed):
    """Whatever is coupled how: never more than the operator's smallest singular value."""
    rng = np.random.default_rng(seed)
    for spread, coupling in ((1e-9, 1e-9), (1e-3, 0.1), (0.1, 0.5), (0.3, 2.0)):
        A = np.diag(1 + spread * rng.uniform(-1, 1, 5)) + coupling * np.triu(rng.standard_normal((5, 5)), 1)
        B = upper(8, seed, 1.0, 0.7)
        found = [separation.by_series(A, B), separation.by_rows(A + 0j, B)]
        assert max(found) <= exact(A, B) * (1 + 1e-9)
        assert found[1] > 0
    tight = np.eye(5) + 1e-9 * np.triu(rng.standard_normal((5, 5)))
    assert separation.by_series(tight, B) == pytest.approx(1 / np.linalg.norm(np.linalg.inv(np.eye(8) - B)), rel=1e-6)


def test_the_series_by_hand():
    """T11 = 1 + 0.2 N, T22 = 0.5: 1 / sep <= (2 + 0.2 * 4) / (1 - 0) as N^2 = 0; the operator itself says as much."""
    A, B = np.eye(2) + 0.2 * np.eye(2, k=1), np.array([[0.5]])
    assert separation.by_series(A, B + 0j) == pytest.approx(1 / 2.8)
    assert separation.by_series(np.diag([1.0, 1.1]), np.array([[1.05 + 0j]])) == 0.0  # at the mean of the others
    assert separation.by_series(np.diag([1.0, 2.0]), np.array([[1.3 + 0j]])) == 0.0  # no series


def test_a_jordan_block_beside_many_others(monkeypatch):
    """Forty eigenvalues and a drift: one row after the other has 1 / sep too large by far, the series has not."""
    A, B = np.array([[1.0, 30.0], [0, 1.0]], complex), upper(40, 2, 1.0, 0.5)
    rows, series, true = separation.by_rows(A, B), separation.by_series(A, B), exact(A, B)
    assert rows < series / 2 < series <= true
    assert separation.separation(A, B) == pytest.approx(true)
    monkeypatch.setattr(separation, "WRITTEN_OUT", 5)
    for most in (39, 40):  # small ones take the better of two
        monkeypatch.setattr(separation, "DENSE", most)
        assert separation.separation(A, B) == pytest.approx(series)
        assert separation.separation(B[::-1, ::-1].T, A[::-1, ::-1].T) == pytest.approx(series)


def test_what_will_not_be_enough_is_given_up():
    """Rows are asked last ones first, twice as many each time, until they bound more than `enough` allows."""
    A, B = upper(16, 5, 3.0, 0.9), upper(20, 6, 1.0, 0.9) + 3 * np.eye(20)
    whole = separation.by_rows(A, B)
    for enough in (0.0, 0.99 * whole):
        allowance = Allowance(1e9)
        assert separation.by_rows(A, B, allowance, enough) == whole
        assert allowance.left == 1e9 - 16 * 20**3
    assert separation.by_rows(A, B, Allowance(1e9), 1.01 * whole) == 0.0
    early = Allowance(1e9)
    assert separation.by_rows(A, B, early, 2 * separation.by_rows(A[12:, 12:], B)) == 0.0
    assert early.left >= 1e9 - 4 * 20**3
    assert separation.by_rows(A, B, Allowance(15 * 20.0**3)) == 0.0
    tight = np.eye(4) + 0.01 * np.eye(4, k=1)
    bound = separation.by_series(tight, B)
    assert separation.by_series(tight, B, None, 0.9 * bound) == bound > 0
    assert separation.by_series(np.eye(4) + np.eye(4, k=1), B, None, 10.0) == 0.0
    spent = Allowance(0.0)
    assert separation.by_series(np.eye(4) + np.eye(4, k=1), B, spent) == 0.0
    assert spent.spent
