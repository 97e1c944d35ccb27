"""The solvers on problems whose answer is known, and on problems that have none."""

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from koopsim.errors import KoopsimError
from koopsim.implicit import SOLVERS, anderson, broyden, newton, picard, relaxed
from koopsim.implicit.iteration import EPS, Tolerance, iterate
from koopsim.implicit.solvers import solve_spd

each_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=list(SOLVERS))
ONE_EACH = {name: SOLVERS[name] for name in SOLVERS if name != "newton"}  # one evaluation of f a step
each_plain_solver = pytest.mark.parametrize("solver", ONE_EACH.values(), ids=list(ONE_EACH))


def contraction(n: int, rate: float, seed: int = 0) -> torch.Tensor:
    """A matrix whose largest singular value is `rate`."""
    W = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return rate * W / torch.linalg.matrix_norm(W, ord=2)


def residual(f, z):
    fz = f(z)
    return (fz - z).flatten(1).norm(dim=1) / (fz.flatten(1).norm(dim=1) + EPS)


@each_solver
@pytest.mark.parametrize("shape", [(7, 12), (1, 12), (7, 3, 4), (5, 1)])
def test_linear_contraction_has_the_closed_form(solver, shape):
    n = torch.Size(shape[1:]).numel()
    W, x = contraction(n, 0.6), torch.randn(shape, dtype=torch.float64)
    f = lambda z: (z.flatten(1) @ W.T).view(shape) + x  # noqa: E731
    z, info = solver(f, torch.zeros_like(x), max_steps=200, tol=1e-13)
    exact = torch.linalg.solve(torch.eye(n, dtype=torch.float64) - W, x.flatten(1).T).T.view(shape)
    torch.testing.assert_close(z, exact, rtol=0, atol=1e-10)
    assert info.converged.all()
    torch.testing.assert_close(info.residuals, residual(f, z), rtol=1e-3, atol=1e-15)


@each_solver
def test_a_sample_may_be_a_scalar_and_a_batch_empty(solver):
    z, info = solver(lambda z: z / 2 + 1, torch.zeros(3), max_steps=100, tol=1e-6)
    torch.testing.assert_close(z, torch.full((3,), 2.0), rtol=1e-5, atol=0)
    z, info = solver(lambda z: z, torch.zeros(0, 4), max_steps=5, tol=1e-6)
    assert z.shape == (0, 4)
    assert info.converged.shape == (0,)


@pytest.mark.parametrize("solver", [anderson, broyden], ids=["anderson", "broyden"])
def test_history_beats_picard_on_a_stiff_contraction(solver):
    W, x = contraction(30, 1.0), torch.randn(4, 30, dtype=torch.float64)
    W = 0.97 * (W + W.T) / torch.linalg.matrix_norm(W + W.T, ord=2)
    f = lambda z: z @ W.T + x  # noqa: E731
    _, plain = picard(f, torch.zeros_like(x), max_steps=1000, tol=1e-8)
    _, fast = solver(f, torch.zeros_like(x), max_steps=1000, tol=1e-8, memory=15)
    assert plain.converged.all()
    assert fast.converged.all()
    assert (fast.steps < plain.steps / 2).all()


@pytest.mark.parametrize("memory", [1, 2, 3, 30])
@pytest.mark.parametrize("solver", [anderson, broyden], ids=["anderson", "broyden"])
def test_any_memory_converges(solver, memory):
    W, x = contraction(10, 0.8), torch.randn(4, 10, dtype=torch.float64)
    _, info = solver(lambda z: z @ W.T + x, torch.zeros_like(x), max_steps=300, tol=1e-12, memory=memory)
    assert info.converged.all()


