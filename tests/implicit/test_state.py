"""States of several tensors: packed, solved and differentiated like one."""

import pytest
import torch
from torch import nn

from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ, GRADIENTS, SOLVERS, Reversible, Tolerance, UnconvergedWarning
from koopsim.implicit.state import packing_of

TIGHT = {"max_steps": 200, "tol": 1e-13}


class TwoScales(nn.Module):
    """A fine state (B, 2, 4) and a coarse one (B, 3) that hear of each other."""

    def __init__(self, kind=tuple):
        super().__init__()
        self.kind = kind
        self.A = nn.Parameter(0.3 * torch.randn(8, 8, dtype=torch.float64) / 8**0.5)
        self.B = nn.Parameter(0.3 * torch.randn(3, 3, dtype=torch.float64))
        self.down = nn.Parameter(0.3 * torch.randn(3, 8, dtype=torch.float64) / 8**0.5)
        self.up = nn.Parameter(0.3 * torch.randn(8, 3, dtype=torch.float64))

    def initial(self, x, shift):
        fine, coarse = x.new_zeros(len(x), 2, 4), x.new_zeros(len(x), 3)
        return {"fine": fine, "coarse": coarse} if self.kind is dict else (fine, coarse)

    def forward(self, z, x, shift):
        fine, coarse = z.values() if self.kind is dict else z
        flat = fine.flatten(1)
        fine = torch.tanh(flat @ self.A.T + coarse @ self.up.T + x).view_as(fine)
        coarse = torch.tanh(coarse @ self.B.T + flat @ self.down.T + shift)
        return {"coarse": coarse, "fine": fine} if self.kind is dict else (fine, coarse)  # a dict in any order


def inputs():
    return torch.randn(5, 8, dtype=torch.float64), torch.randn(3, dtype=torch.float64)  # one a sample, one shared


@pytest.mark.parametrize("kind", [tuple, dict])
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_fixed_point_is_that_of_the_state_in_one(solver, kind):
    cell, (x, shift) = TwoScales(kind), inputs()
    z, info = DEQ(cell, solver, **TIGHT)(x, shift)
    fz = cell(z, x, shift)
    parts = [(fz["fine"], z["fine"]), (fz["coarse"], z["coarse"])] if kind is dict else list(zip(fz, z, strict=True))
    assert [tuple(part.shape) for _, part in parts] == [(5, 2, 4), (5, 3)]
    for after, before in parts:
        torch.testing.assert_close(after, before, rtol=0, atol=1e-11)
    assert info.converged.all()
    assert info.forward.parts is not None
    assert info.forward.parts.shape == (5, 2)
    want = torch.stack([(a - b).flatten(1).norm(dim=1) / a.flatten(1).norm(dim=1) for a, b in parts], dim=1)
    torch.testing.assert_close(info.forward.parts, want, rtol=1e-3, atol=1e-15)
    torch.testing.assert_close(info.residuals, info.forward.parts.amax(1))


@pytest.mark.parametrize("solver", SOLVERS)
def test_gradients_of_every_part_are_the_finite_differences(solver):
    cell, (x, shift) = TwoScales(), inputs()
    deq = DEQ(cell, solver, **TIGHT)
    x, shift = x[:2].requires_grad_(), shift.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, s, *p: deq(x, s)[0], (x, shift, cell.A, cell.up), atol=1e-7, fast_mode=True
    )


@pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_structure_has_the_gradient_of_the_same_state_in_one_tensor(gradient):
    cell, (x, shift) = TwoScales(), inputs()
    packing = packing_of(cell.initial(x, shift))

    def joined(z, x, shift):
        return packing.pack(cell(packing.unpack(z), x, shift))

    x.requires_grad_()
    results = []
    for deq, z0 in ((DEQ(cell, gradient=gradient, max_steps=12, tol=1e-9), None),
                    (DEQ(joined, gradient=gradient, max_steps=12, tol=Tolerance(1e-9, sizes=packing.sizes)),
                     torch.zeros(5, 11, dtype=torch.float64))):  # fmt: skip
        z, _ = deq(x, shift, z0=z0)
        z = z if isinstance(z, torch.Tensor) else packing.pack(z)
        results.append((z, *torch.autograd.grad(z.sin().sum(), [x, cell.A, cell.B, cell.up])))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-11)


