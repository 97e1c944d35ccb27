"""Rows beside the paper's code, with a stand-in for it: what is stepped, and what is said where it is not there."""

import pickle

import pytest

from koopsim import bench
from koopsim.bench import paper
from koopsim.bench.setting import QUICK, Sizes
from koopsim.engine.subnormal import are_zero

CODE = """
import torch
from torch import nn


class Net(nn.Module):
    calls = []

    def __init__(self, kind, sizes, outputs):
        super().__init__()
        self.kind, self.outputs = kind, outputs
        self.weight = nn.Parameter(torch.ones(outputs))
        Net.calls.append((kind, sizes))

    def forward(self, x):
        rows = (x.shape[0], x.shape[2]) if self.kind == "tcn" else x.shape[:1] if self.kind == "cnn" else x.shape[:-1]
        return self.weight * torch.ones(*rows, self.outputs)


def SingleTierTempConvNet(inputs, outputs, channels, kernel, dropout, tier, hidden):
    return Net("tcn", (inputs, outputs, channels, kernel, dropout, tier, hidden), outputs)


def SingleTierConvNet(height, outputs, depth, channels, tier, hidden):
    return Net("cnn", (height, outputs, depth, channels, tier, hidden), outputs)


def SingleTierFourierNet(inputs, outputs, tier, hidden, bandwidth):
    return Net("rff", (inputs, outputs, tier, hidden, bandwidth), outputs)
"""
TINY = Sizes(turns=3, horizon=30, image_batch=4, picture_size=16)


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "sim").mkdir()
    (tmp_path / "sim" / "net.py").write_text(CODE)
    monkeypatch.setenv("KOOPSIM_PAPER_CODE", str(tmp_path))
    return tmp_path


@pytest.fixture
def travelled(monkeypatch):
    """What is to run in processes of their own runs here, as it would arrive there; inside of what."""
    found = []

    def here(make, inside):
        make, inside = pickle.loads(pickle.dumps((make, inside)))
        found.append(inside)
        return make

    monkeypatch.setattr(paper, "apart", here)
    return found


def test_three_tasks_train_and_infer_beside_it(code, travelled, monkeypatch):
    found = bench.run(["paper"], "cpu", sizes=TINY)
    assert not found.skipped
    works = [c.work for c in found.comparisons]
    assert len(works) == 6
    assert [w.split(",")[0] for w in works] == ["train step", "inference"] * 3
    assert all(c.other.name == "the paper's code" and c.ratio > 0 for c in found.comparisons)
    assert all(word in " ".join(works) for word in ("T=30, batch 20", "CIFAR-10, batch 4", "16 x 16"))
    trains = []
    for inside in travelled:
        with inside():
            trains.append(are_zero())  # as every training of ours has it
    assert trains == [True, False, False, False] * 3  # ours and theirs: a step, an answer


def test_their_networks_have_the_presets_sizes(code):
    from koopsim.bench.paper import paper_networks, their_model

    assert their_model("copy/sim-single").outputs == 10
    calls = {}
    for name in ("copy/sim-single", "cifar10/sim-single", "image/sim-rff"):
        calls[name] = type(their_model(name)).calls[-1]
    assert calls["copy/sim-single"] == ("tcn", (1, 10, [10] * 8, 8, 0.0, 32, 32))
    assert calls["cifar10/sim-single"] == ("cnn", (32, 10, 3, 38, 50, 32))
    assert calls["image/sim-rff"][1][:4] == (2, 3, 512, 256)
    assert paper_networks().__name__ == "paper_networks"


def test_without_it_the_row_is_left_out_and_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.delenv("KOOPSIM_PAPER_CODE", raising=False)
    assert "KOOPSIM_PAPER_CODE" in bench.run(["paper"], "cpu", sizes=QUICK).skipped["paper"]
    monkeypatch.setenv("KOOPSIM_PAPER_CODE", str(tmp_path))
    assert "no sim/net.py" in bench.run(["paper"], "cpu", sizes=QUICK).skipped["paper"]
