import math

import pytest
import torch
from torch import nn

from koopsim.config import CopyMemoryConfig
from koopsim.errors import KoopsimError
from koopsim.tasks import CopyMemory

SMALL = CopyMemoryConfig(horizon=7, train=20, valid=5, test=6)


class Oracle(nn.Module):
    """Knows the answer: a logit of `scale` on the right class."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x):
        y = torch.zeros_like(x)
        y[:, -10:] = x[:, :10]
        return self.scale * nn.functional.one_hot(y.long(), 10)


class Guesser(nn.Module):
    """Knows where the digits belong and nothing else."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        logits = torch.full((*x.shape, 10), -1e4, dtype=self.bias.dtype)
        logits[:, :-10, 0] = 0.0
        logits[:, -10:, 1:9] = 0.0
        return logits + self.bias


def test_layout():
    task = CopyMemory(SMALL)
    x, y = task.split("train")
    assert x.shape == y.shape == (20, 27)
    assert bool(((x[:, :10] >= 1) & (x[:, :10] <= 8)).all())
    assert bool((x[:, 10:16] == 0).all())  # T - 1 blanks
    assert bool((x[:, 16:] == 9).all())  # eleven markers
    assert bool((y[:, :17] == 0).all())  # T + 10 blanks
    assert torch.equal(y[:, -10:], x[:, :10].long())


def test_splits_are_disjoint_and_seeded():
    task, again, other = CopyMemory(SMALL), CopyMemory(SMALL), CopyMemory(CopyMemoryConfig(7, 20, 5, 6, seed=1))
    assert torch.equal(task.x, again.x)
    assert not torch.equal(task.x, other.x)
    sizes = [len(task.split(s)[0]) for s in ("train", "valid", "train+valid", "test")]
    assert sizes == [20, 5, 25, 6]
    assert torch.equal(torch.cat([task.split("train+valid")[0], task.split("test")[0]]), task.x)
    with pytest.raises(KoopsimError, match="no split 'tets'"):
        task.split("tets")


def test_a_loss_of_1e_12_is_seen():
    figures = CopyMemory(SMALL).evaluate(Oracle(30.0), "test")
    assert figures["loss"] == pytest.approx(math.log1p(9 * math.exp(-30.0)), rel=1e-6)
    assert figures["digits_right"] == figures["sequences_right"] == 1.0


def test_the_memoryless_loss_is_what_a_guesser_gets():
    task = CopyMemory(SMALL)
    assert task.evaluate(Guesser(), "test")["loss"] == pytest.approx(task.memoryless_loss, rel=1e-9)
    assert CopyMemory(CopyMemoryConfig(train=1, valid=1, test=1)).memoryless_loss == pytest.approx(0.0400, abs=5e-5)


def test_evaluation_leaves_the_model_alone():
    model = Oracle(3.0)
    CopyMemory(SMALL).evaluate(model, "valid")
    assert model.scale.dtype == torch.float32
    assert model.training


def test_memory_is_asked_for_before_it_is_taken(monkeypatch):
    """Ten bytes of every symbol: eight of the input, a byte of the target and its copy."""
    asked = []
    monkeypatch.setattr("koopsim.tasks.copy_memory.require_memory", lambda needed, what: asked.append((needed, what)))
    CopyMemory(CopyMemoryConfig(horizon=7, train=30, valid=5, test=6))
    assert asked == [(10 * 41 * 27, "41 sequences ask for")]