def test_options_of_each_solver():
    f = lambda z: -1.5 * z + 1  # noqa: E731
    _, diverges = picard(f, torch.zeros(1, 2), max_steps=50, tol=1e-5)
    z, settles = picard(f, torch.zeros(1, 2), max_steps=50, tol=1e-5, damping=0.5)
    assert not diverges.converged.any()
    assert settles.converged.all()
    torch.testing.assert_close(z, torch.full((1, 2), 0.4), rtol=1e-4, atol=0)
    W, x = contraction(10, 0.8), torch.randn(4, 10, dtype=torch.float64)
    _, info = anderson(
        lambda z: z @ W.T + x, torch.zeros_like(x), max_steps=99, tol=1e-9, mixing=0.7, ridge=1e-8, delay=0
    )
    assert info.converged.all()
    for call in (
        functools.partial(picard, max_steps=0, tol=1.0),
        functools.partial(picard, max_steps=3, tol=0.0),
        functools.partial(picard, max_steps=3, tol=1.0, damping=0.0),
        functools.partial(anderson, max_steps=3, tol=1.0, memory=0),
        functools.partial(anderson, max_steps=3, tol=1.0, mixing=0.0),
        functools.partial(broyden, max_steps=3, tol=1.0, memory=0),
    ):
        with pytest.raises(KoopsimError, match="expected"):
            call(f, torch.zeros(1, 2))
    with pytest.raises(KoopsimError, match="floats, samples first"):
        picard(f, torch.zeros(1, 2, dtype=torch.int64), max_steps=3, tol=1.0)
    with pytest.raises(KoopsimError, match="equal shapes"):
        picard(lambda z: z[:, :1], torch.zeros(1, 2), max_steps=3, tol=1.0)


@each_solver
def test_each_sample_is_its_own_problem(solver):
    """Easy, hard, divergent and not-a-number samples side by side get what they get alone."""
    rate = torch.tensor([0.0, 0.5, 0.95, -3.0, 0.5], dtype=torch.float64).unsqueeze(1)
    spread = rate * torch.linspace(0.5, 1, 8, dtype=torch.float64)
    x = torch.randn(5, 8, dtype=torch.float64)

    def f(z, rate=spread, x=x):
        z = torch.where(z.norm(dim=1, keepdim=True) > 1e3, torch.nan, z)  # divergence becomes nan
        return rate * z + x

    z0 = torch.zeros_like(x)
    z0[4] = torch.nan
    z, info = solver(f, z0, max_steps=80, tol=1e-6)
    for i in range(5):
        part = functools.partial(f, rate=spread[i : i + 1], x=x[i : i + 1])
        alone, lone = solver(part, z0[i : i + 1], max_steps=80, tol=1e-6)
        torch.testing.assert_close(z[i : i + 1], alone, rtol=1e-6, atol=1e-9, equal_nan=True)
        assert info.converged[i] == lone.converged[0]
        assert info.steps[i] == lone.steps[0]
    assert info.converged[:2].all()
    assert info.steps[0] <= 2 or solver is relaxed
    assert not info.converged[4]
    assert info.residuals[4] == torch.inf
    assert z[:4].isfinite().all()


@each_plain_solver
def test_a_converged_sample_is_frozen(solver):
    """The easy sample's iterate must not move once it has converged, though its neighbour goes on."""
    seen = []

    def f(z):
        seen.append(z.clone())
        return torch.stack([z[0] * 0.1 + 1, z[1] * 0.97 + z[1].roll(1).sin() * 0.02 + 1])

    z, info = solver(f, torch.zeros(2, 6, dtype=torch.float64), max_steps=60, tol=1e-4)
    done = int(info.steps[0])
    assert info.steps[1] > done + 1
    for later in seen[done:]:
        assert torch.equal(later[0], z[0])


class Spread:
    """z -> rate z + x with a rate a sample; counts the samples it is evaluated for."""

    worthwhile = 1.0

    def __init__(self, rate, x, counts):
        self.rate, self.x, self.counts = rate, x, counts

    def __call__(self, z):
        self.counts.append(len(z))
        z = torch.where(z.norm(dim=1, keepdim=True) > 1e3, torch.nan, z)  # divergence becomes nan
        return self.rate * z + self.x

    def rows(self, index):
        return Spread(self.rate[index], self.x[index], self.counts)


@each_plain_solver
@pytest.mark.parametrize("worthwhile", [1.0, 0.5])
def test_a_map_that_narrows_gives_the_same_answers_for_less(solver, worthwhile):
    rate = torch.tensor([0.0, 0.5, 0.95, -3.0, 0.5, 0.9], dtype=torch.float64).unsqueeze(1)
    rate, x = rate * torch.linspace(0.5, 1, 8, dtype=torch.float64), torch.randn(6, 8, dtype=torch.float64)
    z0, counts = torch.zeros_like(x), []
    z0[4] = torch.nan
    f = Spread(rate, x, counts)
    f.worthwhile = worthwhile
    z, info = solver(f, z0, max_steps=80, tol=1e-6)
    whole, plain = solver(lambda z: Spread(rate, x, [])(z), z0, max_steps=80, tol=1e-6)
    torch.testing.assert_close(z, whole, equal_nan=True)
    torch.testing.assert_close(info.residuals, plain.residuals, rtol=1e-6, atol=1e-12)
    assert torch.equal(info.steps, plain.steps)
    if worthwhile == 1:
        assert sum(counts) == info.steps.sum()  # each sample until it is done, and not once more
    else:
        assert set(counts) <= {6, 3, 2, 1}
        assert info.steps.sum() < sum(counts) < 6 * len(counts)


