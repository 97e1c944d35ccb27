"""What makes a DEQ behave: normalised weights, held dropout, penalties, continuation."""

from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.checkpoint import checkpoint

from koopsim.errors import KoopsimError
from koopsim.implicit import (
    DEQ,
    Continued,
    UnconvergedWarning,
    VariationalDropout,
    correction_loss,
    denormalise,
    jacobian_penalty,
    normalise,
    spectral_radius,
)
from koopsim.implicit.stabilise import modules_in


class Cell(nn.Module):
    def __init__(self, n=6, dropout=0.0, shared=()):
        super().__init__()
        self.inner, self.outer = nn.Linear(n, 2 * n), nn.Linear(2 * n, n)
        self.dropout = VariationalDropout(dropout, shared)

    def forward(self, z, x):
        return torch.tanh(self.outer(self.dropout(torch.tanh(self.inner(z)))) + x)


# ------------------------------------------------------------ weights


@pytest.mark.parametrize("norm", ["weight", "spectral"])
def test_a_normalised_weight_is_computed_once_a_forward_and_trains(norm):
    cell, x = normalise(Cell(), norm), torch.randn(4, 6)
    calls = []
    part = cell.inner.parametrizations.weight[0]
    part.register_forward_hook(lambda *_: calls.append(1))
    deq = DEQ(cell, max_steps=60, tol=1e-5)
    z, info = deq(x)
    assert info.steps.max() > 2
    assert len(calls) == 1
    z.square().sum().backward()
    assert len(calls) == 1
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in cell.parameters())


def test_the_gradient_through_a_normalised_weight_is_the_finite_difference():
    cell = normalise(Cell(3), "weight").double()
    x, deq = torch.randn(2, 3, dtype=torch.float64), DEQ(cell, max_steps=200, tol=1e-13)
    names, values = zip(*cell.named_parameters(), strict=True)

    def solve(*values):
        return torch.func.functional_call(deq, {f"cell.{n}": v for n, v in zip(names, values, strict=True)}, (x,))[0]

    assert torch.autograd.gradcheck(solve, values, atol=1e-7)


def test_norms_have_their_norms_and_survive_safetensors(tmp_path):
    cell = normalise(normalise(Cell(), "spectral", skip=("outer",)), "weight")
    cell(torch.zeros(1, 6), torch.zeros(1, 6))
    for _ in range(60):  # the power iteration goes on in training
        _ = cell.inner.weight
    torch.testing.assert_close(torch.linalg.matrix_norm(cell.inner.weight, ord=2), torch.ones(()), rtol=1e-3, atol=0)
    save_file(cell.state_dict(), tmp_path / "cell.safetensors")
    other = normalise(normalise(Cell(), "spectral", skip=("outer",)), "weight")
    other.load_state_dict(load_file(tmp_path / "cell.safetensors"))
    x = torch.randn(3, 6)
    cell.eval(), other.eval()
    assert torch.equal(cell(x, x), other(x, x))
    before = cell(x, x)
    denormalise(cell)
    assert {name for name, _ in cell.named_parameters()} == {name for name, _ in Cell().named_parameters()}
    torch.testing.assert_close(cell(x, x), before)


def test_wrong_normalisations_are_named():
    with pytest.raises(KoopsimError, match="Did you mean 'spectral'"):
        normalise(Cell(), "spectrall")
    with pytest.raises(KoopsimError, match=r"no layer 'iner' to skip\. Did you mean 'inner'"):
        normalise(Cell(), skip=("iner",))
    with pytest.raises(KoopsimError, match="no linear or convolutional layer"):
        normalise(nn.ReLU())


# ------------------------------------------------------------ dropout


def test_a_dropout_holds_still_for_a_solve_and_draws_for_the_next():
    torch.manual_seed(1)
    cell, x = Cell(dropout=0.4), 0.3 * torch.randn(5, 6)
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(0.7)
    deq = DEQ(cell, max_steps=60, tol=1e-6)
    first, info = deq(x)
    assert info.converged.all()  # with a mask a step there would be nothing to converge to
    mask = cell.dropout.mask.clone()
    second, _ = deq(x)
    assert not torch.equal(mask, cell.dropout.mask)
    assert not torch.allclose(first, second)
    assert 0.2 < (mask == 0).float().mean() < 0.6
    torch.testing.assert_close(mask.max(), torch.tensor(1 / 0.6))
    deq.eval()
    assert torch.equal(deq(x)[0], deq(x)[0])


def test_dropout_may_share_its_draw_along_dimensions():
    drop = VariationalDropout(0.5, shared=(1,))
    out = drop(torch.ones(20, 7, 30))
    assert torch.equal(out[:, :1].expand_as(out), out)
    assert drop(torch.ones(3, 7, 30)).shape == (3, 7, 30)  # another batch: another mask
    with pytest.raises(KoopsimError, match=r"p=1.0: expected a share"):
        VariationalDropout(1.0)


# ------------------------------------------------------------ penalties


