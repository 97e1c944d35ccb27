"""R by products against Householder's: same Gram matrix, same least squares, whatever the data."""

import numpy as np
import pytest

from koopsim.spectral.factor import Columns, by_products, gram_matrix, householder, leading_rows, product
from koopsim.spectral.regression import Triangle

RNG = np.random.default_rng(0)


def normal(m, d):
    return RNG.standard_normal((m, d))


def powers(m, degree):
    x = RNG.uniform(-1, 1, m)
    return x[:, None] ** np.arange(degree + 1)


def columns(kind):
    A = np.linalg.qr(normal(6, 6))[0]
    L = powers(3000, 11) if kind == "bent" else normal(3000, 6) @ np.diag(10.0 ** np.arange(6))
    if kind == "complex":
        L = L[:, :6] + 1j * normal(3000, 6)
    if kind == "exact":
        return Columns(L, L @ A, L[:, :2])
    if kind == "bent":
        x = np.tanh(0.9 * L[:, 1])
        return Columns(L, x[:, None] ** np.arange(12), L[:, 1:2])
    return Columns(L, np.tanh(L @ A) + 0.1 * normal(3000, 6), L[:, :2])


@pytest.mark.parametrize("kind", ["noisy", "exact", "bent", "complex"])
def test_by_products_is_householders(kind):
    c = columns(kind)
    fast, slow = by_products(c), householder(c)
    assert fast is not None
    a, b = c.lead.shape[1], c.lead.shape[1] + c.image.shape[1]
    size = np.linalg.norm(slow[:a, :a], axis=0)
    G, H = (R[:a, :a].conj().T @ R[:a, :a] / size / size[:, None] for R in (fast, slow))
    np.testing.assert_allclose(G, H, atol=1e-13)
    K = [np.linalg.solve(R[:a, :a], R[:a, a:b]) for R in (fast, slow)]
    assert np.linalg.norm(slow[:a, :a] @ (K[0] - K[1])) < 1e-10 * np.linalg.norm(slow[:a, a:b])
    tail = [np.linalg.solve(R[:a, :a], R[:a, b:]) for R in (fast, slow)]
    assert np.linalg.norm(slow[:a, :a] @ (tail[0] - tail[1])) < 1e-10 * np.linalg.norm(slow[:a, b:])
    assert fast[a, -1] == pytest.approx(np.linalg.norm(slow[a:, -1]), abs=1e-8, rel=1e-6)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("width", [12, 40])
def test_both_layouts_are_straightened(width, order):
    """Narrow and wide, rows or columns in one piece: the triangular inverse is put on the right side."""
    steep = np.triu(np.ones((width, width)) * 10.0 ** -np.linspace(0, 5, width)[:, None])
    L = np.array(normal(4000, width) @ steep, order=order)
    c = Columns(L, np.tanh(L), L[:, :2])
    fast, slow = by_products(c), householder(c)
    assert fast is not None
    signs = np.sign(np.diag(fast)[:width]) * np.sign(np.diag(slow)[:width])
    np.testing.assert_allclose(fast[:width], signs[:, None] * slow[:width], atol=1e-8 * np.abs(slow[:width]).max())


@pytest.mark.parametrize(("m", "a", "b"), [(5000, 3, 1), (2001, 32, 32), (700, 31, 4), (900, 33, 2)])
def test_products_by_pieces(m, a, b):
    A, B = normal(m, a), normal(m, b)
    for x, y in ((A, B), (np.asfortranarray(A), B), (A + 1j * normal(m, a), B), (A.astype(np.float32), B)):
        np.testing.assert_allclose(product(x, y), x.conj().T @ y, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(gram_matrix(A), A.T @ A, rtol=1e-10, atol=1e-9)


def test_columns_that_depend_are_left_to_householder():
    L = normal(2000, 4)
    c = Columns(np.c_[L, L[:, 0] + L[:, 1]], L, L[:, :1])
    assert by_products(c) is None
    np.testing.assert_allclose(leading_rows(c)[:5], householder(c)[:5])
    assert by_products(Columns(L[:7], L[:7], L[:7, :1])) is None  # few rows


def test_outliers_lose_no_digits():
    """Rows that a random choice misses decide the condition of steep monomials: straightened or left to Householder."""
    x = np.r_[RNG.uniform(-0.5, 0.5, 4000), 1.5, -1.5]
    L = x[:, None] ** np.arange(9)
    c = Columns(L, L, L[:, 1:2])
    fast = leading_rows(c)
    np.testing.assert_allclose(np.abs(np.diag(fast)[:9]), np.abs(np.diag(householder(c))[:9]), rtol=1e-7)


@pytest.mark.parametrize("leading", [True, False])
def test_pieces_add_up(leading):
    c = columns("noisy")
    whole, parts = Triangle(leading=leading), Triangle(leading=leading)
    whole.add(c)
    for i in range(0, 3000, 170):
        parts.add(Columns(c.lead[i : i + 170], c.image[i : i + 170], c.state[i : i + 170]))
    assert parts.rows == whole.rows == 3000
    a, b = whole.R[:6], parts.R[:6]
    np.testing.assert_allclose(a.T @ a, b.T @ b, rtol=1e-9, atol=1e-6)
    assert np.linalg.norm(whole.R[6:, -1]) == pytest.approx(np.linalg.norm(parts.R[6:, -1]))


@pytest.mark.parametrize("work", [leading_rows, householder])
def test_torch_does_the_products(work):
    pytest.importorskip("torch")
    for kind in ("noisy", "exact", "bent", "complex"):
        c = columns(kind)
        here, there = (R[: c.lead.shape[1]] for R in (work(c), work(c, "cpu")))
        G, H = here.conj().T @ here, there.conj().T @ there
        np.testing.assert_allclose(G, H, atol=1e-10 * np.abs(G).max())
