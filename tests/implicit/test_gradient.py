"""The gradients of a DEQ against finite differences, closed forms and explicit unrolling."""

import copy
import functools
import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ, SOLVERS, Backward, Neumann, Phantom, Reversible, UnconvergedWarning, anderson
from koopsim.implicit.gradient import _by_own

TIGHT = {"max_steps": 200, "tol": 1e-13}


class Cell(nn.Module):
    """z -> act(W z + x + b), W of spectral norm 0.7."""

    def __init__(self, n: int = 4, act=torch.tanh, dtype=torch.float64):
        super().__init__()
        W = torch.randn(n, n, dtype=dtype)
        self.W = nn.Parameter(0.7 * W / torch.linalg.matrix_norm(W, ord=2))
        self.b = nn.Parameter(torch.randn(n, dtype=dtype))
        self.act = act
        self.calls = 0

    def forward(self, z, x):
        self.calls += 1
        return self.act(z @ self.W.T + x + self.b)


def identity(z):
    return z


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("act", [identity, torch.tanh], ids=["linear", "tanh"])
def test_implicit_gradient_is_the_finite_difference(solver, act):
    cell = Cell(act=act)
    deq = DEQ(cell, solver, **TIGHT)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def solve(x, W, b):
        return torch.func.functional_call(deq, {"cell.W": W, "cell.b": b}, (x,))[0]

    assert torch.autograd.gradcheck(solve, (x, cell.W, cell.b))


@pytest.mark.parametrize("backward_solver", SOLVERS)
def test_linear_cell_has_the_closed_form(backward_solver):
    cell, x = Cell(act=identity), torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    z, info = DEQ(cell, "anderson", backward=Backward(backward_solver), **TIGHT)(x)
    g = torch.randn_like(z) * torch.tensor([1, 1e-30, 0, 1e30, 1], dtype=torch.float64).unsqueeze(1)
    assert info.backward is None
    z.backward(g)
    exact = torch.linalg.solve((torch.eye(4, dtype=torch.float64) - cell.W.detach()).T, g.T).T
    torch.testing.assert_close(x.grad, exact, rtol=1e-10, atol=0)
    assert info.backward is not None
    assert info.backward.converged.all()
    assert info.converged.all()
    assert (info.backward.residuals < 1e-13).all()


def test_jacobian_free_is_one_step_from_the_fixed_point():
    cell, x = Cell(), torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    z, _ = DEQ(cell, gradient="jacobian-free", **TIGHT)(x)
    g = torch.randn_like(z)
    got = torch.autograd.grad(z, [x, cell.W, cell.b], g)
    want = torch.autograd.grad(cell(z.detach(), x), [x, cell.W, cell.b], g)
    torch.testing.assert_close(got, want)


def test_phantom_is_a_few_damped_steps_from_the_fixed_point():
    cell, x = Cell(), torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    z, _ = DEQ(cell, gradient=Phantom(3, 0.3), **TIGHT)(x)
    g = torch.randn_like(z)
    got = torch.autograd.grad(z, [x, cell.W, cell.b], g)
    step = z.detach()
    for _ in range(3):
        step = 0.7 * step + 0.3 * cell(step, x)
    want = torch.autograd.grad(step, [x, cell.W, cell.b], g)
    torch.testing.assert_close(got, want)


def test_the_approximations_tend_to_the_implicit_gradient():
    """Phantom with many steps is exact in the limit; with few it is not, and jacobian-free is not."""
    cell, x = Cell(), torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def gradient(**options):
        return torch.autograd.grad(DEQ(cell, **TIGHT, **options)(x)[0].pow(2).sum(), x)[0]

    exact = gradient()
    torch.testing.assert_close(gradient(gradient=Phantom(150)), exact)
    assert (gradient(gradient="phantom") - exact).norm() > 1e-3 * exact.norm()
    assert (gradient(gradient="jacobian-free") - exact).norm() > 1e-2 * exact.norm()


