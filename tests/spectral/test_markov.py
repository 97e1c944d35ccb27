"""Finite chains with known stationary laws: reducible, periodic, large, slow."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import diags_array

from koopsim.spectral import markov_chain


def test_two_states():
    a, b = 0.3, 0.1
    chain = markov_chain([[1 - a, a], [b, 1 - b]])
    assert_allclose(chain.laws, [[b / (a + b), a / (a + b)]])
    assert_allclose(chain.mixing_rates, [1 - a - b])
    assert chain.periods == (1,)


def test_a_reducible_chain_has_a_law_for_each_class():
    """Gambler's ruin: 0 and 4 absorb; from k the chance of 4 is k / 4."""
    P = np.zeros((5, 5))
    P[0, 0] = P[4, 4] = 1
    for k in (1, 2, 3):
        P[k, k - 1] = P[k, k + 1] = 0.5
    chain = markov_chain(P)
    assert len(chain.classes) == 2
    assert_allclose(chain.laws.sum(axis=1), 1)
    up = chain.absorption()[[int(c[0]) for c in chain.classes].index(4)]
    assert_allclose(up, np.arange(5) / 4)


@pytest.mark.parametrize("n", [2, 3, 7, 500])
def test_a_cycle_has_its_period(n):
    chain = markov_chain(np.roll(np.eye(n), 1, axis=1))
    assert chain.periods == (n,)
    assert_allclose(chain.laws, np.full((1, n), 1 / n), atol=1e-9)
    assert chain.mixing_rates[0] == pytest.approx(1)


@pytest.mark.parametrize("n", [50, 600])
def test_a_birth_and_death_chain(n):
    """Up with 0.39, down with 0.4: pi_k ~ (0.975)^k. Small ones densely, large ones by Arnoldi."""
    up, down = np.full(n - 1, 0.39), np.full(n - 1, 0.4)
    stay = 1 - np.r_[up, 0] - np.r_[0, down]
    chain = markov_chain(diags_array([down, stay, up], offsets=[-1, 0, 1]))
    exact = 0.975 ** np.arange(n)
    assert np.abs(chain.laws[0] - exact / exact.sum()).sum() < 1e-8
    assert chain.mixing_rates[0] == pytest.approx(0.21 + 2 * np.sqrt(0.156) * np.cos(np.pi / n), abs=1e-4)


def test_random_chains_against_powers():
    rng = np.random.default_rng(0)
    for n in (3, 20, 450):
        P = rng.dirichlet(np.full(n, 0.2), size=n)
        chain = markov_chain(P)
        assert_allclose(np.linalg.matrix_power(P, 4000)[0], chain.laws[0], atol=1e-8)


@pytest.mark.parametrize("P", [np.ones((2, 3)), np.eye(2) * 0.5, [[1.5, -0.5], [0, 1]], [[np.nan, 1], [0, 1]]])
def test_what_is_no_chain_is_refused(P):
    with pytest.raises(ValueError, match="transition matrix"):
        markov_chain(P)
