"""deq.health(x): what is known in closed form, for tensors, structures and models."""

import numpy as np
import pytest
import torch
from torch import nn

from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ, MonDEQ, MultiscaleDEQ, TransformerDEQ


class Linear(nn.Module):
    """z -> rate R z + x, R a rotation: the fixed point and the spectrum are known."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, z, x):
        return self.rate * torch.stack([-z[:, 1], z[:, 0]], dim=1) + x


@pytest.mark.parametrize(
    ("rate", "case", "healthy"), [(0.5, "fixed-point", True), (1.0, "invariant-set", False), (1.3, "divergent", False)]
)
def test_cases_and_radii_are_those_of_the_matrix(rate, case, healthy):
    found = DEQ(Linear(rate), "anderson", 40, 1e-6)(torch.randn(3, 2))[0]
    assert found.isfinite().all()
    seen = DEQ(Linear(rate), "anderson", 40, 1e-6).health(torch.randn(3, 2))
    np.testing.assert_allclose(seen.radius, rate, rtol=1e-4)
    assert set(seen.cases) == {case}
    assert seen.converged.all()  # Anderson reaches the fixed point of each
    assert seen.healthy is healthy
    table = str(seen)
    assert f"{rate:.3f}" in table
    assert f"3 of 3 solves converge, largest spectral radius {rate:.3f}" in table
    assert {"fixed-point": "(ii)", "invariant-set": "(iii)", "divergent": "(iv)"}[case] in table


def test_a_structure_with_shared_inputs_is_laid_side_by_side():
    W = 0.5 * torch.eye(3)

    def cell(z, x, W):
        return {"a": 0.9 * z["a"] + x, "b": z["b"] @ W.T + 1}

    z0 = {"a": torch.zeros(4, 2), "b": torch.zeros(4, 3)}

    class Cell(nn.Module):
        def initial(self, x, W):
            return {name: part[: len(x)].to(x.dtype) for name, part in z0.items()}

        def forward(self, z, x, W):
            return cell(z, x, W.to(x.dtype))

    seen = DEQ(Cell(), max_steps=60, tol=1e-6).health(torch.randn(4, 2), W)
    np.testing.assert_allclose(seen.radius, 0.9, rtol=1e-5)
    assert set(seen.cases) == {"fixed-point"}
    assert seen.healthy


class Scaled(nn.Module):
    """z -> gain W z + x with weights in float32."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)
        self.layer.weight.data = torch.tensor([[0.0, -1.0], [1.0, 0.0]])

    def forward(self, z, x, gain, turn):
        return gain * self.layer(z) @ turn + x


@pytest.mark.parametrize("gain", [0.5, torch.tensor(0.5), torch.full((3, 1), 0.5)], ids=["number", "shared", "each"])
def test_one_tensor_with_several_inputs_is_copied_in_float64(gain):
    deq = DEQ(Scaled(), max_steps=60, tol=1e-6)
    seen = deq.health(torch.randn(3, 2), gain, torch.eye(2))
    np.testing.assert_allclose(seen.radius, 0.5, rtol=1e-5)
    assert set(seen.cases) == {"fixed-point"}
    assert deq.cell.layer.weight.dtype == torch.float32


def turning(rate):
    """A layer in float32 with the eigenvalues +-i rate."""
    linear = nn.Linear(2, 2)
    linear.weight.data = rate * torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    return linear


@pytest.mark.parametrize(("rate", "case", "healthy"), [(0.5, "fixed-point", True), (1.3, "divergent", False)])
def test_a_function_with_weights_in_float32_is_looked_at_in_float64(rate, case, healthy):
    linear = turning(rate)
    before = linear.weight.detach().clone()
    deq = DEQ(lambda z, x: linear(z) + x, "anderson", 40, 1e-6)
    seen = deq.health(torch.randn(3, 2))
    np.testing.assert_allclose(seen.radius, linear.weight.detach().double()[1, 0], rtol=1e-9)  # float32 would show
    assert set(seen.cases) == {case}
    assert seen.healthy is healthy
    assert str(seen).endswith("evaluated in float64, with copies of the float32 tensors that the cell uses")
    assert linear.weight.dtype == torch.float32
    assert linear.weight.equal(before)
    assert linear.weight.grad is None


def test_the_cell_of_torchdeqs_page_has_a_health():
    torch.manual_seed(0)
    linear = turning(0.9)
    seen = DEQ(lambda z, x: torch.tanh(linear(z) + x), max_steps=60).health(0.1 * torch.randn(2, 2))
    assert seen.healthy
    assert (seen.radius > 0.5).all()
    linear.weight.data *= 2  # tanh holds it in a bounded set: it turns about the repelling point
    seen = DEQ(lambda z, x: torch.tanh(linear(z) + x), max_steps=60).health(0.01 * torch.randn(2, 2))
    assert not seen.healthy
    assert (seen.radius > 1).all()
    assert set(seen.cases) == {"invariant-set"}


def written(z, x):
    """0.5 z + x by way of tensors that are float32 unless told otherwise, and are written to."""
    out = torch.empty(z.shape)
    out[:, 0] = 0.5 * z[:, 0]
    out[:, 1] = torch.zeros(len(z), dtype=torch.float32) + z[:, 1].float() / 2
    return torch.stack([out[:, 0], out[:, 1]], dim=1) + x


