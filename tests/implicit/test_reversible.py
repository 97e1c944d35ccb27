"""The reversible iteration: its gradient is that of the unrolled one, to rounding, without the memory."""

import gc

import pytest
import torch
from torch import nn

from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ, Reversible, TransformerDEQ, UnconvergedWarning
from koopsim.implicit.outside import seen_by


class Cell(nn.Module):
    def __init__(self, n=6, dtype=torch.float64):
        super().__init__()
        self.W = nn.Parameter(0.5 * torch.randn(n, n, dtype=dtype) / n**0.5)
        self.calls = 0

    def forward(self, z, x):
        self.calls += 1
        return torch.tanh(z @ self.W.T + x)


def reversible(cell, b=0.5, steps=10, tol=1e-30):
    deq = DEQ(cell, gradient=Reversible(b), max_steps=steps, tol=tol)
    deq._warned.add("forward")
    return deq


def unrolled(cell, x, b, steps):
    """The same iteration, in the open."""
    y = z = torch.zeros_like(x)
    for _ in range(steps):
        y = (1 - b) * y + b * cell(z, x)
        z = (1 - b) * z + b * cell(y, x)
    return z


@pytest.mark.parametrize("b", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("steps", [1, 4, 12])
def test_the_gradient_is_that_of_the_unrolled_iteration(b, steps):
    cell, x = Cell(), torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    z, info = reversible(cell, b, steps)(x)
    want = unrolled(cell, x, b, steps)
    torch.testing.assert_close(z, want, rtol=1e-14, atol=1e-14)
    g = torch.randn_like(z)
    got = torch.autograd.grad(z, [x, cell.W], g)
    exact = torch.autograd.grad(want, [x, cell.W], g)
    worst = 1e-12 if (1 - b) ** -steps < 1e4 else 1e-6  # what undoing does to rounding
    for a, e in zip(got, exact, strict=True):
        assert (a - e).abs().max() <= worst * e.abs().max()
    assert (info.steps == steps).all()
    assert info.backward is not None
    assert info.backward.converged.all()


def test_the_gradient_is_the_finite_difference():
    cell, x = Cell(3), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    deq = reversible(cell, 0.5, 6)
    assert torch.autograd.gradcheck(lambda x, W: deq(x)[0], (x, cell.W), atol=1e-8)


def test_samples_stop_one_by_one_and_go_back_one_by_one():
    cell = Cell()
    x = torch.tensor([[30.0], [0.1], [3.0]], dtype=torch.float64) * torch.ones(3, 6, dtype=torch.float64)
    x.requires_grad_()
    deq = reversible(cell, 0.6, 40, 1e-5)
    z, info = deq(x)
    assert info.converged.all()
    assert len(set(info.steps.tolist())) > 1
    g = torch.randn_like(z)
    (got,) = torch.autograd.grad(z, x, g)
    for i, steps in enumerate(info.steps.tolist()):
        alone = x[i : i + 1].detach().requires_grad_()
        (want,) = torch.autograd.grad(unrolled(cell, alone, 0.6, steps), alone, g[i : i + 1])
        torch.testing.assert_close(got[i : i + 1], want, rtol=1e-6, atol=1e-8)


def test_converged_it_is_the_implicit_gradient():
    cell, x = Cell(), torch.randn(4, 6, dtype=torch.float64)
    with torch.no_grad():
        cell.W.mul_(0.3)
    loss = lambda deq: deq(x)[0].sin().sum()  # noqa: E731
    (got,) = torch.autograd.grad(loss(reversible(cell, 0.8, 12, 1e-9)), cell.W)
    (want,) = torch.autograd.grad(loss(DEQ(cell, max_steps=200, tol=1e-13)), cell.W)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_memory_does_not_depend_on_the_number_of_steps():
    def kept(steps):
        cell, x, total = Cell(16), torch.randn(8, 16, dtype=torch.float64), []
        deq = reversible(cell, 0.05, steps)

        def pack(t):
            total.append(t.untyped_storage().nbytes())
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            z, _ = deq(x)
        z.sum().backward()
        return sum(total)

    assert kept(5) == kept(50) > 0


@pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")
def test_everything_the_cell_sees_gets_its_gradient_once():
    """Weights, closures, an input and another input made of it: what a naive recomputation counts twice or never."""
    W = (0.3 * torch.randn(4, 4, dtype=torch.float64)).requires_grad_()
    encoder = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def loss(solve):
        c = torch.tanh(x @ encoder)
        shared = W * 2  # made outside of the cell, not a leaf

        def cell(z, x, c):
            return torch.tanh(torch.cat([z[:, :2], z[:, 2:]], dim=1) @ (W + 0.1 * shared) + x + c * c)

        return solve(cell, c).sin().sum()

    def run(cell, c):
        return DEQ(cell, gradient=Reversible(0.5), max_steps=7, tol=1e-30)(x, c)[0]

    def explicit(cell, c):
        return unrolled(lambda z, x: cell(z, x, c), x, 0.5, 7)

    got = torch.autograd.grad(loss(run), [W, encoder, x])
    want = torch.autograd.grad(loss(explicit), [W, encoder, x])
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-13)


