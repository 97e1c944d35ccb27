"""koopsim spectrum --cell: the case, the spectrum and the set of a cell of one's own; every error one line."""

import json

import numpy as np
import pytest

from koopsim.cli import main

OWN = """
import torch
from torch import nn


def turning(z, x):
    turn = torch.tensor([[0.0, -0.3], [0.3, 0.0]], dtype=torch.float64)
    return z @ torch.matrix_exp(turn).T + x


class Halving(nn.Module):
    def forward(self, z, x):
        return 0.5 * z + x


linear = nn.Linear(2, 2)


def of_float32(z, x):
    return torch.tanh(0.5 * linear(z) + x)


class OfFloat32(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = linear

    def forward(self, z, x):
        return torch.tanh(0.5 * self.linear(z) + x)


made = OfFloat32()


class Sized(nn.Module):
    def __init__(self, size):
        super().__init__()


def broken(z, x):
    raise RuntimeError("no such thing")


number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_cells.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "own_cells", raising=False)
    return tmp_path


def spectrum(capsys, *arguments):
    assert main(["spectrum", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_examples(capsys, tmp_path):
    found = spectrum(capsys, "--cell", "koopsim.bridge.cells:Flip", "--inputs", 3, "--out", tmp_path / "out")
    assert found["cases"] == ["invariant-set"] * 3
    assert all(s["kind"] == "cycle" and s["period"] == 2 for s in found["sets"])
    assert min(found["jacobian_radius"]) > 1
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {"inputs.png", "sets.png", "verdict.json"}
    bistable = spectrum(capsys, "--cell", "koopsim.bridge.cells:Bistable", "--inputs", 4, "--steps", 200)
    assert bistable["cases"] == ["fixed-point"] * 4
    assert sum(s["components"] == 2 for s in bistable["sets"]) >= 2


def test_in_words(capsys):
    assert main(["spectrum", "--cell", "koopsim.bridge.cells:Chaos", "--inputs", "2"]) == 0
    out = capsys.readouterr().out
    assert "a moving set" in out
    assert "an equilibrium that repels" in out
    assert "invariant measure" in out


def test_a_function_and_a_class_of_ones_own(own, capsys):
    turning = spectrum(capsys, "--cell", "own_cells:turning", "--inputs", 2, "--steps", 200)
    assert turning["verdicts"] == ["invariant-set"] * 2
    assert all(s["kind"] == "moving" for s in turning["sets"])
    np.save(own / "x.npy", np.arange(6.0).reshape(3, 2))
    halving = spectrum(capsys, "--cell", "own_cells:Halving", "--x", "x.npy", "--steps", 100)
    assert halving["cases"] == ["fixed-point"] * 3
    assert halving["jacobian_radius"] == pytest.approx([0.5] * 3)
    assert all(s["kind"] == "point" for s in halving["sets"])


def test_weights_of_float32_as_torch_makes_them(own, capsys):
    """A function that closes over them, a class and an instance: one cell, one answer."""
    one, two, three = (
        spectrum(capsys, "--cell", f"own_cells:{name}", "--inputs", 2, "--steps", 100)
        for name in ("of_float32", "OfFloat32", "made")
    )
    assert one["cases"] == ["fixed-point"] * 2
    assert 0.01 < max(one["jacobian_radius"]) < 1
    assert two["jacobian_radius"] == three["jacobian_radius"] == pytest.approx(one["jacobian_radius"], rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Name a file or a run"),
        (["a.npy", "--cell", "own_cells:turning"], "one of the two"),
        (["--cell", "own_cells"], "expected module:function"),
        (["--cell", "no_such_module:f"], "cannot be imported"),
        (["--cell", "own_cells:nothing"], "has no 'nothing'"),
        (["--cell", "own_cells:number"], "not something to call"),
        (["--cell", "own_cells:Sized"], "without arguments"),
        (["--cell", "own_cells:broken"], "fails at z_0 = 0 of the inputs' shape"),
        (["--cell", "own_cells:turning", "--inputs", "0"], "at least 1"),
        (["--cell", "own_cells:turning", "--x", "missing.npy"], "missing.npy"),
    ],
)
def test_refusals(own, capsys, arguments, sentence):
    assert main(["spectrum", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1