@each_plain_solver
def test_nothing_narrows_while_capturing(solver, monkeypatch):
    monkeypatch.setattr("koopsim.implicit.iteration.capturing", lambda: True)
    counts, rate = [], torch.tensor([[0.0], [0.9]], dtype=torch.float64)
    _, info = solver(
        Spread(rate, torch.ones(2, 3, dtype=torch.float64), counts), torch.zeros(2, 3).double(), max_steps=9, tol=0.5
    )
    assert counts == [2] * 9
    assert info.converged.all()


@each_plain_solver
def test_divergence_returns_the_best_point_seen(solver):
    seen = []

    def f(z):
        seen.append(z.clone())
        return z.pow(2) * 3 + z.flip(1) + 1  # no real fixed point: z = 3 z^2 + z' + 1

    z, info = solver(f, torch.full((2, 4), 0.3), max_steps=60, tol=1e-5)
    assert not info.converged.any()
    assert z.isfinite().all()
    every = torch.stack([residual(f, point) for point in list(seen)]).nan_to_num(torch.inf)
    torch.testing.assert_close(info.residuals, every.min(0).values)
    torch.testing.assert_close(residual(f, z), info.residuals)


@each_solver
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "f",
    [
        lambda z: torch.ones_like(z),  # constant
        lambda z: z,  # every point is fixed
        lambda z: torch.zeros_like(z),
        lambda z: z + 1,  # none is, and every residual is the same vector
        lambda z: -z + 1,  # two-cycle
        lambda z: z * 0.5,  # fixed at zero, where a relative residual means little
        lambda z: z.mean(1, keepdim=True).expand_as(z) * 0.5 + 1,  # rank one
    ],
    ids=["constant", "identity", "zero", "drift", "cycle", "halving", "rank-one"],
)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5)])
def test_singular_systems_neither_crash_nor_give_nan(solver, dtype, f, shape):
    z, info = solver(f, torch.full(shape, 0.25, dtype=dtype), max_steps=40, tol=1e-5)
    assert z.isfinite().all()
    assert info.residuals.isfinite().all()
    torch.testing.assert_close(residual(f, z), info.residuals, rtol=1e-3, atol=1e-6)


def test_half_precision_maps_are_solved_in_the_precision_of_z0():
    z, info = anderson(lambda z: (z / 2 + 1).bfloat16(), torch.zeros(2, 3), max_steps=30, tol=1e-2)
    assert z.dtype == torch.float32
    assert info.converged.all()


