"""Verdicts on hidden iterations whose behaviour is known, against what the iteration really does."""

import sys

import numpy as np
import pytest
import torch
from cells import Affine, inputs, rotation

from koopsim.bridge import linearise, observe, plot_observation
from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ, TransformerDEQ
from koopsim.spectral import Monomials


def drift(z, x):
    return z + x


def halve(z, x):
    return 0.5 * z


def flip(z, x):
    return x - z


CASES = {
    "contraction": (Affine(4, 3, 0.8, torch.tanh), 3, "fixed-point"),
    "affine": (Affine(4, 3, 0.9), 3, "fixed-point"),
    "rotation": (rotation(0.7), 2, "invariant-set"),
    "slow spiral in": (rotation(0.7, 0.98), 2, "fixed-point"),
    "flip": (flip, 2, "invariant-set"),
    "expansion": (rotation(0.7, 1.05), 2, "divergent"),
    "drift": (drift, 2, "divergent"),
    "to the origin": (halve, 2, "origin"),
}


@pytest.mark.parametrize("name", CASES)
def test_known_behaviour(name):
    cell, size, case = CASES[name]
    seen = observe(cell, inputs(4, size), steps=120)
    assert seen.cases == (case,) * 4, (seen.cases, seen.verdicts[0].reasons)
    assert seen.case == case
    assert seen.agreement == {"agree": 1.0, "undecided": 0.0, "disagree": 0.0}
    assert seen.settled.all() == (case in ("fixed-point", "origin"))


def test_a_super_stable_and_a_bursting_cell():
    assert observe(lambda z, x: x, inputs(2, 2)).case == "fixed-point"
    assert observe(lambda z, x: z**3 + 10 + x**2, inputs(2, 2)).case == "divergent"


SLOW = {
    "square root": lambda z, x: z + 1 / (1 + z.abs()),
    "logarithm": lambda z, x: z + torch.exp(-z.abs()),
    "cube root": lambda z, x: z + 1 / (1 + z.abs()) ** 2,
    "two of them": lambda z, x: z + 1 / (1 + z.abs().sum(-1, keepdim=True)) * torch.tensor([1.0, -0.3]),
}


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("steps", [120, 500])
def test_what_grows_ever_more_slowly_is_not_settled(name, steps):
    seen = observe(SLOW[name], torch.zeros(1, 2 if name.startswith("two") else 1), steps=steps)
    assert not set(seen.cases) & {"fixed-point", "origin", "invariant-set"}


@pytest.mark.parametrize("rates", [(0.97, 0.9), (0.995, 0.8), (0.999, 0.5), (0.95, -0.95)])
def test_slow_exponentials_are_still_settled(rates):
    """Nothing slackens there, though it takes long, and a fast one is over before."""
    W = torch.diag(torch.tensor(rates, dtype=torch.float64))
    assert observe(lambda z, x: z @ W + x, inputs(2, 2)).cases == ("fixed-point",) * 2


def test_chaos_is_not_called_settled():
    cell = Affine(10, 3, 1.8, torch.tanh, seed=1)
    seen = observe(cell, 0.1 * inputs(4, 3))
    assert not seen.settled.any()
    assert not set(seen.cases) & {"fixed-point", "origin"}
    assert seen.agreement["disagree"] == 0


def test_a_cell_that_settles_for_some_inputs_only():
    W = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)

    def cell(z, x):  # tanh(a W z): a Hopf bifurcation at a = 1
        return torch.tanh(x[:, :1] * z @ W.T + 0.1)

    x = torch.tensor([[0.5], [0.7], [1.5], [2.0]], dtype=torch.float64).expand(4, 2).clone()
    seen = observe(cell, x)
    assert seen.settled.tolist() == [True, True, False, False]
    assert seen.agreement["disagree"] == 0
    assert seen.cases[:2] == ("fixed-point", "fixed-point")
    assert [l.stable for l in linearise(cell, x)] == [True, True, False, False]


def test_trajectories_feed_edmd():
    cell = Affine(3, 2, 0.8)
    seen = observe(DEQ(cell), inputs(6, 2), steps=20, starts=3)
    z, x = seen.trajectories()
    assert len(z) == len(x) == 18
    assert z[0].shape == (21, 3)
    assert x[0].shape == (2,)
    model = seen.koopman(Monomials(1), dims=None, rtol=None)
    expected = np.sort(np.abs([1, 1, 1, *np.linalg.eigvals(cell.W.detach().numpy())]))
    assert np.allclose(np.sort(np.abs(model.eigenvalues_)), expected, atol=1e-6)
    assert model.verdict().case == "fixed-point"
    assert seen.koopman(Monomials(1), dims=2).n_features_in_ == 2