class Prepared:
    """0.5 W z + x, no module, what does not depend on z computed beforehand."""

    def __init__(self):
        self.layer = nn.Linear(2, 2, bias=False)
        self.layer.weight.data = torch.eye(2)

    def initial(self, x):
        return torch.zeros(len(x), 2)

    def prepare(self, x):
        weight = torch.zeros(2, 2)
        weight[:] = self.layer.weight / 2
        return lambda z: z @ weight + x

    def __call__(self, z, x):
        return self.prepare(x)(z)


def filled(z, x):
    """The same into a tensor that is float32, and is the answer."""
    out = torch.zeros(z.shape)
    out[:] = 0.5 * z + x
    return out


@pytest.mark.parametrize("cell", [written, filled, Prepared()], ids=["written", "filled", "prepared"])
def test_what_is_written_to_is_read_again(cell):
    seen = DEQ(cell, max_steps=60).health(torch.randn(3, 2))
    np.testing.assert_allclose(seen.radius, 0.5, rtol=1e-12)
    assert seen.healthy


W32 = 0.5 * torch.eye(2)


@pytest.mark.parametrize(
    "cell",
    [
        lambda z, x: torch.linalg.multi_dot([z, W32, torch.eye(2)]) + x,
        lambda z, x: torch.addmm(input=x, mat1=z, mat2=W32),
    ],
    ids=["in a list", "by name"],
)
def test_float32_is_found_however_it_is_given(cell):
    seen = DEQ(cell, max_steps=60).health(torch.randn(3, 2))
    np.testing.assert_allclose(seen.radius, 0.5, rtol=1e-12)
    assert seen.precision.startswith("float64, with copies")


class Wider:
    """No module, a state that is wider than its input: where it starts is for the cell to say."""

    def initial(self, x):
        return torch.zeros(len(x), 3)

    def __call__(self, z, x):
        return z @ (0.5 * torch.eye(3)) + x.sum(1, keepdim=True)


def test_a_function_that_says_where_it_starts_is_asked():
    seen = DEQ(Wider(), max_steps=60).health(torch.randn(4, 2))
    np.testing.assert_allclose(seen.radius, 0.5, rtol=1e-12)
    assert seen.local[0].eigenvalues.shape == (3,)


class Reading(nn.Module):
    """z / 2 and the sum of what its tokens mean."""

    def __init__(self):
        super().__init__()
        self.meaning = nn.Embedding(5, 2)

    def initial(self, tokens):
        return self.meaning.weight.new_zeros(len(tokens), 2)

    def forward(self, z, tokens):
        return z / 2 + self.meaning(tokens).sum(1)


def test_whole_numbers_stay_so():
    seen = DEQ(Reading(), max_steps=60).health(torch.randint(0, 5, (3, 4)))
    np.testing.assert_allclose(seen.radius, 0.5, rtol=1e-12)


def test_a_function_of_float64_is_watched_as_it_is():
    W = 0.5 * torch.eye(2)
    seen = DEQ(lambda z, x, gain: gain * z @ W + x).health(torch.randn(3, 2), 1.0)
    np.testing.assert_allclose(seen.radius, 0.5, rtol=1e-12)
    W = W.double()
    seen = DEQ(lambda z, x: z @ W + x).health(torch.randn(3, 2))
    np.testing.assert_allclose(seen.radius, 0.5, rtol=1e-12)
    assert str(seen).endswith("evaluated in float64")


class Product(torch.autograd.Function):
    """z W, whose way back nobody can watch."""

    @staticmethod
    def forward(ctx, z, W):
        ctx.save_for_backward(W)
        return z @ W

    @staticmethod
    def backward(ctx, *grads):
        return grads[0] @ ctx.saved_tensors[0].T, None


def test_what_cannot_be_evaluated_in_float64_is_told():
    W = 0.5 * torch.eye(2)
    with pytest.raises(KoopsimError, match=r"cannot be evaluated in float64.*dtype.*nn\.Module"):
        DEQ(lambda z, x: Product.apply(z, W) + x).health(torch.randn(3, 2))
    with pytest.raises(KoopsimError, match=r"cannot be evaluated in float64.*its answer is torch\.float16"):
        DEQ(lambda z, x: (0.5 * z + x).half()).health(torch.randn(3, 2))


@pytest.mark.parametrize(
    ("build", "draw"),
    [
        (lambda: TransformerDEQ(5, 2, 4, 8, 8), lambda: torch.randint(0, 5, (2, 6))),
        (lambda: MonDEQ((1, 8, 8), (4,)), lambda: torch.randn(2, 1, 8, 8)),
        (lambda: MultiscaleDEQ((1, 8, 8), (4, 4)), lambda: torch.randn(2, 1, 8, 8)),
    ],
    ids=["transformer", "mondeq", "multiscale"],
)
def test_every_model_with_a_solver_has_a_health(build, draw, tmp_path):
    torch.manual_seed(0)  # one draw of weights in six has no equilibrium that is reached, and no radius
    seen = build().eval().health(draw())
    assert len(seen.cases) == 2
    assert np.isfinite(seen.radius).all()
    figure = seen.plot()
    figure.savefig(tmp_path / "health.png")
    assert (tmp_path / "health.png").stat().st_size > 5000
