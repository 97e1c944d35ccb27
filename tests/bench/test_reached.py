"""How far solves came is measured, not reported: ours know it themselves, and evaluations are counted by hand."""

import pytest
import torch
from torch import nn

from koopsim.bench.reached import reached
from koopsim.bench.training import Stepping
from koopsim.implicit import DEQ, Backward

RATES = (0.5, 0.8)  # of the samples
WEAK = 0.1  # of the second part


class Scaled(nn.Module):
    """z -> rate z + x with a part of size 1 and one of size 1/100, which turns more slowly."""

    def __init__(self):
        super().__init__()
        self.rates = nn.Parameter(torch.tensor(RATES, dtype=torch.float64)[:, None])

    def initial(self, x):
        return torch.zeros_like(x), torch.zeros_like(x)

    def forward(self, z, x):
        return self.rates * z[0] + x, (self.rates + WEAK) * z[1] + x / 100


class Model(nn.Module):
    def __init__(self, deq):
        super().__init__()
        self.deq = deq

    def solve(self, x):
        return self.deq(x)

    def read(self, z):
        return z[0] + z[1]


def stepping(deq):
    x = torch.ones(4, 3, dtype=torch.float64)
    return Stepping(Model(deq), lambda a, y: (a - y).square().sum() / 2, x, torch.zeros_like(x), batch=2)


@pytest.mark.parametrize("solver", ["picard", "anderson", "broyden"])
def test_residuals_and_evaluations_are_those_of_the_solve(solver):
    work = stepping(DEQ(Scaled(), solver, 100, 1e-3, backward=Backward(tol=1e-5)))
    end = reached(work)
    z, info = work.model.solve(work.x[:2])
    work.loss(work.model.read(z), work.y[:2]).backward()
    solves = (info.forward, info.backward)
    assert end.parts == pytest.approx([float(solve.residuals.max()) for solve in solves], rel=1e-4)  # to f(y) or y
    assert all(a <= b for a, b in zip(end.residuals, end.parts, strict=True))
    assert end.evaluations == tuple(
        int(solve.steps.max()) + 1 for solve in solves
    )  # one is recorded, one goes on to the rates


def test_a_residual_is_of_the_worst_sample_all_parts_together():
    """By hand, after 3 evaluations from 0: z = x (1 + r + ... + r^(k-1)) and f(z) - z = x r^k with k = 2."""
    with pytest.warns(UserWarning, match="left 2 of 2"):
        end = reached(stepping(DEQ(Scaled(), "picard", 3, 1e-12)))
    size, error = [], []
    for r, x in ((0.8, 1.0), (0.8 + WEAK, 0.01)):
        size.append(x * (1 + r + r * r))
        error.append(x * r * r)
    assert end.residuals[0] == pytest.approx(
        (error[0] ** 2 + error[1] ** 2) ** 0.5 / (size[0] ** 2 + size[1] ** 2) ** 0.5
    )
    assert end.parts[0] == pytest.approx(max(e / s for e, s in zip(error, size, strict=True)))
    assert end.evaluations == (4, 4)


@pytest.mark.parametrize("easy", [slice(0, 2), slice(2, 4)])
def test_the_worst_of_the_batches_counts(easy):
    work = stepping(DEQ(Scaled(), "anderson", 100, 1e-3))
    hard = reached(work)
    work.x[easy] = 0  # solved by where it begins
    assert reached(work) == hard


def test_torchdeqs_returned_point_is_judged_not_the_one_before():
    """It tests z_k, returns f(f(z_k)) and takes two evaluations more: what it says is of another point."""
    pytest.importorskip("torchdeq")
    from koopsim.bench.peers import TorchDEQ

    end = reached(stepping(TorchDEQ(Scaled(), "picard", (1e-3, 1e-3))))
    tested = [0.8**k / sum(0.8**i for i in range(k + 1)) for k in range(60)]  # of the slow sample's large part
    first = next(k for k, residual in enumerate(tested) if residual < 1e-3)
    assert end.evaluations[0] == pytest.approx(first + 3, abs=1)
    assert end.residuals[0] < 0.75e-3  # 0.8^2 of what it stopped at
    assert end.residuals[1] < 1e-3
