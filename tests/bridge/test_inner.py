"""The cell inside a whole model, what an observation prints, and where a cell begins that does not say."""

import numpy as np
import pytest
import torch
from torch import nn

from koopsim.bridge import InnerCell, linearise, observe
from koopsim.errors import KoopsimError


class Block(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate, self.dropout = rate, nn.Dropout(0.5)

    def forward(self, z, u, *, gain=1.0):
        return self.rate * z + gain * self.dropout(u)


class Model(nn.Module):
    """Encoder, a block that is iterated, head; z_0 is not zero, and the encoder is wider than the input."""

    def __init__(self, rate=0.5):
        super().__init__()
        self.encoder, self.block, self.head, self.spare = nn.Linear(3, 4), Block(rate), nn.Linear(4, 2), nn.Linear(1, 1)

    def forward(self, x):
        u = self.encoder(x)
        z = 1 + torch.zeros_like(u)
        for _ in range(5):
            z = self.block(z, u, gain=2.0)
        return self.head(z)


def inputs(n=3):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("rate", "case"), [(0.5, "fixed-point"), (-1.0, "invariant-set"), (1.2, "divergent")])
def test_a_whole_model_is_taken_as_it_is(rate, case):
    model, x = Model(rate).train(), inputs()
    seen = observe(model, x, steps=80, cell="block")
    assert seen.cases == (case,) * 3
    assert model.training  # a copy was looked at
    assert model.encoder.weight.dtype == torch.float32
    np.testing.assert_array_equal(seen.states[:, 0, 0], 1.0)  # where the model begins
    if rate == 0.5:
        ends = 2 * model.encoder(x).detach().double() / (1 - rate)
        np.testing.assert_allclose(seen.states[:, 0, -1], ends, rtol=1e-5)
        radii = [local.radius for local in linearise(InnerCell(model, "block"), x)]
        np.testing.assert_allclose(radii, 0.5, rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "cell", "words"),
    [
        (Model(), "blok", r"has no part 'blok'\. Did you mean 'block'\?"),
        (Model(), "spare", "never calls its 'spare'"),
        (Model(), "head", r"'head' takes a state \(6, 4\) to \(6, 2\)"),
        (Model(), None, r"Model is no cell .* one of encoder, block, head, spare"),
        (lambda z, x: z, "block", "names a part of a torch module; got a function"),
    ],
)
def test_refusals(model, cell, words):
    with pytest.raises(KoopsimError, match=words):
        observe(model, inputs(), steps=10, cell=cell)


def test_an_observation_prints_a_short_table():
    seen = observe(lambda z, x: 0.5 * z + x, torch.randn(40, 2), steps=40)
    lines = str(seen).splitlines()
    assert lines[0] == "40 inputs, 2 starts each, 40 steps of 2 numbers: 40 fixed-point"
    assert len(lines) == 15
    assert lines[2].split()[:4] == ["0", "fixed-point", "0.5", "0"]
    assert "at rest after" in lines[2]
    assert lines[-1] == "  ... and 28 more"
    assert repr(seen) == "<Observation of 40 inputs: 40 fixed-point>"
    assert "not at rest after" in str(observe(lambda z, x: x - z, torch.ones(1, 2), steps=40))


def test_a_cell_without_an_initial_state_gets_one():
    W = torch.full((2, 5), 0.1, dtype=torch.float64)
    wider = observe(lambda z, x: 0.5 * (z if z.shape[-1] == 5 else z @ W) + x @ W, torch.ones(2, 2), steps=40)
    assert wider.states.shape[-1] == 5
    assert wider.case == "fixed-point"
    with pytest.raises(KoopsimError, match=r"fails at z_0 = 0 of the inputs' shape \(2, 2\).*initial\(x\)"):
        observe(lambda z, x: z @ torch.ones(3, 3, dtype=torch.float64) + x, torch.ones(1, 2), steps=10)
    with pytest.raises(KoopsimError, match="to another; give it an initial"):
        observe(lambda z, x: torch.cat([z, x], dim=-1), torch.ones(1, 2), steps=10)
