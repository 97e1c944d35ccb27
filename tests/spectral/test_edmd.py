"""EDMD against systems whose Koopman spectrum is known in closed form."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from koopsim.spectral import EDMD, Lift, Monomials, Nystrom, Observables, RandomFourier

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (400, 2))
TURN = np.array([[np.cos(0.7), -np.sin(0.7)], [np.sin(0.7), np.cos(0.7)]])


@parametrize_with_checks([EDMD(), EDMD(Monomials(1), ridge=1e-6)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def with_square(z):
    return np.c_[z, z[:, 0] ** 2]


def tu(a, b):
    return lambda z: np.c_[a * z[:, 0], b * z[:, 1] + (a * a - b) * z[:, 0] ** 2]


def slow_manifold(z, mu=-0.05, lam=-1.0, dt=0.3):
    q, first = lam / (lam - 2 * mu), np.exp(mu * dt) * z[:, 0]
    return np.c_[first, np.exp(lam * dt) * (z[:, 1] - q * z[:, 0] ** 2) + q * first**2]


LINEAR = np.array([[0.8, -0.05], [0, 0.7]])
W, C = np.array([[0.5, 0.2], [-0.1, 0.6]]), np.array([1.0, -2.0])
CLOSED = {
    "linear": (
        Monomials(3),
        lambda z: z @ LINEAR.T,
        [0.8**i * 0.7**j for i in range(4) for j in range(4 - i)],
        "origin",
    ),
    "affine": (Monomials(1), lambda z: z @ W.T + C, [1, *np.linalg.eigvals(W)], "fixed-point"),
    "tu": (with_square, tu(0.9, 0.5), [0.9, 0.5, 0.81], "origin"),
    "tu one": (with_square, tu(1, 0.5), [1, 0.5, 1], "fixed-point"),
    "tu minus": (with_square, tu(-1, 0.5), [-1, 0.5, 1], "invariant-set"),
    "rotation": (Monomials(1), lambda z: z @ TURN.T, [1, np.exp(0.7j), np.exp(-0.7j)], "invariant-set"),
    "slow manifold": (with_square, slow_manifold, np.exp([-0.015, -0.3, -0.03]), "origin"),
}


def stuart_landau(z, steps, mu=1.0, gamma=1.2, beta=0.3, dt=0.1):
    """The exact flow, (steps, 2)."""
    r, t = np.hypot(*z), np.arange(steps) * dt
    phase = np.arctan2(z[1], z[0]) - beta * np.log(r) + (gamma - beta * mu) * t
    radius = (1 / mu + (1 / r**2 - 1 / mu) * np.exp(-2 * mu * t)) ** -0.5
    angle = phase + beta * np.log(radius)
    return np.c_[radius * np.cos(angle), radius * np.sin(angle)]


def polar_observables(z, beta=0.3):
    r = np.hypot(z[:, 0], z[:, 1])
    theta = np.arctan2(z[:, 1], z[:, 0]) - beta * np.log(r)
    return np.c_[np.ones(len(z)), r**-2, np.cos(theta), np.sin(theta)]


def cycles(count=40, steps=50):
    rng = np.random.default_rng(1)
    starts = [rng.uniform(0.4, 1.6) * np.array([np.cos(a), np.sin(a)]) for a in rng.uniform(0, 2 * np.pi, count)]
    return [stuart_landau(z, steps) for z in starts]


def distance(found, expected):
    table = np.abs(np.asarray(found)[:, None] - np.asarray(expected, complex)[None])
    return max(table.min(axis=0).max(), table.min(axis=1).max())


@pytest.mark.parametrize("name", CLOSED)
def test_closed_dictionaries_to_1e_8(name):
    dictionary, step, expected, case = CLOSED[name]
    model = EDMD(dictionary).fit((X, step(X)))
    assert distance(model.eigenvalues_, expected) < 1e-8
    assert model.residuals_.max() < 1e-8
    assert model.verdict().case == case
    np.testing.assert_allclose(model.predict(X), step(X), atol=1e-8)


def test_affine_limit():
    model = EDMD(Monomials(1)).fit((X, X @ W.T + C))
    verdict = model.verdict()
    target = np.linalg.solve(np.eye(2) - W, C)
    np.testing.assert_allclose(verdict.point, [1, *target], atol=1e-9)
    np.testing.assert_allclose(verdict.at(10**18, [1, 0.3, 0.4]), [1, *target], atol=1e-9)
    np.testing.assert_allclose(verdict.limit @ [1, 0.3, 0.4], [1, *target], atol=1e-9)


def test_drift_is_divergence():
    verdict = EDMD(Monomials(1)).fit((X, X + C)).verdict()
    assert verdict.case == "divergent"
    assert verdict.defective[0].size == 2


def test_stuart_landau_closed():
    model = EDMD(polar_observables).fit(cycles())
    rates = np.log(model.eigenvalues_) / 0.1
    assert distance(rates, [0, -2, 0.9j, -0.9j]) < 1e-8
    verdict = model.verdict()
    assert verdict.case == "invariant-set"
    assert verdict.angles == pytest.approx([0.09])


def test_stuart_landau_residuals_single_out_the_spurious():
    model = EDMD(Monomials(9), rtol=1e-10).fit(cycles(80, 60))
    rates, residual = np.log(model.eigenvalues_) / 0.1, model.residuals_
    true = np.array([-2 * m + 0.9j * k for m in range(4) for k in range(-12, 13)])
    error = np.abs(np.exp(0.1 * rates)[:, None] - np.exp(0.1 * true)[None]).min(axis=1)
    trusted = residual < 0.01
    assert trusted.sum() >= 3
    assert error[trusted].max() < 2e-3
    assert residual[error > 0.02].min() > 0.01
    assert model.verdict().case == "undecided"  # believed only as far as it fits
    with pytest.raises(ValueError, match="no eigenpair"):
        model.verdict(trust=1e-30)


def test_trust_leaves_spurious_pairs_out():
    def padded(z):
        return np.c_[polar_observables(z), np.sin(7 * z[:, 0]), np.exp(z[:, 1])]

    model = EDMD(padded).fit(cycles())
    assert model.verdict().case == "undecided"
    assert model.verdict(trust=1e-6).case == "invariant-set"


def test_trajectories_are_never_joined():
    lengths = [2, 7, 30]
    runs = [
        np.array([np.linalg.matrix_power(LINEAR, k) @ x for k in range(n)]) for n, x in zip(lengths, X, strict=False)
    ]
    model = EDMD(Monomials(1, constant=False)).fit(runs)
    assert model.n_samples_seen_ == sum(n - 1 for n in lengths)
    np.testing.assert_allclose(model.koopman_matrix_, LINEAR, atol=1e-12)
    one = EDMD(Monomials(1, constant=False)).fit(runs[2])
    np.testing.assert_allclose(one.koopman_matrix_, LINEAR, atol=1e-10)


def test_streaming_agrees_with_all_at_once():
    Y = np.tanh(X @ W.T)
    whole = EDMD(Monomials(3)).fit((X, Y))
    pieces = EDMD(Monomials(3), chunk=17)
    for i in range(0, 400, 50):
        pieces.partial_fit((X[i : i + 50], Y[i : i + 50]))
    assert pieces.n_samples_seen_ == 400
    np.testing.assert_allclose(pieces.koopman_matrix_, whole.koopman_matrix_, atol=1e-11)
    slow = np.linalg.lstsq(whole.transform(X), whole.transform(Y), rcond=None)[0].T
    np.testing.assert_allclose(whole.koopman_matrix_, slow, atol=1e-11)


def test_residuals_agree_with_their_definition():
    Y = np.tanh(X @ W.T)
    model = EDMD(Monomials(3)).fit((X, Y))
    now, after = model.eigenfunctions(X), model.eigenfunctions(Y)
    slow = np.linalg.norm(after - now * model.eigenvalues_, axis=0) / np.linalg.norm(now, axis=0)
    np.testing.assert_allclose(model.residuals_, slow, atol=1e-9)


def test_modes_rebuild_the_state_and_the_forecast():
    model = EDMD(with_square).fit((X, tu(0.9, 0.5)(X)))
    np.testing.assert_allclose((model.eigenfunctions(X) @ model.modes_.T).real, X, atol=1e-10)
    truth = [X[:3]]
    for _ in range(10):
        truth.append(tu(0.9, 0.5)(truth[-1]))
    np.testing.assert_allclose(model.forecast(X[:3], 10), truth, atol=1e-9)
    np.testing.assert_allclose(model.forecast(X[0], 10, relift=True), np.array(truth)[:, 0], atol=1e-9)


def test_inputs_are_held_fixed():
    U = RNG.uniform(-1, 1, (400, 1))
    Y = 0.5 * X + U * [1.0, 2.0]
    model = EDMD(Monomials(1)).fit((X, Y), inputs=U)
    assert distance(model.eigenvalues_, [1, 1, 0.5]) < 1e-8
    verdict = model.verdict()
    assert verdict.case == "fixed-point"
    assert len(verdict.fixed) == 1  # the input; the constant is discounted
    end = verdict.limit @ [1, 0.3, 0.1, 0.25]
    np.testing.assert_allclose(end[1:3], [0.5, 1.0], atol=1e-9)
    runs = [np.array([[0.0, 0.0], [1.0, 2.0], [1.5, 3.0]]), np.zeros((3, 2))]
    EDMD(Monomials(1)).fit(runs, inputs=[[1.0], [0.0]])
    with pytest.raises(ValueError, match="change along"):
        EDMD(Monomials(1)).fit(runs, inputs=[np.arange(3.0)[:, None], [0.0]])
    with pytest.raises(ValueError, match="2 inputs"):
        EDMD(Monomials(1)).fit(runs, inputs=[[1.0]])
    with pytest.raises(ValueError, match="fitted with 1 inputs"):
        model.predict(X)


def test_an_observable_that_is_zero_changes_nothing():
    """One input seen once, centred, is such an observable; it has no size to be judged in units of."""
    Y = 0.5 * X + [1.0, -2.0]
    verdict = EDMD(Monomials(1)).fit((X, Y)).verdict()
    with_zero = EDMD(Monomials(1)).fit((X, Y), inputs=np.zeros((len(X), 1))).verdict()
    assert with_zero.case == verdict.case == "fixed-point"
    assert with_zero.point is not None
    np.testing.assert_allclose(with_zero.point, [1, 2, -4, 0], atol=1e-8)
    still = EDMD(Monomials(1)).fit((X, 0.5 * X), inputs=np.zeros((len(X), 1))).verdict()
    assert still.case == "origin"


@pytest.mark.parametrize("dictionary", [RandomFourier(60, 1.5), Nystrom(60), Nystrom(40, 1.0)])
def test_kernel_dictionaries_forecast(dictionary):
    step = lambda z: np.tanh(z @ (0.8 * TURN).T)  # noqa: E731
    model = EDMD(dictionary).fit((X, step(X)))
    np.testing.assert_allclose(model.predict(X), step(X), atol=2e-3)
    assert model.rank_ <= 60


def test_random_fourier_is_the_papers_psi():
    Z = RNG.standard_normal((50, 3))
    phi = RandomFourier(20000, 1.3, seed=1).fit(Z).transform(Z)
    kernel = np.exp(-((Z[:, None] - Z[None]) ** 2).sum(-1) / (2 * 1.3**2))
    np.testing.assert_allclose(phi @ phi.T, kernel, atol=0.05)


def test_a_torch_module_is_a_dictionary():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh()).double()
    model = EDMD(module).fit((X, X @ LINEAR.T))
    assert isinstance(model.dictionary_, Lift)
    assert model.koopman_matrix_.shape == (8, 8)
    assert module.training


def test_ridge_and_rank():
    Y = X @ LINEAR.T
    free = EDMD(Monomials(2)).fit((X, Y))
    damped = EDMD(Monomials(2), ridge=0.1).fit((X, Y))
    assert np.linalg.norm(damped.koopman_matrix_) < np.linalg.norm(free.koopman_matrix_)
    assert EDMD(Monomials(2), rank=3).fit((X, Y)).rank_ == 3


def test_a_redundant_dictionary_states_its_rank():
    model = EDMD(Observables(lambda z: np.c_[z, z, z.sum(axis=1)])).fit((X, X @ LINEAR.T))
    assert model.rank_ == 2
    assert distance(model.eigenvalues_, [0.8, 0.7]) < 1e-10
    assert model.koopman_matrix_.shape == (5, 5)
    np.testing.assert_allclose(model.predict(X), X @ LINEAR.T, atol=1e-10)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.ones((1, 2)), "minimum of 2"),
        (np.empty((0, 2)), "0 sample"),
        ([np.ones((3, 2)), np.ones((1, 2))], "trajectory 1"),
        ([], "empty"),
        (np.array([[1, np.nan], [0, 1]]), "NaN"),
        ((np.ones((3, 2)), np.ones((4, 2))), "equal shape"),
    ],
)
def test_bad_data(data, message):
    with pytest.raises(ValueError, match=message):
        EDMD().fit(data)


def test_bad_dictionaries():
    with pytest.raises(ValueError, match="dictionary"):
        EDMD(3).fit(X)
    with pytest.raises(ValueError, match="one row per sample"):
        EDMD(lambda z: np.ones(3)).fit(X)
    with pytest.raises(ValueError, match="NaN or infinity"):
        EDMD(lambda z: z / 0 if False else z * np.inf).fit(X)
    for bad in (Monomials(0), RandomFourier(3), RandomFourier(4, -1.0), Nystrom(0)):
        with pytest.raises(ValueError, match="needs"):
            EDMD(bad).fit(X)
    with pytest.raises(ValueError, match="ridge"):
        EDMD(ridge=-1).fit(X)
    with pytest.raises(ValueError, match="rank"):
        EDMD(rank=0).fit(X)


@pytest.mark.slow
def test_a_million_samples_with_500_observables_in_bounded_memory():
    import resource

    rng = np.random.default_rng(0)
    model = EDMD(RandomFourier(500, 0.7))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        Z = rng.uniform(-1, 1, (50_000, 2))
        model.partial_fit((Z, np.tanh(Z @ W.T)))
    assert model.n_samples_seen_ == 1_000_000
    assert model.predict(X).shape == X.shape
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10 < 1024  # MiB