def test_what_cannot_be_followed_is_refused():
    weight = torch.ones(4, requires_grad=True)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z, w):
            ctx.save_for_backward(z, w)
            return z * w * 0.5

        @staticmethod
        def backward(ctx, *grads):
            z, w = ctx.saved_tensors
            return grads[0] * w * 0.5, (grads[0] * z * 0.5).sum(0)

    with pytest.raises(KoopsimError, match=r"cannot be followed .* use gradient='implicit'"):
        DEQ(lambda z, x: Scaled.apply(z, weight) + x, gradient="reversible")(torch.randn(2, 4))
    assert seen_by(lambda z: z * 2, torch.ones(2, 2)) == []


def test_a_backward_pass_that_misses_its_start_says_so():
    cell = Cell()
    deq = reversible(cell, 0.9, 30)
    z, info = deq(torch.randn(2, 6, dtype=torch.float64))
    with pytest.warns(UnconvergedWarning, match=r"was not undone for 2 of 2 .* Use fewer steps, a smaller relaxation"):
        z.sum().backward()
    assert not info.backward.converged.any()


def test_a_float32_cell_is_undone_in_float64():
    cell, x = Cell(dtype=torch.float32), torch.randn(4, 6)
    z, info = reversible(cell, 0.5, 20)(x)
    (got,) = torch.autograd.grad(z.sum(), cell.W)
    (want,) = torch.autograd.grad(unrolled(cell, x, 0.5, 20).sum(), cell.W)
    assert z.dtype == got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert info.backward.residuals.max() < 1e-5  # in float32 it would be 2^20 roundings of 1e-7


def test_a_prepared_cell_trains():
    model = TransformerDEQ(5, 2, 4, 8, 8, deq=lambda cell: reversible(cell, 0.5, 5)).double()
    tokens = torch.randint(0, 5, (2, 7))
    names, values = zip(*model.named_parameters(), strict=True)
    got = torch.autograd.grad(model(tokens).sin().sum(), values)
    embedded = torch.nn.functional.embedding(tokens, model.embedding) * 8**0.5
    u = model.injection(embedded)
    f = model.deq.cell.prepare(u)
    z = unrolled(lambda z, x: f(z), torch.zeros(2, 7, 8, dtype=torch.float64), 0.5, 5)
    logits = torch.nn.functional.linear(z, model.embedding, model.output_bias)
    want = torch.autograd.grad(logits.sin().sum(), values)
    for name, a, b in zip(names, got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10, msg=name)


def test_under_autocast_both_passes_have_its_precision():
    """The backward pass is called outside of it; another precision there would not undo the steps."""
    torch.manual_seed(0)
    linear, x = torch.nn.Linear(6, 6), torch.randn(4, 6)

    def f(z, x):
        return torch.tanh(0.5 * linear(z) + x)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        for gradient in ("implicit", "reversible"):  # the first leaves rounded weights in autocast's memory
            z, info = DEQ(f, max_steps=10, tol=1e-2, gradient=gradient)(x)
    z.sum().backward()
    assert info.backward.converged.all()
    got = linear.weight.grad.clone()
    linear.zero_grad()
    DEQ(f, max_steps=10, tol=1e-2, gradient="reversible")(x)[0].sum().backward()
    assert (got - linear.weight.grad).norm() < 0.02 * got.norm()


@pytest.mark.slow
def test_of_a_compiled_cell_the_gradient_is_the_cells():
    torch.manual_seed(0)
    cell, x = Cell(), torch.randn(3, 6, dtype=torch.float64)
    want, got = (
        torch.autograd.grad(reversible(own)(x)[0].sin().sum(), list(cell.parameters()))
        for own in (cell, torch.compile(cell, backend="eager"))
    )
    torch.testing.assert_close(got, want)


def test_what_is_judged_is_the_iteration_that_was_trained():
    """Unconverged, it is another map after other steps; an implicit DEQ means the fixed point, and may take more."""
    torch.manual_seed(0)
    x = torch.randn(3, 6, dtype=torch.float64)
    for gradient in ("reversible", Reversible(0.5)):
        deq = DEQ(Cell(), max_steps=2, tol=1e-9, gradient=gradient)
        deq._warned.add("forward")
        trained, judged = deq(x), deq.eval()(x)
        torch.testing.assert_close(trained[0], judged[0], rtol=0, atol=0)
        assert judged[1].steps.tolist() == [2, 2, 2]
    other = DEQ(Cell(), max_steps=2, tol=1e-9).eval()
    other._warned.add("forward")
    assert other(x)[1].steps.min() > 2


def test_no_gradient_no_tape():
    cell, x = Cell(), torch.randn(2, 6, dtype=torch.float64)
    deq = reversible(cell)
    with torch.no_grad():
        assert deq(x)[0].grad_fn is None
    cell.requires_grad_(False)
    assert deq(x)[0].grad_fn is None
    with pytest.raises(RuntimeError, match="create_graph"):
        z, _ = deq(x.requires_grad_())
        torch.autograd.grad(z.sum(), x, create_graph=True)
    gc.collect()
