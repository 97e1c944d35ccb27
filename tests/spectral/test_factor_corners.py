"""Factors where they begin and end: rows that are just enough, dependent columns, a constant nearly in the span."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral import factor
from koopsim.spectral.factor import Columns, by_products, cholesky, householder, leading_rows, root

RNG = np.random.default_rng


def test_rows_that_are_enough_for_products():
    """Twice as many rows as columns; a Gram matrix that is worth a millionth, and no column of zeros."""
    L = RNG(0).standard_normal((8, 4))
    assert by_products(Columns(L, L, L[:, :0])) is not None
    assert by_products(Columns(L[:7], L[:7], L[:7, :0])) is None
    for rows in (8, 7):
        c = Columns(L[:rows], 2 * L[:rows], L[:rows, :1])
        R, H = leading_rows(c), householder(c)
        assert R.shape == (5, 10)
        assert_allclose(R[:4].T @ R[:4], H[:4].T @ H[:4], atol=1e-9)
        assert R[4, -1] == pytest.approx(np.linalg.norm(H[4:, -1]), abs=1e-9)
        assert not R[4, :-1].any()
    for G in (np.diag([1.0, 0.0]), np.diag([1.0, np.inf]), np.diag([1.0, np.nan]), np.ones((2, 2)), -np.eye(2)):
        with np.errstate(invalid="ignore"):
            assert cholesky(G) is None
    for off, good in ((1e-5, True), (1e-7, False)):  # 1 - c of the correlation c is twice the reciprocal condition
        G = np.array([[1.0, 1 - off], [1 - off, 1.0]])
        assert (cholesky(G) is not None) == good
    assert_allclose(cholesky(np.array([[4.0, 2.0], [2.0, 10.0]])), [[2, 1], [0, 3]])
    for S in (np.diag([0.0, 4.0]), np.array([[1.0, 1.0], [1.0, 1.0]]), np.diag([1e-30, 1.0]), np.diag([-1e-18, 1.0])):
        assert_allclose(root(S).T @ root(S), np.maximum(S, 0), atol=1e-16)
    assert factor._rcond(np.diag([1.0, 0.0])) == 0.0
    assert factor._rcond(np.diag([5.0, 1e-9])) == 1.0  # in units of each column


def test_a_few_rows_stand_for_the_rest(monkeypatch):
    """Thirty-two rows a column, where they are needed and can be borne."""
    steep = np.array([[1.0, 1.0], [0.0, 1e-5]])
    L = RNG(0).standard_normal((64, 2)) @ steep
    assert factor._few(Columns(L, L, L)) is not None
    assert factor._few(Columns(L[:63], L[:63], L[:63])) is None
    plain = RNG(0).standard_normal((64, 2))
    assert factor._few(Columns(plain, plain, plain)) is None  # well conditioned
    twice = np.c_[plain[:, 0], plain[:, 0]]
    assert factor._few(Columns(twice, twice, twice)) is None  # they depend on each other
    assert factor._few(Columns(0 * plain, plain, plain)) is None
    c = Columns(L, np.tanh(L), L[:, :1])
    fast, slow = by_products(c), householder(c)
    assert_allclose(np.abs(np.diag(fast)[:2]), np.abs(np.diag(slow)[:2]), rtol=1e-9)
    asked = []
    qr = factor.qr_rows
    monkeypatch.setattr(factor, "qr_rows", lambda rows, *rest: asked.append(len(rows)) or qr(rows, *rest))
    tall = RNG(0).standard_normal((5000, 2)) @ steep
    factor._few(Columns(tall, tall, tall))
    assert asked == [8, 10]  # four rows a column, then R and the four largest a column


def test_the_constant_in_the_span_to_many_digits():
    """The difference of squares tells 1e-3 from nothing; below 1e-5 it is measured."""
    x = RNG(0).standard_normal((200, 1))
    for off in (1e-2, 1e-4, 3e-6, 1e-8):
        wave = off * np.where(np.arange(200) % 2, 1.0, -1.0)[:, None]
        L = np.c_[1 + wave, x]
        R = by_products(Columns(L, L, L[:, :0]))
        left = np.linalg.norm(np.ones(200) - L @ np.linalg.lstsq(L, np.ones(200), rcond=None)[0])
        assert R[2, -1] == pytest.approx(left, rel=1e-3)