def test_trajectories_end_where_nothing_moves():
    calls = []

    def cell(z, x):
        calls.append(len(z))
        return (0.5 * z).round(decimals=3) + x.round(decimals=3)

    x = inputs(2, 2)
    seen = observe(cell, x, steps=400, starts=1)
    assert seen.states.shape == (2, 1, 401, 2)
    assert len(calls) < 150  # at rest, it is not evaluated 400 times
    (first, second), _ = seen.trajectories()
    for t, whole, u in zip((first, second), seen.states[:, 0], x.numpy(), strict=True):
        assert len(t) < 40
        assert np.array_equal(t[-1], t[-2])
        assert not np.array_equal(t[-2], t[-3])
        z, states = np.zeros(2), [np.zeros(2)]
        for _ in range(400):
            z = (0.5 * z).round(3) + u.round(3)
            states.append(z)
        assert np.allclose(whole, states, atol=1e-12)


def test_inputs_in_pieces_are_observed_alike(monkeypatch):
    cell, x, told = Affine(4, 3, 0.9, torch.tanh), inputs(5, 3), []
    whole = observe(DEQ(cell), x, steps=60)
    monkeypatch.setattr(sys.modules["koopsim.bridge.observe"], "AT_ONCE", 2 * 2 * 4)  # the function has its name
    pieces = observe(DEQ(cell), x, steps=60, progress=lambda done, total: told.append((done, total)))
    assert told == [(2, 5), (4, 5), (5, 5)]
    assert pieces.cases == whole.cases
    assert np.allclose(pieces.states, whole.states, rtol=1e-10, atol=1e-13)
    assert torch.equal(pieces.plain.steps, whole.plain.steps)
    assert pieces.solver is not None
    assert pieces.solver.steps.shape == (5,)
    linearise(cell, x, progress=lambda done, total: told.append((done, total)))
    assert told[3:] == [(i, 5) for i in range(1, 6)]


def test_principal_directions_by_lanczos_are_those_of_the_whole(monkeypatch):
    from koopsim.bridge.principal import principal

    rng = np.random.default_rng(0)
    samples = rng.standard_normal((300, 6)) * [9, 7, 5, 3, 1, 0.1] @ rng.standard_normal((6, 200)) + 5
    for centred in (True, False):
        mean, P = principal(samples, 4, centred)
        monkeypatch.setattr("koopsim.bridge.principal.LARGE", 20)
        same, Q = principal(samples, 4, centred)
        monkeypatch.undo()
        assert np.array_equal(mean, same)
        assert np.allclose(np.abs(P.T @ Q), np.eye(4), atol=1e-8)


def test_a_diverging_run_can_still_be_fitted():
    seen = observe(rotation(0.3, 8.0), inputs(3, 2), steps=60)
    assert seen.case == "divergent"
    z, _ = seen.trajectories(2)
    assert all(np.isfinite(t).all() for t in z)


def test_jacobian_is_the_matrix_of_an_affine_cell():
    for size in (4, 60):  # dense, and Arnoldi
        cell = Affine(size, 3, 0.8)
        exact = np.linalg.eigvals(cell.W.detach().numpy())
        exact = np.sort(np.abs(exact))[::-1][:4]
        for local in linearise(DEQ(cell), inputs(2, 3), count=4):
            assert local.found
            assert local.stable
            assert np.allclose(np.abs(local.eigenvalues), exact, rtol=1e-5)
            assert local.radius == pytest.approx(exact[0])


def test_no_equilibrium_no_linearisation():
    (local,) = linearise(drift, torch.ones(1, 2))
    assert not local.found
    assert local.stable is None
    assert np.isnan(local.radius)
    (flat,) = linearise(lambda z, x: x, torch.ones(1, 2))
    assert flat.radius == 0


def test_transformer():
    """At a large embedding the untrained cell settles for two inputs and flips for one."""
    torch.manual_seed(0)
    model = TransformerDEQ()
    with torch.no_grad():
        model.embedding.mul_(50)
    tokens = torch.randint(0, 10, (3, 12))
    seen, local = observe(model, tokens, steps=60), linearise(model, tokens, count=3)
    assert seen.states.shape == (3, 2, 61, 12 * 40)
    assert seen.inputs.shape == (3, 12 * 120)
    assert seen.solver is not None
    assert seen.cases == ("invariant-set", "fixed-point", "fixed-point")
    assert seen.case == "mixed"
    assert seen.agreement["agree"] == 1
    assert [l.stable for l in local] == seen.settled.tolist() == [False, True, True]
    for i in (1, 2):  # EDMD and Arnoldi see the same leading eigenvalue
        assert np.abs(seen.verdicts[i].eigenvalues).max() == pytest.approx(local[i].radius, rel=0.15)
    assert len(plot_observation(seen, local).axes) == 2


def test_observing_leaves_the_model_alone():
    model = TransformerDEQ()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    observe(model, torch.randint(0, 10, (1, 5)), steps=10)
    assert model.embedding.dtype == torch.float32
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize(
    ("x", "options", "words"),
    [
        (torch.empty(0, 2), {}, "at least one"),
        (torch.full((2, 2), torch.nan), {}, "NaN"),
        (torch.ones(2, 2), {"steps": 3}, "at least 8 steps"),
        (torch.ones(2, 2, dtype=torch.int64), {}, "initial"),
    ],
)
def test_bad_input(x, options, words):
    with pytest.raises(KoopsimError, match=words):
        observe(drift, x, **options)
