"""R by products against Householder's: same Gram matrix, same least squares, whatever the data."""

import numpy as np
import pytest

from koopsim.spectral.factor import Columns, by_products, householder, triangle
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
    if kind == "some exact":
        Q = L @ A
        Q[:, 3:] += normal(3000, 3)
        return Columns(L, Q, L[:, :2])
    if kind == "bent":
        x = np.tanh(0.9 * L[:, 1])
        return Columns(L, x[:, None] ** np.arange(12), L[:, 1:2])
    return Columns(L, np.tanh(L @ A) + 0.1 * normal(3000, 6), L[:, :2])


@pytest.mark.parametrize("kind", ["noisy", "exact", "some exact", "bent", "complex"])
def test_by_products_is_householders(kind):
    c = columns(kind)
    fast, slow = by_products(c), householder(c)
    assert fast is not None
    a, b = c.lead.shape[1], c.lead.shape[1] + c.image.shape[1]
    size = np.linalg.norm(slow[:, :b], axis=0)
    np.testing.assert_allclose(
        fast[:, :b].conj().T @ fast[:, :b] / size / size[:, None],
        slow[:, :b].conj().T @ slow[:, :b] / size / size[:, None], atol=1e-13,
    )  # fmt: skip
    whiten = np.linalg.inv(slow[:a, :a])
    K = [np.linalg.solve(R[:a, :a], R[:a, a:b]) for R in (fast, slow)]
    assert np.linalg.norm(slow[:a, :a] @ (K[0] - K[1])) < 1e-11 * np.linalg.norm(slow[:a, a:b])
    left = [np.linalg.norm(R[a:b, a:b], axis=0) / size[a:b] for R in (fast, slow)]
    np.testing.assert_allclose(left[0], left[1], rtol=1e-6, atol=1e-13)  # misfits of rounding size included
    coefficients = [np.linalg.solve(R[:a, :a], R[:a, b:]) for R in (fast, slow)]
    np.testing.assert_allclose(coefficients[0], coefficients[1], atol=1e-8 * np.abs(whiten).max())
    assert np.linalg.norm(fast[a:, -1]) == pytest.approx(np.linalg.norm(slow[a:, -1]), abs=1e-9, rel=1e-6)


def test_columns_that_depend_are_left_to_householder():
    L = normal(2000, 4)
    assert by_products(Columns(np.c_[L, L[:, 0] + L[:, 1]], L, L[:, :1])) is None
    c = Columns(np.c_[L, L[:, 0] + L[:, 1]], L, L[:, :1])
    np.testing.assert_allclose(triangle(c), householder(c))


def test_the_ends_of_a_trajectory_are_told_apart():
    Z = normal(500, 3)
    one, two = Columns(Z[:-1], Z[1:], Z[:-1, :0], True), Columns(Z[:-1], Z[1:], Z[:-1, :0], False)
    np.testing.assert_allclose(by_products(one), by_products(two), atol=1e-10)
    Z[0] = 1e6  # dominates, so the image's own products are formed
    one = Columns(Z[:-1], Z[1:], Z[:-1, :0], True)
    np.testing.assert_allclose(np.linalg.norm(triangle(one)[:, 3:6], axis=0), np.linalg.norm(Z[1:], axis=0), rtol=1e-9)


def test_pieces_add_up():
    c = columns("noisy")
    whole, parts = Triangle(), Triangle()
    whole.add(c)
    for i in range(0, 3000, 170):
        parts.add(Columns(c.lead[i : i + 170], c.image[i : i + 170], c.state[i : i + 170]))
    assert parts.rows == whole.rows == 3000
    a, b = whole.R[:12, :12], parts.R[:12, :12]
    np.testing.assert_allclose(a.T @ a, b.T @ b, rtol=1e-9, atol=1e-6)


def test_torch_does_the_products():
    pytest.importorskip("torch")
    for kind in ("noisy", "exact", "bent", "complex"):
        c = columns(kind)
        here, there = triangle(c), triangle(c, "cpu")
        b = c.lead.shape[1] + c.image.shape[1]
        G, H = here[:, :b].conj().T @ here[:, :b], there[:, :b].conj().T @ there[:, :b]
        np.testing.assert_allclose(G, H, atol=1e-10 * np.abs(G).max())