def test_the_jacobian_penalty_is_the_frobenius_norm():
    cell, x = Cell(5).double(), torch.randn(3, 5, dtype=torch.float64)
    z = torch.randn(3, 5, dtype=torch.float64)
    J = torch.stack([torch.autograd.functional.jacobian(lambda v, i=i: cell(v[None], x[i : i + 1])[0], z[i])
                     for i in range(3)])  # fmt: skip
    exact = J.square().sum((1, 2)).mean() / 5
    got = jacobian_penalty(lambda z: cell(z, x), z, samples=4000)
    torch.testing.assert_close(got, exact, rtol=0.05, atol=0)
    (grad,) = torch.autograd.grad(got, cell.inner.weight)
    assert grad.abs().sum() > 0
    assert jacobian_penalty(lambda z: x * 2, z) == 0  # no dependence on z


def test_the_spectral_radius_is_the_largest_eigenvalue():
    angle, rates = torch.tensor(0.7).double(), torch.tensor([0.3, 0.95, 1.4, 0.0]).double()
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(2, 2)
    f = lambda z: rates[:, None] * torch.cat([z[:, :2] @ turn.T, 0.5 * z[:, 2:]], dim=1)  # noqa: E731
    torch.testing.assert_close(spectral_radius(f, torch.zeros(4, 5).double(), 200), rates, rtol=1e-2, atol=1e-12)
    parts = spectral_radius(lambda z: (0.2 * z[0], 0.6 * z[1]), (torch.zeros(2, 3), torch.zeros(2, 1, 4)))
    torch.testing.assert_close(parts, torch.full((2,), 0.6), rtol=1e-3, atol=0)


def test_corrections_weigh_the_states_of_a_path():
    cell, x, target = Cell().double(), torch.randn(4, 6).double(), torch.zeros(4, 6).double()
    deq = DEQ(cell, "picard", max_steps=60, tol=1e-10)
    states, info = deq.path(x, at=(1, 3))
    assert len(states) == 3
    assert info.converged.all()
    torch.testing.assert_close(states[0], torch.zeros_like(x))  # the first point that is evaluated is z0
    step = x * 0
    for _ in range(2):
        step = cell(step, x)
    torch.testing.assert_close(states[1], step)
    mse = nn.functional.mse_loss
    got = correction_loss(mse, states, target, weight=0.5)
    want = mse(states[2], target) + 0.5 * mse(states[1], target) + 0.25 * mse(states[0], target)
    torch.testing.assert_close(got, want)
    got.backward()
    assert cell.inner.weight.grad is not None
    with pytest.raises(KoopsimError, match="0 states"):
        correction_loss(mse, [], target)


# ------------------------------------------------------------ continuation


def test_continuation_begins_where_the_last_batch_ended():
    cell, x = Cell().double(), torch.randn(4, 6).double()
    deq = DEQ(cell, max_steps=60, tol=1e-8)
    continued = Continued(deq)
    _, cold = continued(x)
    z, warm = continued(x + 1e-4)
    assert warm.steps.double().mean() < cold.steps.double().mean()
    torch.testing.assert_close(z, deq(x + 1e-4)[0], rtol=1e-6, atol=1e-8)
    _, other = continued(x[:2])  # another size starts afresh
    assert torch.equal(other.steps, cold.steps[:2])
    continued.reset()
    _, again = continued(x)
    assert torch.equal(again.steps, cold.steps)
    assert not continued.state_dict().keys() ^ {f"deq.{name}" for name in deq.state_dict()}
    bad = x.clone()
    bad[1] = torch.nan
    with pytest.warns(UnconvergedWarning, match="never had a finite value"):
        continued(bad)
    _, healed = continued(x)
    assert healed.converged.all()


# ------------------------------------------------------------ cells that are functions

SHARED = Cell(dropout=0.5)


def by_global(z, x):
    return SHARED(z, x)


def ways_to(cell):
    """The same map as a user may write it: each names the module in another way."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def step(self, z, x):
            return self.cell(z, x)

    def helper(z, x):
        return cell(z, x)

    return {
        "lambda": lambda z, x: cell(z, x),
        "helper": lambda z, x: helper(z, x),
        "method": Model().step,
        "partial": partial(lambda c, z, x: c(z, x), cell),
    }


@pytest.mark.parametrize("way", ["lambda", "helper", "method", "partial"])
def test_a_function_is_settled_as_its_modules_would_be(way):
    cell, x = normalise(Cell(dropout=0.5), "spectral"), 0.1 * torch.randn(4, 6)
    calls, masks = [], []
    cell.inner.parametrizations.weight[0].register_forward_hook(lambda *_: calls.append(1))
    deq = DEQ(ways_to(cell)[way], max_steps=60, tol=1e-4)
    for count in (1, 2):
        z, info = deq(x)
        assert info.steps.max() > 2
        assert len(calls) == count
        masks.append(cell.dropout.mask)
    assert not torch.equal(*masks)
    z.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in cell.parameters())


def test_modules_are_found_by_name_once_and_no_library_is_searched():
    found = list(modules_in(by_global))
    assert SHARED in found
    assert len(found) == len(set(map(id, found))) == len(list(SHARED.modules()))
    assert list(modules_in(torch.tanh)) == []
    assert list(modules_in(lambda z: nn.functional.linear(z, z) + checkpoint(torch.tanh, z))) == []

    def early(z):
        return late(z)

    assert list(modules_in(early)) == []
    late = SHARED
    assert SHARED in list(modules_in(early))