def test_every_gradient_returns_the_same_fixed_point():
    cell, x = Cell(), torch.randn(3, 4, dtype=torch.float64)
    values = [DEQ(cell, gradient=g)(x)[0] for g in ("implicit", "jacobian-free", "phantom")]
    with torch.no_grad():
        values.append(DEQ(cell)(x)[0])
    for z in values:
        assert torch.equal(z, values[0])
    values[0].relu_()  # an output that is a view could not be changed in place


def saved_bytes(gradient: str, steps: int) -> int:
    """What autograd keeps of a forward pass, not counting the parameters and x."""
    cell, x = Cell(16), torch.randn(8, 16, dtype=torch.float64)
    own = {p.data_ptr() for p in cell.parameters()} | {x.data_ptr()}
    kept = {}

    def pack(t):
        if t.data_ptr() not in own:
            kept[t.data_ptr()] = t.untyped_storage().nbytes()
        return t

    deq = DEQ(cell, "picard", steps, 1e-30, gradient)  # 0.7^50 is 2e-8: far from where nothing moves any more
    deq._warned.add("forward")
    with torch.autograd.graph.saved_tensors_hooks(pack, identity):
        _, info = deq(x)
    assert info.steps.max() == steps
    return sum(kept.values())


@pytest.mark.parametrize("gradient", ["implicit", "jacobian-free", "phantom"])
def test_memory_does_not_depend_on_the_number_of_steps(gradient):
    assert saved_bytes(gradient, 5) == saved_bytes(gradient, 50) > 0


def test_a_backward_solve_ends_with_its_slowest_sample_and_each_at_its_own_step():
    """By hand for y = r y + g from y = g: after k evaluations the residual is r^k / (1 + r + ... + r^k)."""
    rates, tol, pulls = (0.3, 0.6, 0.9), 1e-3, []
    r = torch.tensor(rates, dtype=torch.float64)[:, None]

    def cell(z, x):
        fz = r * z + x
        if fz.requires_grad:
            fz.register_hook(lambda g: pulls.append(len(g)))
        return fz

    x = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    z, info = DEQ(cell, "picard", 400, 1e-12, backward=Backward(tol=tol))(x)
    z.sum().backward()
    want = [next(k for k in range(1, 100) if s**k / sum(s**i for i in range(k + 1)) < tol) for s in rates]
    assert info.backward.steps.tolist() == want
    assert len(pulls) == max(want) + 1  # and once on to x
    torch.testing.assert_close(x.grad, (1 / (1 - r)).expand(3, 2), rtol=1.1e-2, atol=0)  # tol / (1 - r)


def test_one_recorded_evaluation_serves_the_whole_backward_pass():
    cell = Cell(dtype=torch.float32)
    z, info = DEQ(cell, tol=1e-5, max_steps=100)(torch.randn(3, 4))
    calls = cell.calls
    assert calls == info.steps.max() + 1
    z.sum().backward()
    assert cell.calls == calls
    assert info.backward is not None
    assert info.backward.steps.max() > 5


class Prepared:
    """z -> tanh(z W^T + x + b), for all samples or for some, the samples of every vjp counted."""

    worthwhile = 0.9

    def __init__(self, cell, x):
        self.cell, self.x = cell, x

    def __call__(self, z):
        out = self.cell(z, self.x)
        if out.requires_grad:
            out.register_hook(lambda g: self.cell.pulled.append(len(g)))
        return out

    def rows(self, index):
        return Prepared(self.cell, self.x[index])


class NarrowCell(Cell):
    def __init__(self):
        super().__init__()
        self.pulled = []

    def prepare(self, x):
        return Prepared(self, x)


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "newton"])
def test_a_backward_solve_that_narrows_gives_the_same_gradient(solver):
    cell = NarrowCell()
    plain = DEQ(lambda z, x: cell(z, x), solver, **TIGHT)
    narrow = DEQ(cell, solver, **TIGHT)
    size = torch.tensor([30, 10, 0.1, 20, 0.0, 40], dtype=torch.float64).unsqueeze(1)
    x = size * torch.randn(6, 4, dtype=torch.float64)  # where tanh is flat, J is near 0 and one step is enough
    x.requires_grad_()
    g = torch.randn(6, 4, dtype=torch.float64)
    results = []
    for deq in (plain, narrow):
        z, info = deq(x)
        results.append(torch.autograd.grad(z, [x, cell.W, cell.b], g))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)
    assert info.backward is not None
    assert info.backward.converged.all()
    assert min(cell.pulled) < 6 == max(cell.pulled)
    assert torch.autograd.gradcheck(lambda x: narrow(x)[0], (x,), atol=1e-6)


