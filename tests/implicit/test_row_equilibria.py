"""Equilibria of rows: they are what they say, whatever the weights, and their gradients are those of the iteration."""

import pytest
import torch

from koopsim.config import SolverConfig
from koopsim.errors import KoopsimError
from koopsim.implicit.rows import KAPPA, RowCell, RowDEQConfig, RowMonDEQConfig
from koopsim.kinds import model_kind
from koopsim.models import build

TIGHT = SolverConfig("anderson", 200, 1e-10)


def iterated(model, x: torch.Tensor, steps: int = 400) -> torch.Tensor:
    cell: RowCell = model.deq.cell
    z = cell.initial(x)
    for _ in range(steps):
        z = cell(z, x)
    return z


def test_no_weights_make_it_expand():
    cell = RowCell(3, 20)
    for size in (0.1, 1.0, 1e4):
        torch.nn.init.normal_(cell.W, std=size)
        assert float(cell.weight().detach().abs().sum(1).max()) <= KAPPA + 1e-6
    with torch.no_grad():
        cell.W.mul_(0).add_(1e-3)
    assert torch.equal(cell.weight(), cell.W)  # short rows stay as they are


def test_fixed_point_and_gradient_are_those_of_the_iteration():
    torch.manual_seed(0)
    model = build(RowDEQConfig(3, 10, 2, TIGHT)).double()
    with torch.no_grad():
        model.deq.cell.W.mul_(4)
    x = torch.randn(5, 3, dtype=torch.float64)
    z, _ = model.solve(x)
    torch.testing.assert_close(z, iterated(model, x), rtol=1e-8, atol=1e-8)
    weights = list(model.parameters())
    implicit = torch.autograd.grad(model(x).square().sum(), weights)
    unrolled = torch.autograd.grad(model.h(iterated(model, x)).square().sum(), weights)
    torch.testing.assert_close(implicit, unrolled, rtol=1e-6, atol=1e-7)


def test_the_monotone_one_solves_its_equation():
    torch.manual_seed(0)
    model = build(RowMonDEQConfig(4, 12, 3, tolerance=1e-8)).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    z, _ = model.solve(x)
    torch.testing.assert_close(model.prepare(x)(z), z, rtol=1e-5, atol=1e-6)
    assert model(x).shape == (6, 3)


def test_kinds():
    for config in (RowDEQConfig(), RowMonDEQConfig()):
        kind = model_kind(config)
        fitted = kind.for_rows(config, 7, 5)
        assert (fitted.inputs, fitted.outputs) == (7, 5)
        assert build(fitted)(torch.zeros(2, 7)).shape == (2, 5)
        with pytest.raises(KoopsimError, match="does not export"):
            kind.example(config, 1, 1, torch.Generator())
    with pytest.raises(KoopsimError, match="width is 0"):
        RowDEQConfig(width=0)
    with pytest.raises(KoopsimError, match="monotonicity is -1"):
        RowMonDEQConfig(monotonicity=-1.0)
