"""DEQ beside the rest of PyTorch: cells of any kind, many inputs, torch.func, compile, autocast, DDP."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ, SOLVERS, Phantom, Tolerance, UnconvergedWarning, picard
from koopsim.implicit.deq import GRADIENTS

TIGHT = {"max_steps": 200, "tol": 1e-13}


class Cell(nn.Module):
    def __init__(self, n=4, dtype=torch.float64):
        super().__init__()
        self.linear = nn.Linear(n, n, dtype=dtype)
        nn.init.orthogonal_(self.linear.weight, gain=0.6)

    def forward(self, z, x):
        return torch.tanh(self.linear(z) + x)


def test_any_number_of_inputs_shared_or_a_sample_each():
    W = 0.4 * torch.randn(4, 4, dtype=torch.float64)
    scale = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    x, mask = torch.randn(3, 4, dtype=torch.float64), torch.ones(3, 1, dtype=torch.float64)
    z, info = DEQ(lambda z, x, W, scale, mask: mask * torch.tanh(scale * z @ W.T + x), **TIGHT)(x, W, scale, mask)
    assert info.converged.all()
    z.sum().backward()
    assert scale.grad is not None
    z, _ = DEQ(lambda z: z / 2 + 1, **TIGHT)(z0=torch.zeros(2, 3, dtype=torch.float64))
    torch.testing.assert_close(z, torch.full_like(z, 2.0))


def test_inputs_may_be_structures():
    x = {"a": torch.randn(3, 4, dtype=torch.float64, requires_grad=True), "b": [torch.tensor(2.0)]}
    z, _ = DEQ(lambda z, x: 0.5 * z + x["a"] * x["b"][0], **TIGHT)(x, z0=torch.zeros(3, 4, dtype=torch.float64))
    z.sum().backward()
    torch.testing.assert_close(x["a"].grad, torch.full((3, 4), 4.0, dtype=torch.float64))
    with pytest.raises(KoopsimError, match=r"first input is a dict, so the shape .* z0="):
        DEQ(lambda z, x: z)(x)
    with pytest.raises(KoopsimError, match="first input is missing"):
        DEQ(lambda z: z)()


@pytest.mark.parametrize("gradient", ["implicit", "neumann"])
def test_a_cell_that_does_not_look_at_z_is_told(gradient):
    x = torch.randn(2, 3, requires_grad=True)
    z, _ = DEQ(lambda a, b: b * 2, gradient=gradient)(x)
    with pytest.raises(KoopsimError, match=r"does not depend on its first argument z.*order"):
        z.sum().backward()


@pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")
@pytest.mark.parametrize("gradient", ["implicit", "reversible"])
def test_a_cell_that_edits_its_input_is_told(gradient):
    with pytest.raises(KoopsimError, match="one of its inputs in place"):
        DEQ(lambda z, x: 0.5 * z + x.add_(0.1), max_steps=8, gradient=gradient)(torch.zeros(2, 3))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own
def test_dual_numbers_are_told():
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(torch.zeros(2, 3), torch.ones(2, 3))
        with pytest.raises(KoopsimError, match=r"dual numbers.*plain autograd"):
            DEQ(lambda z, x: 0.5 * z + x)(x)


def test_a_cell_that_gives_nan_is_told():
    with pytest.warns(UnconvergedWarning, match=r"3 of 3 samples .* NaN or infinite from the start, so check"):
        _, info = DEQ(lambda z, x: z * torch.nan)(torch.zeros(3, 2))
    assert not info.converged.any()
    assert (info.residuals == torch.inf).all()


def test_absolute_residuals_and_norms_of_ones_own():
    cell, x = Cell(), torch.randn(3, 4, dtype=torch.float64)
    z, info = DEQ(cell, max_steps=99, tol=Tolerance(1e-7, "absolute"))(x)
    assert ((cell(z, x) - z).norm(dim=1) < 1e-7).all()
    z, info = DEQ(cell, max_steps=99, tol=Tolerance(1e-6, lambda g, fz: g.abs().amax(1)))(x)
    torch.testing.assert_close(info.residuals, (cell(z, x) - z).abs().amax(1).detach(), rtol=1e-3, atol=0)


def test_a_solver_may_be_a_function():
    seen = []

    def mine(f, z0, *, max_steps, tol):
        seen.append(max_steps)
        return picard(f, z0, max_steps=max_steps, tol=tol)

    deq, x = DEQ(Cell(), mine, max_steps=70, tol=1e-6), torch.randn(3, 4, dtype=torch.float64)
    z, _ = deq(x)
    z.sum().backward()
    assert seen == [70, 70]
    deq.eval()(x)
    assert seen[-1] == 280
    assert "mine" in repr(deq)


def test_functional_call_works_and_transforms_say_that_they_do_not():
    deq, x = DEQ(Cell(), **TIGHT), torch.randn(3, 4, dtype=torch.float64)
    values = {name: 0.5 * p.detach().clone().requires_grad_() for name, p in deq.named_parameters()}
    z, _ = torch.func.functional_call(deq, values, (x,))
    grads = torch.autograd.grad(z.sum(), list(values.values()))
    assert all(g.abs().sum() > 0 for g in grads)
    for transform in (torch.func.grad, torch.func.vmap):
        with pytest.raises(KoopsimError, match=r"under a transform of torch\.func"):
            transform(lambda x: deq(x)[0].sum())(x)


@pytest.mark.parametrize("solver", SOLVERS)
def test_autocast_solves_in_the_precision_of_the_state(solver):
    cell, x = Cell(8, torch.float32), torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z, info = DEQ(cell, solver, tol=2e-2)(x)
    assert z.dtype == torch.float32
    assert info.converged.all()
    z.sum().backward()
    assert cell.linear.weight.grad is not None


@pytest.mark.slow
def test_a_compiled_cell_is_a_cell():
    cell, x = Cell(), torch.randn(3, 4, dtype=torch.float64)
    compiled = DEQ(torch.compile(cell, backend="aot_eager"), **TIGHT)
    z, _ = compiled(x)
    plain, _ = DEQ(cell, **TIGHT)(x)
    torch.testing.assert_close(z, plain)
    g = torch.randn_like(z)
    got, want = (torch.autograd.grad(y, cell.linear.weight, g)[0] for y in (z, plain))
    torch.testing.assert_close(got, want)


DDP = """
import os, sys, torch, warnings
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from koopsim.implicit import DEQ
rank, gradient, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
warnings.simplefilter("ignore")
dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{folder}/meet")
torch.manual_seed(0)
class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4).double()
    def forward(self, z, x):
        return torch.tanh(0.5 * self.linear(z) + x)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.deq = DEQ(Cell(), max_steps=10 if gradient == "reversible" else 99, tol=1e-12, gradient=gradient)
    def forward(self, x):
        return self.deq(x)[0]