def test_the_graph_is_freed_with_the_output():
    cell = Cell()
    deq = DEQ(cell, **TIGHT)
    gc.disable()
    try:
        z, _ = deq(torch.randn(3, 4, dtype=torch.float64))
        node = weakref.ref(z.grad_fn)
        del z
        assert node() is None  # no reference cycle: memory goes at once, not when the collector comes by
    finally:
        gc.enable()


def test_no_tape_where_no_gradient_is_wanted():
    cell, x = Cell(), torch.randn(3, 4, dtype=torch.float64)
    deq = DEQ(cell, **TIGHT)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert deq(x)[0].grad_fn is None
    cell.requires_grad_(False)
    assert deq(x)[0].grad_fn is None
    assert deq(x.clone().requires_grad_())[0].grad_fn is not None
    assert DEQ(lambda z, x: z / 2 + x)(x)[0].grad_fn is None
    closed_over = torch.ones(4, dtype=torch.float64, requires_grad=True)
    z, _ = DEQ(lambda z, x: z / 2 + x + closed_over, **TIGHT)(x)
    z.sum().backward()
    torch.testing.assert_close(closed_over.grad, torch.full((4,), 6.0, dtype=torch.float64))


@pytest.mark.parametrize("gradient", ["implicit", "jacobian-free", "phantom"])
def test_second_derivatives_are_refused(gradient):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    z, _ = DEQ(Cell(), gradient=gradient, **TIGHT)(x)
    with pytest.raises(RuntimeError, match=r"second derivatives .* without create_graph"):
        torch.autograd.grad(z.sum(), x, create_graph=True)


def test_an_unconverged_solve_warns_once_a_direction():
    x = torch.randn(3, 4, dtype=torch.float64)
    deq = DEQ(Cell(), max_steps=2, tol=1e-9)
    with pytest.warns(UnconvergedWarning, match=r"forward solve left 3 of 3 .* 2 steps .* Try more steps"):
        z, info = deq(x)
    with pytest.warns(UnconvergedWarning, match="backward solve left 3 of 3"):
        z.sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        z, info = deq(x)
        z.sum().backward()
    assert not info.converged.any()
    assert info.backward is not None
    assert not info.backward.converged.any()


def test_starting_point():
    class Wide(nn.Module):
        def initial(self, x):
            return x.new_zeros(x.shape[0], 6)

        def forward(self, z, x):
            return z / 2 + x.sum(1, keepdim=True)

    z, cold = DEQ(Wide(), **TIGHT)(torch.ones(3, 4, dtype=torch.float64))
    torch.testing.assert_close(z, torch.full((3, 6), 8.0, dtype=torch.float64))
    _, warm = DEQ(Wide(), **TIGHT)(torch.ones(3, 4, dtype=torch.float64), z0=z)
    assert (warm.steps == 1).all()
    assert (warm.steps < cold.steps).all()


def test_nan_in_the_loss_reaches_the_gradient():
    cell = Cell()
    deq = DEQ(cell, **TIGHT)
    z, _ = deq(torch.randn(3, 4, dtype=torch.float64))
    with pytest.warns(UnconvergedWarning, match="backward"):
        (z.sum() * torch.nan).backward()
    assert cell.W.grad is not None
    assert cell.W.grad.isnan().any()


