"""The adjoint of Koopman's matrix in a dictionary: duality, closed-form spectra, densities, components."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from koopsim.spectral import EDMD, Monomials, Observables, perron_frobenius

GRID = (np.arange(200_000) + 0.5) / 200_000


def legendre(degree):
    return Observables(lambda z: np.polynomial.legendre.legvander(2 * z[:, 0] - 1, degree))


def fitted(f, dictionary, x=GRID):
    return EDMD(dictionary).fit((x[:, None], f(x)[:, None]))


def test_it_is_the_adjoint():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((300, 2)), rng.standard_normal((300, 2))
    model = EDMD(Monomials(2)).fit((x, y))
    phi, after = model.transform(x), model.transform(y)
    G, C = phi.T @ phi, phi.T @ after
    assert_allclose(perron_frobenius(model, 1).matrix_, np.linalg.solve(G, C.T), atol=1e-9)
    assert_allclose(model.koopman_matrix_.T, np.linalg.solve(G, C), atol=1e-9)


def test_doubling_map_has_powers_of_a_half():
    """Bernoulli's polynomials are eigenfunctions of P; K of a polynomial is none, the adjoint is exact."""
    found = perron_frobenius(fitted(lambda x: 2 * x % 1, legendre(5)))
    assert_allclose(np.sort(np.abs(found.eigenvalues_))[::-1], 0.5 ** np.arange(6), atol=1e-4)
    assert found.mixing_rate_ == pytest.approx(0.5, abs=1e-4)
    assert_allclose(found.evaluate([0.1, 0.5, 0.9]), 1, atol=1e-3)
    assert_allclose(found.memberships([0.1, 0.9]), 1, atol=1e-9)


def test_tent_map_has_powers_of_a_quarter():
    """(P p)(y) = (p(y/2) + p(1 - y/2)) / 2 keeps degrees: 2^-n for even n, 0 for odd n."""
    found = perron_frobenius(fitted(lambda x: 1 - np.abs(1 - 2 * x), legendre(4)))
    assert_allclose(np.sort(np.abs(found.eigenvalues_))[::-1][:3], [1, 1 / 4, 1 / 16], atol=1e-4)
    assert_allclose(found.evaluate([0.1, 0.5, 0.9]), 1, atol=1e-3)


def test_rotation_fills_the_circle():
    turn = 2**0.5 - 1
    angles = [2 * np.pi, 4 * np.pi]
    waves = Observables(lambda z: np.hstack([z**0, *(g(a * z) for a in angles for g in (np.cos, np.sin))]))
    found = perron_frobenius(fitted(lambda x: (x + turn) % 1, waves))
    exact = np.exp(2j * np.pi * turn * np.arange(-2, 3))
    assert_allclose(np.sort_complex(found.eigenvalues_), np.sort_complex(exact), atol=1e-6)
    assert found.mixing_rate_ == pytest.approx(1, abs=1e-6)  # it never mixes
    assert_allclose(found.evaluate([0.1, 0.9]), 1, atol=1e-6)


def test_gauss_map_has_wirsing_s_constant():
    found = perron_frobenius(fitted(lambda x: 1 / x % 1, legendre(10)))
    second = found.eigenvalues_[np.argsort(-np.abs(found.eigenvalues_))[1]]
    assert second == pytest.approx(-0.3036630029, abs=2e-3)
    t = np.linspace(0.05, 0.95, 19)
    assert_allclose(found.evaluate(t)[0], 1 / (np.log(2) * (1 + t)), atol=0.02)


def test_logistic_map_relative_to_the_samples():
    """A long run is distributed as it will stay: relative to it the density is 1."""
    x = np.empty(20_001)
    x[0] = 0.3
    for k in range(20_000):
        x[k + 1] = 4 * x[k] * (1 - x[k])
    found = perron_frobenius(EDMD(legendre(6)).fit(x[:, None]), 1)
    assert_allclose(found.evaluate(np.linspace(0.1, 0.9, 9)), 1, atol=0.05)


def test_two_components_are_told_apart():
    """[-1, 0] and [0, 1] each carry a doubling map: two densities, each uniform on its half."""
    x = 2 * GRID - 1
    half = Observables(lambda z: np.hstack([np.vander(z[:, 0], 4) * (z < 0), np.vander(z[:, 0], 4) * (z >= 0)]))
    model = EDMD(half).fit((x[:, None], np.where(x < 0, 2 * x % -1, 2 * x % 1)[:, None]))
    with pytest.raises(ValueError, match="samples="):
        perron_frobenius(model)
    found = perron_frobenius(model, samples=x[::500])
    assert found.n_components_ == 2
    assert found.mixing_rate_ == pytest.approx(0.5, abs=1e-3)
    p, chi = found.evaluate([-0.5, 0.5]), found.memberships([-0.5, 0.5])
    first = int(np.argmax(chi[:, 0]))
    assert_allclose(p[[first, 1 - first]], 2 * np.eye(2), atol=1e-2)  # relative to samples on both halves
    assert_allclose(chi[[first, 1 - first]], np.eye(2), atol=1e-2)


def test_refusals():
    x = np.random.default_rng(0).uniform(0.2, 1, (200, 1))
    with pytest.raises(ValueError, match="add a constant"):
        perron_frobenius(EDMD(Monomials(1, constant=False)).fit((x, 0.5 * x)))
    with pytest.raises(ValueError, match="components=9"):
        perron_frobenius(EDMD(Monomials(1)).fit((x, 0.5 * x)), 9)