x = torch.randn(6, 4, dtype=torch.float64)
plain = Model()
plain(x).square().mean().backward()
model = DistributedDataParallel(Model())
model.module.load_state_dict(plain.state_dict())
model(x[3 * rank : 3 * rank + 3]).square().mean().backward()
for p, q in zip(plain.parameters(), model.parameters()):
    torch.testing.assert_close(p.grad, q.grad, rtol=1e-7, atol=1e-9)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["implicit", "reversible"])
def test_two_processes_share_a_batch(gradient, tmp_path):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, "-c", DDP, str(r), gradient, str(tmp_path)], env=env) for r in (0, 1)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]


@pytest.mark.parametrize("gradient", ["implicit", "reversible"])
def test_the_warning_points_at_the_caller(gradient):
    deq = DEQ(lambda z, x: 0.99 * z + x, "picard", 3, 1e-6, gradient)
    with pytest.warns(UnconvergedWarning) as seen:
        deq(torch.ones(2, 3))
    assert seen[0].filename == __file__


def test_under_autocast_the_warning_says_that_no_solve_gets_below_its_rounding():
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8)
    torch.nn.init.orthogonal_(layer.weight, 0.5)
    deq, x = DEQ(lambda z, x: torch.tanh(layer(z)) + x, "picard", 20, 1e-4), torch.randn(5, 8)
    with torch.autocast("cpu", torch.bfloat16), pytest.warns(UnconvergedWarning, match="forward .* rounds .* to 0.008"):
        z, info = deq(x)
    with pytest.warns(UnconvergedWarning, match="backward .* rounds the cell to 0.008"):
        z.sin().sum().backward()
    assert max(float(info.residuals.max()), float(info.backward.residuals.max())) < 0.008
    with pytest.warns(UnconvergedWarning) as seen:
        DEQ(lambda z, x: 0.99 * z + x, "picard", 3, 1e-6)(x)
    assert "Autocast" not in str(seen[0].message)


def test_a_cell_of_several_states_is_told_where_its_z_came_from():
    def cell(z, x):
        a, b = z
        return a / 2 + x, b / 2

    with pytest.raises(ValueError, match="unpack") as caught:
        DEQ(cell)(torch.ones(5, 3))
    assert "give deq(..., z0=...)" in caught.value.__notes__[0]
    z0 = (torch.zeros(5, 3), torch.zeros(5, 2))
    assert DEQ(cell)(torch.ones(5, 3), z0=z0)[1].converged.all()


def test_a_function_of_the_parts_is_told_how_it_is_called():
    def cell(a, b):
        return a / 2 + 1, b / 2

    z0 = (torch.zeros(5, 3), torch.zeros(5, 2))
    with pytest.raises(TypeError, match="missing 1") as caught:
        DEQ(cell)(z0=z0)
    assert "z of (3, 2) as one argument" in caught.value.__notes__[0]
    assert DEQ(lambda z: cell(*z))(z0=z0)[1].converged.all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gradient": 3}, r"gradient=3: expected implicit, .*Phantom\(steps=3\)"),
        ({"gradient": Phantom}, "gradient=<class .*Phantom"),
        ({"backward": {"tol": 1e-6}}, r"backward=\{'tol': 1e-06\}: expected Backward\("),
    ],
    ids=["steps", "a class", "a dict"],
)
def test_what_is_no_gradient_is_refused_at_once(options, said):
    with pytest.raises(KoopsimError, match=said):
        DEQ(lambda z, x: z / 2 + x, **options)