def test_a_small_part_has_to_converge_too():
    """Beside a part a million times as large, whose residual alone would hide the small one's."""

    def cell(z, x):
        large, small = z
        return 0.01 * large + 1e6, 0.9 * small + x

    x = torch.ones(2, 3, dtype=torch.float64)
    z0 = (torch.zeros(2, 100, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64))
    (_, small), info = DEQ(cell, "picard", max_steps=200, tol=1e-6)(x, z0=z0)
    torch.testing.assert_close(small, torch.full_like(small, 10.0), rtol=1e-4, atol=0)
    assert info.converged.all()


def test_each_sample_of_a_structure_is_its_own_problem():
    cell, (x, shift) = TwoScales(), inputs()
    x[1] = torch.nan
    deq = DEQ(cell, **TIGHT)
    with pytest.warns(UnconvergedWarning, match="1 of them never had a finite value: .* check the inputs"):
        z, info = deq(x, shift)
    assert info.converged.tolist() == [True, False, True, True, True]
    for i in (0, 2):
        alone, _ = deq(x[i : i + 1], shift)
        torch.testing.assert_close([part[i : i + 1] for part in z], list(alone), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (lambda z, x: z[0], r"state of \(4, 3\) to 4; expected the same parts"),
        (lambda z, x: (z[0], z[1][:, :2]), r"\(4, 3\) to \(4, 2\)"),
        (lambda z, x: (z[1], z[0]), r"\(4, 3\) to \(3, 4\)"),
        (lambda z, x: {"a": z[0], "b": z[1]}, r"to \{a: 4, b: 3\}"),
        (lambda z, x: (z[0][:1], z[1]), "part with 1 samples"),
        (lambda z, x: (z[0].to("meta"), z[1]), "on meta"),
        (lambda z, x: (z[0].mul_(0.5), z[1]), "argument z in place"),
    ],
)
def test_a_cell_that_changes_the_structure_gets_one_sentence(cell, message):
    with pytest.raises(KoopsimError, match=message):
        DEQ(cell)(torch.zeros(2, 4), z0=(torch.zeros(2, 4), torch.zeros(2, 3)))


@pytest.mark.parametrize(
    ("z0", "message"),
    [
        ((torch.zeros(2, 4), torch.zeros(3, 4)), "2 samples of .*3 samples .*expected one precision, device"),
        ((torch.zeros(2, 4), torch.zeros(2, 4).double()), "one precision"),
        ((torch.zeros(2, 4), "no tensor"), "nothing that is a tensor"),
        ((), "expected a tensor, or a tuple or dict"),
        ({"a": torch.zeros(2, 4).long()}, "expected floats"),
    ],
)
def test_a_bad_start_gets_one_sentence(z0, message):
    with pytest.raises(KoopsimError, match=message):
        DEQ(lambda z, x: z)(torch.zeros(2, 4), z0=z0)


def test_packing_is_its_own_inverse_and_nested():
    state = {"a": (torch.randn(3, 2), torch.randn(3)), "b": [torch.randn(3, 1, 4)]}
    packing = packing_of(state)
    assert packing.sizes == (2, 1, 4)
    again = packing.unpack(packing.pack(state))
    assert torch.equal(again["a"][1], state["a"][1])
    assert torch.equal(again["b"][0], state["b"][0])


def test_reversible_on_a_structure_is_the_unrolled_gradient():
    cell, (x, shift) = TwoScales(), inputs()
    x.requires_grad_()
    deq = DEQ(cell, gradient=Reversible(0.4), max_steps=9, tol=1e-30)
    deq._warned.add("forward")
    z, _ = deq(x, shift)
    got = torch.autograd.grad(sum(part.sin().sum() for part in z), [x, cell.A, cell.up])
    y, w = cell.initial(x, shift), cell.initial(x, shift)
    for _ in range(9):
        y = tuple(0.6 * a + 0.4 * f for a, f in zip(y, cell(w, x, shift), strict=True))
        w = tuple(0.6 * a + 0.4 * f for a, f in zip(w, cell(y, x, shift), strict=True))
    want = torch.autograd.grad(sum(part.sin().sum() for part in w), [x, cell.A, cell.up])
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)
