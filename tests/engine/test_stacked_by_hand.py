"""A stack by hand: when ranks close, who is judged together, what is untrained; and shares of a batch, row by row."""

from dataclasses import replace

import pytest
import torch
from small_search import CPU, tiny_run
from torch import nn

from koopsim.engine.part import Way
from koopsim.engine.slots import Diverged
from koopsim.engine.stacked import AT_ONCE, Stacked, finite_mean, on_device, untrained
from koopsim.engine.world import World, _device
from koopsim.models import build
from koopsim.tasks import build_task


@pytest.fixture(scope="module")
def stack():
    run = tiny_run("copy/sim-single")
    return Stacked([replace(run, seed=s) for s in range(4)], build_task(run.task, CPU), CPU, 2, Way(capture=False))


def test_ranks_close_when_half_are_gone_or_one(stack, monkeypatch):
    runs = stack.runs
    for made, closes in ((False, [False, True, True, True]), (True, [False, False, True, True])):
        monkeypatch.setattr(stack.part, "capture", made)
        found = []
        for gone in range(4):
            monkeypatch.setattr(stack, "runs", [None] * gone + runs[gone:])
            found.append(stack.sparse)
        assert found == closes
    monkeypatch.setattr(stack.part, "capture", False)
    monkeypatch.setattr(stack, "way", Way(compile=True))
    monkeypatch.setattr(stack, "runs", [None, *runs[1:]])
    assert not stack.sparse


def test_those_who_are_still_to_be_judged_are_judged_together(stack, monkeypatch):
    asked = []

    def judged(rows, split, which):
        asked.append((list(rows), split, list(which)))
        return [{"accuracy": float(row), "loss": 1.0} for row in rows]

    monkeypatch.setattr(stack, "judged", judged)
    monkeypatch.setattr(stack, "_judged", {})
    monkeypatch.setattr(stack, "runs", [stack.runs[0], None, *stack.runs[2:]])
    assert stack.figures(2)["accuracy"] == 2
    assert asked == [([2, 3], "valid", [0, 0])]
    assert stack.figures(3)["accuracy"] == 3
    assert stack.figures(0)["accuracy"] == 0
    assert asked[1:] == [([0, 2, 3], "valid", [0, 0, 0])]
    assert stack.figures(0)["train_loss"] == float(stack.losses(0).mean())
    assert len(asked) == 3
    monkeypatch.setattr("koopsim.engine.stacked.AT_ONCE", 1)
    stack._judge([0, 2])
    assert asked[-1][0] == [0]
    assert AT_ONCE > 1
    assert (stack.rows(2), stack.losses(1).shape[0]) == (range(2, 3), 1)


def test_a_member_before_its_first_step_is_of_its_seed():
    run = tiny_run("copy/sim-single")
    torch.manual_seed(5)
    wanted = build(run.model).double()
    found = untrained(run, 5, CPU)
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), wanted.parameters(), strict=True))
    torch.manual_seed(5)
    own = nn.Linear(2, 3)
    found = untrained(replace(run, precision="float32"), 5, CPU, lambda run: nn.Linear(2, 3))
    assert torch.equal(found.weight, own.weight)
    assert on_device(replace(run, precision="bf16"), CPU).precision == "float32"


def test_the_first_loss_that_is_no_number_is_named():
    assert finite_mean(torch.tensor([[1.0, 2.0], [3.0, 6.0]])) == 3.0
    losses = torch.ones(2, 4)
    losses[0, 2], losses[1, 1] = torch.inf, torch.nan
    with pytest.raises(Diverged, match=r"^the loss became inf at step 2 of the epoch$"):
        finite_mean(losses)


def test_rows_of_each_rank():
    def rows(count, size):
        return [(World(r, size).rows(count), World(r, size).weight(count)) for r in range(size)]

    assert rows(10, 4) == [(slice(0, 2), 0.2), (slice(2, 5), 0.3), (slice(5, 7), 0.2), (slice(7, 10), 0.3)]
    assert rows(1, 3) == [(slice(0, 1), 0.0), (slice(0, 1), 0.0), (slice(0, 1), 1.0)]
    assert rows(2, 3) == [(slice(0, 1), 0.0), (slice(0, 1), 0.5), (slice(1, 2), 0.5)]
    assert rows(3, 1) == [(slice(0, 3), 1.0)]


def test_what_ranks_say_goes_by_the_first(monkeypatch):
    """Three processes that all do what this one does."""
    asked = []
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda t, op=None: t.mul_(1 if op else 3))

    def broadcast(box, src, device):
        asked.append((src, device.type))
        box[0] = box[0] + " to all"

    def gather(found, value):
        found[:] = [value] * len(found)

    monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    assert World(0, 3).agreed(5, False) == (15, False)
    assert World(1, 3).agreed(5, True) == (0, True)
    assert World(1, 3).told("word") == "word to all"
    assert asked == [(0, "cpu")]
    assert World(2, 3).gathered("x") == ["x"] * 3
    assert _device().type == "cpu"
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "nccl")
    assert _device().type == "cuda"
    t, most = torch.ones(2), torch.tensor([4])
    World(0, 3).add_up(t)
    World(0, 3).largest(most)
    assert (t.tolist(), most.tolist()) == ([3, 3], [4])
    World(0, 1).largest(most)
