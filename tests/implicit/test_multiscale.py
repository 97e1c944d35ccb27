"""The multiscale DEQ: an equilibrium over resolutions, right, differentiable and learning."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import koopsim
from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ, MultiscaleDEQ, SolverModel
from koopsim.implicit.multiscale import MultiscaleCell, MultiscaleConfig, MultiscaleKind
from koopsim.presets import PRESETS


def tight(cell):
    return DEQ(cell, max_steps=200, tol=1e-12)


def small(deq=DEQ, **options):
    return MultiscaleDEQ((1, 8, 8), (4, 8), 3, deq=deq, **options)


def test_sizes_are_those_of_table_2():
    for name, about in (("cifar10/mdeq", 168_694), ("svhn/mdeq", 168_694), ("mnist/mdeq", 81_480)):
        assert abs(koopsim.count_parameters(koopsim.build(name)) / about - 1) < 0.02
    assert koopsim.count_parameters(koopsim.build("cifar10/mdeq-large")) > 1e6
    assert PRESETS["cifar10/mdeq-large"].run.recipe.flip


def test_the_state_is_a_fixed_point_at_every_resolution():
    model, x = small(tight).double(), torch.randn(3, 1, 8, 8, dtype=torch.float64)
    z, info = model.solve(x)
    assert [tuple(part.shape) for part in z] == [(3, 4, 8, 8), (3, 8, 4, 4)]
    seen = model.stem(x)
    u = [model.inject[0](seen), model.inject[1](F.avg_pool2d(seen, 2))]
    for after, before in zip(model.deq.cell(z, *u), z, strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=1e-10)
    assert info.converged.all()
    assert info.forward.parts.shape == (3, 2)
    torch.testing.assert_close(model(x), model.read(z))


def test_resolutions_hear_of_each_other():
    cell = MultiscaleCell((4, 8, 8)).double()
    u = [torch.randn(2, c, 8 >> s, 8 >> s, dtype=torch.float64) for s, c in enumerate((4, 8, 8))]
    z = tuple(torch.randn_like(part) for part in u)
    before = cell(z, *u)
    for changed in range(3):
        after = cell(tuple(p + (s == changed) * torch.randn_like(p) for s, p in enumerate(z)), *u)
        assert all((a - b).abs().max() > 1e-6 for a, b in zip(after, before, strict=True))


def test_the_gradient_is_the_finite_difference():
    model, x = small(tight).double(), torch.randn(2, 1, 8, 8, dtype=torch.float64)
    names, values = zip(*model.named_parameters(), strict=True)

    def loss(*values):
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,)).sin().sum()

    assert torch.autograd.gradcheck(loss, values, atol=1e-6, fast_mode=True)


def test_fresh_from_its_initialisation_it_converges():
    torch.manual_seed(3)
    model = koopsim.build("mnist/mdeq")
    with torch.no_grad():
        model(torch.randn(4, 1, 28, 28))
    assert model.last_info.converged.all()
    assert isinstance(model, SolverModel)
    assert model.limits == (12, 20) == model.captured_steps


def test_under_autocast_a_step_is_in_its_precision_and_the_state_is_not():
    torch.manual_seed(1)
    model, x, seen = small(lambda cell: DEQ(cell, max_steps=40, tol=1e-2)), torch.randn(3, 1, 8, 8), []
    for block in model.deq.cell.blocks:
        block.register_forward_hook(lambda block, given, out: seen.append(({t.dtype for t in given}, out.dtype)))
    exact, _ = model.solve(x)
    assert all(kinds == {torch.float32} and out == torch.float32 for kinds, out in seen)
    seen.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z, info = model.solve(x)
    assert all(kinds == {torch.bfloat16} and out == torch.bfloat16 for kinds, out in seen)
    assert info.converged.all()
    for part, right in zip(z, exact, strict=True):
        assert part.dtype == torch.float32
        assert (part - right).norm() < 0.05 * right.norm()
    z[0].sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in model.parameters())
    assert model.inject[1].weight.grad.abs().max() > 0  # through what was rounded


def test_it_learns_digits():
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x = x.float().view(-1, 1, 8, 8)[:480] / 8 - 1
    model = MultiscaleDEQ((1, 8, 8), (4, 8), deq=lambda cell: DEQ(cell, max_steps=12, tol=5e-2))
    model.deq._warned.update(("forward", "backward"))
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for rows in torch.randperm(480).split(48) * 2:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimiser.step()
    assert loss < 1.2


def test_shapes_it_cannot_take_are_named():
    with pytest.raises(KoopsimError, match=r"3 resolutions halve it 2 times, so its sides must be multiples of 4"):
        MultiscaleDEQ((1, 30, 30))
    with pytest.raises(KoopsimError, match="multiples of 4, the groups"):
        MultiscaleDEQ((1, 8, 8), (6, 8))
    with pytest.raises(KoopsimError, match="Build the model with their size"):
        small()(torch.zeros(2, 3, 8, 8))
    fitted = MultiscaleKind().for_images(MultiscaleConfig(), (1, 30, 30), 4)
    assert (fitted.image, fitted.outputs, fitted.widths) == ((1, 30, 30), 4, (24, 32))