@each_solver
def test_solvers_leave_no_trace_for_autograd(solver):
    x = torch.ones(2, 3, requires_grad=True)
    z, _ = solver(lambda z: z / 2 + x, torch.zeros(2, 3), max_steps=30, tol=1e-4)
    assert not z.requires_grad


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 7), st.integers(0, 2**31))
def test_gauss_jordan_agrees_with_lapack(m, seed):
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(4, m, m + 2, dtype=torch.float64, generator=generator)
    A = A @ A.mT + 1e-3 * torch.eye(m, dtype=torch.float64)
    b = torch.randn(4, m, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(solve_spd(A, b), torch.linalg.solve(A, b), rtol=1e-8, atol=1e-8)


def test_a_singular_system_takes_no_other_with_it():
    A, b = torch.eye(3).repeat(2, 1, 1).numpy(), torch.ones(2, 3).numpy()
    A[0] = 0
    x = solve_spd(A, b)
    assert not torch.from_numpy(x[0]).isfinite().all()
    assert (x[1] == 1).all()


@each_solver
def test_a_cell_may_record_inside(solver):
    """An energy's gradient step, say, which switches recording on whoever calls it."""

    def f(z):
        with torch.enable_grad():
            at = z.detach().requires_grad_()
            return at - torch.autograd.grad((at - 1).square().sum() / 4, at, create_graph=True)[0]

    z, info = solver(f, torch.zeros(2, 3), max_steps=60, tol=1e-5)
    assert info.converged.all()
    assert not z.requires_grad
    torch.testing.assert_close(z, torch.ones(2, 3), rtol=0, atol=1e-4)


@pytest.mark.parametrize("solver", [anderson, broyden], ids=["anderson", "broyden"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_on_a_cpu(solver, dtype):
    z, info = solver(lambda z: z / 2 + 1, torch.zeros(3, 4, dtype=dtype), max_steps=30, tol=0.02)
    assert z.dtype == dtype
    assert info.converged.all()
    torch.testing.assert_close(z.float(), torch.full((3, 4), 2.0), rtol=0.05, atol=0)


def test_broyden_ends_on_a_linear_problem():
    """Within 2n steps (Gay, 1979), a little more where damping stepped in: the updates are right."""
    for n in (1, 2, 3, 5):
        W, x = (
            3 * contraction(n, 1.0, seed=n),
            torch.randn(2, n, dtype=torch.float64),
        )  # no contraction at all
        _, info = broyden(lambda z, W=W, x=x: z @ W.T + x, torch.zeros_like(x), max_steps=60, tol=1e-11)
        assert info.converged.all()
        assert (info.steps <= 4 * n + 3).all()


def test_anderson_is_gmres_on_a_linear_problem():
    """With full memory, n + 2 evaluations solve an n-dimensional linear problem (Walker & Ni, 2011)."""
    n = 6
    W, x = 2 * contraction(n, 1.0), torch.randn(3, n, dtype=torch.float64)
    _, info = anderson(lambda z: z @ W.T + x, torch.zeros_like(x), max_steps=30, tol=1e-8, memory=20, delay=0)
    assert (info.steps <= n + 2).all()


def test_anderson_does_not_circle_round_a_point_that_picard_reaches():
    """A map far from linear on which mixing without the guard fails after 200 steps."""
    generator, d = torch.Generator().manual_seed(49), 8
    W = 1.8 * torch.randn(d, d, generator=generator).double() / math.sqrt(d)
    V = 1.5 * torch.randn(d, d, generator=generator).double() / math.sqrt(d)
    x = torch.randn(1, d, generator=generator).double()

    def f(z):
        return torch.nn.functional.layer_norm(torch.relu(z @ W.T + x) @ V.T + x, (d,))

    z0 = torch.zeros(1, d, dtype=torch.float64)
    reached, plain = picard(f, z0, max_steps=60, tol=1e-6)
    mixed, info = anderson(f, z0, max_steps=60, tol=1e-6)
    assert plain.converged.all()
    assert info.converged.all()
    torch.testing.assert_close(mixed, reached, rtol=0, atol=1e-4)


def test_relaxed_settles_where_picard_turns_for_ever():
    """A rotation by 90 degrees about (1, 1): nothing grows, nothing shrinks."""
    f = lambda z: torch.stack([1 - (z[:, 1] - 1), 1 + (z[:, 0] - 1)], dim=1)  # noqa: E731
    z0 = torch.zeros(1, 2, dtype=torch.float64)
    _, turning = picard(f, z0, max_steps=200, tol=1e-10)
    z, settled = relaxed(f, z0, max_steps=200, tol=1e-10)
    assert not turning.converged.any()
    assert settled.converged.all()
    torch.testing.assert_close(z, torch.ones_like(z))


def test_newton_needs_few_steps_where_the_map_is_steep():
    """A slope of up to -3.75: plain iteration jumps to and fro for ever, Newton settles, quadratically."""
    x = torch.randn(6, 5, dtype=torch.float64)
    f = lambda z: x - 2.5 * torch.tanh(z + z.roll(1, 1) / 2)  # noqa: E731
    _, plain = picard(f, torch.zeros_like(x), max_steps=200, tol=1e-12)
    z, info = newton(f, torch.zeros_like(x), max_steps=40, tol=1e-12)
    assert not plain.converged.any()
    assert info.converged.all()
    assert info.steps.max() <= 15
    torch.testing.assert_close(f(z), z, rtol=0, atol=1e-10)
    W = 2 * contraction(5, 1.0)
    _, linear = newton(lambda z: z @ W.T + x, torch.zeros_like(x), max_steps=10, tol=1e-11)
    assert linear.converged.all()
    assert linear.steps.max() <= 4  # one step solves it, the next repairs the difference quotient's rounding


def test_a_residual_may_be_relative_absolute_or_ones_own():
    W, x = contraction(6, 0.8), 1e4 * torch.randn(3, 6, dtype=torch.float64)
    f = lambda z: z @ W.T + x  # noqa: E731
    z0 = torch.zeros_like(x)
    z, info = picard(f, z0, max_steps=300, tol=Tolerance(1e-3, "absolute"))
    torch.testing.assert_close(info.residuals, (f(z) - z).norm(dim=1), rtol=1e-6, atol=0)
    assert (info.residuals < 1e-3).all()
    _, loose = picard(f, z0, max_steps=300, tol=1e-3)
    assert (loose.steps < info.steps).all()
    largest = lambda g, fz: g.abs().amax(1)  # noqa: E731
    z, info = picard(f, z0, max_steps=300, tol=Tolerance(1e-2, largest))
    torch.testing.assert_close(info.residuals, (f(z) - z).abs().amax(1), rtol=1e-6, atol=0)
    with pytest.raises(KoopsimError, match="relative, absolute"):
        Tolerance(1e-3, "sideways")


def test_a_solver_of_ones_own_is_a_proposal():
    def gauss(f, z0, *, max_steps, tol):
        """Picard with a step and a half: over-relaxation."""
        return iterate(f, z0, lambda k, z, fz, g, norm: z + 1.5 * g, max_steps, Tolerance(tol))

    f = lambda z: -0.1 * z + 1  # noqa: E731
    SOLVERS.register(gauss)
    try:
        z, info = SOLVERS["gauss"](f, torch.zeros(2, 3), max_steps=50, tol=1e-6)
    finally:
        del SOLVERS._entries["gauss"]
    assert info.converged.all()
    torch.testing.assert_close(z, torch.full_like(z, 1 / 1.1))
    with pytest.raises(KoopsimError, match="two of the solver 'picard'"):
        SOLVERS.add("picard", gauss)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda z: z[:, :1], "equal shapes"),
        (lambda z: (z, z), "to a tuple: a fixed point"),
        (lambda z: z.add_(1), "argument z in place"),
        (lambda z: torch.empty(z.shape, device="meta"), "on meta for a state z on cpu"),
    ],
    ids=["shape", "tuple", "in-place", "device"],
)
def test_a_bad_map_gets_one_sentence(f, message):
    with pytest.raises(KoopsimError, match=message):
        picard(f, torch.zeros(2, 3), max_steps=3, tol=1e-3)


