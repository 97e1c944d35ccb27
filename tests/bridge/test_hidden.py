"""Cells as people bring them: float32 weights in a function, in a module, inside a DEQ; inputs of either precision."""

import warnings

import pytest
import torch
from torch import nn

from koopsim.bridge import closed_form, distill, linearise, observe, settling
from koopsim.bridge.cells import example_inputs
from koopsim.bridge.student import Lessons
from koopsim.implicit import DEQ


def cells():
    torch.manual_seed(0)
    linear = nn.Linear(2, 2)

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = linear

        def forward(self, z, x):
            return torch.tanh(0.5 * self.linear(z) + x)

    function = Cell().forward  # a bound method, and so no module
    return {"function": function, "module": Cell(), "DEQ of a function": DEQ(function), "DEQ": DEQ(Cell())}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", list(cells()))
def test_every_view_takes_it(name, dtype):
    cell, x = cells()[name], example_inputs(12).to(dtype)
    expected = [l.radius for l in linearise(cells()["module"], x.double())]
    assert [l.radius for l in linearise(cell, x)] == pytest.approx(expected, rel=1e-9)
    assert observe(cell, x, 60).case == "fixed-point"
    seen = settling(cell, x)
    assert set(seen.cases) == {"fixed-point"}
    with torch.no_grad():
        end = seen.ends
        assert torch.allclose(cells()["module"].double()(end, x.double()), end, atol=1e-5)
    assert torch.allclose(closed_form(cell, x)(x).double(), end, atol=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        sim, report = distill(cell, x, lessons=Lessons(epochs=1))
    assert report.target == "equilibrium"
    assert sim.state(x).dtype == dtype
