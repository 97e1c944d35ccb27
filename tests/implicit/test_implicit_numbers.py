"""Solves and gradients of fixed problems, with how many steps each took: see kept_numbers.py."""

import pytest
import torch
from kept_numbers import same

from koopsim.implicit import DEQ
from koopsim.implicit.deq import GRADIENTS
from koopsim.implicit.iteration import Tolerance
from koopsim.implicit.penalties import jacobian_penalty, spectral_radius
from koopsim.implicit.solvers import SOLVERS

pytestmark = pytest.mark.filterwarnings("ignore::koopsim.implicit.info.UnconvergedWarning")


def problem(scale, samples=5, width=12):
    g = torch.Generator().manual_seed(3)
    W = torch.randn(width, width, generator=g, dtype=torch.float64)
    W = scale * W / torch.linalg.matrix_norm(W, 2)
    x = torch.randn(samples, width, generator=g, dtype=torch.float64) * torch.arange(1, samples + 1)[:, None]
    return W, x


@pytest.mark.parametrize("scale", [0.6, 0.97, 1.6])
@pytest.mark.parametrize("solver", SOLVERS)
def test_numbers_of_solvers(solver, scale):
    W, x = problem(scale)
    for tol in (1e-2, Tolerance(1e-5, "absolute"), Tolerance(1e-6, "relative", (4, 8))):
        z, info = SOLVERS[solver](lambda z: torch.tanh(z @ W.T + x), torch.zeros_like(x), max_steps=25, tol=tol)
        residual = [float(f"{r:.2e}") if r > 1e-9 else 0.0 for r in info.residuals.tolist()]
        same(f"solver/{solver}, {scale}, {tol}", [z, info.steps, residual], rel=2e-2 if scale > 1 else 1e-3, near=1e-4)


@pytest.mark.parametrize("solver", SOLVERS)
def test_numbers_of_solvers_told_otherwise(solver):
    W, x = problem(0.9)
    options = {
        "picard": {"damping": 0.7}, "relaxed": {"damping": 0.8}, "newton": {"krylov": 4}, "broyden": {"memory": 3},
        "anderson": {"memory": 3, "mixing": 0.8, "ridge": 1e-4, "delay": 1},
    }[solver]  # fmt: skip
    z, info = SOLVERS[solver](lambda z: torch.tanh(z @ W.T + x), 0.1 * x, max_steps=40, tol=1e-4, **options)
    same(f"solver told/{solver}", [z, info.steps], rel=1e-3, near=1e-4)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_numbers_of_gradients(gradient):
    W, x = problem(0.8)
    W = W.clone().requires_grad_()

    def cell(z, x):
        return torch.tanh(z @ W.T + x)

    deq = DEQ(cell, max_steps=20, tol=1e-4, gradient=gradient)
    z, info = deq(x)
    (g,) = torch.autograd.grad(z.square().sum(), W)
    same(f"gradient/{gradient}", [z, info.steps if hasattr(info, "steps") else 0, g], rel=1e-3, near=1e-6)


def test_numbers_of_penalties():
    W, x = problem(0.8)
    torch.manual_seed(0)
    z = torch.tanh(x)
    cell = lambda z: torch.tanh(z @ W.T + x)  # noqa: E731
    same("penalties", [jacobian_penalty(cell, z, 3), spectral_radius(cell, z, 30)], rel=1e-4)