def test_small_systems_of_numpy_are_solved_each_even_where_one_is_singular():
    A, b = np.array([[[2.0, 0.0], [0.0, 4.0]], [[1.0, 1.0], [1.0, 1.0]]]), np.array([[1.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(solve_spd(A[:1], b[:1]), [[0.5, 0.25]])
    both = solve_spd(A, b)
    assert both.shape == (2, 2)
    np.testing.assert_allclose(both[0], [0.5, 0.25])
    assert not np.isfinite(both[1]).all() or np.abs(both[1]).max() > 1e10


@pytest.mark.parametrize(
    ("solver", "options", "said"),
    [
        (picard, {"damping": 0.0}, "damping"), (picard, {"damping": 1.1}, "damping"),
        (anderson, {"memory": 0}, "memory"), (anderson, {"mixing": 0.0}, "mixing"), (anderson, {"delay": -1}, "delay"),
        (broyden, {"memory": 0}, "memory"), (newton, {"krylov": 0}, "krylov"),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused_by_name(solver, options, said):
    with pytest.raises(KoopsimError, match=said):
        solver(lambda z: z / 2, torch.ones(1, 2), max_steps=3, tol=1e-3, **options)


def test_options_at_their_bounds_are_taken():
    f, z0 = (lambda z: z / 2), torch.ones(2, 3, dtype=torch.float64)
    bounds = {picard: {"damping": 1.0}, anderson: {"memory": 1}, broyden: {"memory": 1}, newton: {"krylov": 1}}
    for solver, options in bounds.items():
        z, _ = solver(f, z0, max_steps=80, tol=1e-9, **options)
        assert float(z.abs().max()) < 1e-6