@pytest.mark.parametrize("gradient", ["implicit", "jacobian-free", "phantom"])
def test_autocast_trains_the_weights(gradient):
    """Autocast caches the weights it has rounded, without a history if under no_grad: they must be redone."""

    class Rounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            nn.init.orthogonal_(self.linear.weight, gain=0.5)

        def forward(self, z, x):
            return torch.tanh(self.linear(z) + x)

    cell, x = Rounded(), torch.randn(4, 8)
    deq = DEQ(cell, tol=1e-2, gradient=gradient)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z, _ = deq(x)
    assert z.dtype == torch.float32
    (got,) = torch.autograd.grad(z.sum(), cell.linear.weight)
    (want,) = torch.autograd.grad(deq(x)[0].sum(), cell.linear.weight)
    assert (got - want).norm() < 0.05 * want.norm()


class Halved:
    """y -> y / 2, of samples that are left out 0: a product that a cell brings along."""

    def __init__(self, active=None):
        self.active = active

    def __call__(self, y):
        return y / 2 if self.active is None else y / 2 * self.active

    def watched(self, active):
        return Halved(active)


def test_a_product_of_the_cells_own_hears_which_samples_are_left_out():
    g, y, active = torch.randn(3, 2), torch.randn(3, 2), torch.tensor([[True], [False], [True]])
    own = _by_own(Halved(), g)
    assert torch.equal(own(y), y / 2 + g)
    assert torch.equal(own.watched(active)(y), y / 2 * active + g)
    deaf = _by_own(lambda y: y / 2, g)  # one that cannot hear it does all of them
    assert torch.equal(deaf.watched(active)(y), y / 2 + g)


def test_wrong_options_are_named():
    for options, message in (
        ({"solver": "nothing"}, "no solver 'nothing'.*picard, relaxed, anderson, broyden"),
        ({"solver": "andersen"}, "Did you mean 'anderson'"),
        ({"solver": 3}, "solver is a int"),
        ({"backward": Backward("nothing")}, "no solver 'nothing'"),
        ({"gradient": "exact"}, "implicit, jacobian-free, phantom"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"backward": Backward(max_steps=0)}, "max_steps=0"),
        ({"tol": 0.0}, "tol=0"),
        ({"backward": Backward(tol=-1.0)}, "tol=-1"),
    ):
        with pytest.raises(KoopsimError, match=message):
            DEQ(Cell(), **options)
    for make in (lambda: Phantom(steps=0), lambda: Neumann(damping=1.5), lambda: Reversible(1.0), lambda: DEQ(3)):
        with pytest.raises(KoopsimError, match="expected"):
            make()
    with pytest.raises(KoopsimError, match="expected floats"):
        DEQ(Cell())(torch.zeros(2, 3, dtype=torch.int64))


def test_a_deq_can_be_copied_and_printed():
    deq = copy.deepcopy(DEQ(Cell(), functools.partial(anderson, memory=7)))
    assert "solver='anderson'" in repr(deq)
    assert deq(torch.randn(3, 4).double())[1].converged.all()


@pytest.mark.parametrize("solver", ["anderson", "broyden"])
def test_torchdeq_agrees(solver):
    """The same cell in torchdeq, with implicit differentiation on (its default is a one-step gradient)."""
    torchdeq = pytest.importorskip("torchdeq")
    cell, x = Cell(6), torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    theirs = torchdeq.get_deq(
        ift=True, f_solver="anderson", b_solver="anderson", f_max_iter=200, b_max_iter=200, f_tol=1e-12,
        b_tol=1e-12, f_stop_mode="rel", b_stop_mode="rel",
    )  # fmt: skip
    (their_z,), _ = theirs(lambda z: cell(z, x), torch.zeros_like(x))
    our_z, _ = DEQ(cell, solver, **TIGHT)(x)
    torch.testing.assert_close(our_z, their_z, rtol=0, atol=1e-6)
    g = torch.randn_like(our_z)
    ours = torch.autograd.grad(our_z, [x, cell.W, cell.b], g)
    torch.testing.assert_close(ours, torch.autograd.grad(their_z, [x, cell.W, cell.b], g), rtol=0, atol=1e-6)