def test_a_path_is_of_steps():
    deq, x = DEQ(lambda z, x: z / 2 + x, "picard", 5, 1e-9), torch.ones(2, 3)
    for at in ((0,), (1, -2), (1.5,)):
        with pytest.raises(KoopsimError, match="whole numbers from 1 on"):
            deq.path(x, at=at)
    with pytest.warns(UnconvergedWarning):
        states, _ = deq.path(x, at=(1, 3, 50))
    assert [float(z[0, 0]) for z in states] == [0.0, 1.5, 1.875]  # the best of five evaluated


# ------------------------------------------------------------ cells that cut their own gradient

LAYER = nn.Linear(3, 3)
CUT = {
    "no_grad": lambda layer: lambda z, x: torch.no_grad()(lambda: torch.tanh(layer(z) + x) / 2)(),
    "answer detached": lambda layer: lambda z, x: (torch.tanh(layer(z) + x) / 2).detach(),
    "weights detached": lambda layer: lambda z, x: torch.tanh(z @ layer.weight.detach().T / 4 + x),
}


class Cut(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.step = CUT[way](self.layer)

    def forward(self, z, x):
        return self.step(z, x)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("way", CUT)
@pytest.mark.parametrize("form", ["module", "function"])
def test_a_cell_that_cuts_its_gradient_is_told(form, way, gradient):
    cell, used = (Cut(way), "parameters") if form == "module" else (CUT[way](LAYER), "tensors it uses")
    deq, x = DEQ(cell, max_steps=60, gradient=gradient), torch.randn(2, 3)
    with pytest.raises(KoopsimError, match=rf"carries no gradient, while \d of (its|the) {used} want.*eval mode"):
        deq(x)
    if way != "weights detached":
        with pytest.raises(KoopsimError, match=r"carries no gradient, while 1 of its inputs"):
            deq(x.clone().requires_grad_())
    with torch.no_grad():
        assert deq(x)[0].isfinite().all()
    z, _ = deq.eval()(x)  # nobody said that a gradient is meant
    assert not z.requires_grad
    for p in (LAYER if form == "function" else cell).parameters():
        p.requires_grad_(False)
    try:
        assert not deq.train()(x)[0].requires_grad  # and here nobody wants one
    finally:
        LAYER.requires_grad_(True)


def test_a_weight_that_is_given_by_name_is_found():
    layer = nn.Linear(3, 3)
    deq = DEQ(lambda z, x: torch.no_grad()(lambda: nn.functional.linear(z, weight=layer.weight) / 4 + x)())
    with pytest.raises(KoopsimError, match="carries no gradient, while 1 of the tensors it uses"):
        deq(torch.randn(2, 3))


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_cells_without_weights_and_weights_that_are_not_used_need_no_gradient(gradient):
    class Model(nn.Module):
        """A cell that is a method, of a module with weights that it does not use."""

        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 1)
            self.deq = DEQ(self.step, gradient=gradient)

        def step(self, z, x):
            return torch.tanh(z * self.head.weight.shape[1] / 9 + x)

        def forward(self, x):
            return self.head(self.deq(x)[0])

    model, x = Model(), torch.randn(2, 3)
    for _ in range(2):
        model(x).sum().backward()
    assert model.head.weight.grad is not None
    assert not DEQ(lambda z, x: z / 2 + x, gradient=gradient)(x)[0].requires_grad


def test_a_gradient_of_one_part_is_enough():
    """Half of the weights detached, an input that nobody uses: what is left has its gradient."""
    one, two = nn.Linear(3, 3), nn.Linear(3, 3)

    def cell(z, x, spare):
        return torch.tanh(one(z) / 4 + x + two.weight.detach().sum() / 9)

    z, _ = DEQ(cell, max_steps=60)(torch.randn(2, 3), torch.ones(2).requires_grad_())
    z.sum().backward()
    assert one.weight.grad is not None
    assert two.weight.grad is None


def test_an_autograd_function_of_ones_own_is_left_alone():
    """It may know leaves that are none of its inputs: this one hands a weight its gradient by itself."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z, cell):
            ctx.cell = cell
            return z * cell.weight.detach()

        @staticmethod
        def backward(ctx, *grads):
            ctx.cell.reached = True
            return grads[0] * ctx.cell.weight.detach(), None

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.reached = nn.Parameter(torch.tensor(0.5)), False

        def forward(self, z, x):
            return Own.apply(z, self) + x

    cell = Cell()
    DEQ(cell)(torch.ones(1, 1))[0].sum().backward()
    assert cell.reached
