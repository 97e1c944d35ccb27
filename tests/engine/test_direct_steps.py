"""Training a SIM of tags without a tape against training it with one."""

import itertools
from dataclasses import replace

import pytest
import torch

from koopsim.config import CopyMemoryConfig, TCNConfig
from koopsim.engine import gradients
from koopsim.engine.gradients import Alone, choose
from koopsim.engine.members import Members, Rule
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.models import build
from koopsim.presets import run_of
from koopsim.tasks import build_task
from koopsim.tasks.tagging import OfTags

TRAINING = """
import os
from dataclasses import replace
import torch
from koopsim.config import CopyMemoryConfig, TCNConfig
from koopsim.engine import gradients
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.presets import run_of
from koopsim.tasks import build_task

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
gradients.direct = lambda model: True  # in Triton's interpreter too
run = run_of("copy/sim-single")
run = replace(run, model=replace(run.model, lift=TCNConfig(levels=2, channels=4, kernel=3), lift_dim=8, hidden=8))
recipe = replace(run.recipe, batch_size=10, epochs=2, label_smoothing=0.1)
run = replace(run, task=CopyMemoryConfig(horizon=5, train=23, valid=2, test=3), recipe=recipe)
states = []
for direct in ("1", "0"):
    os.environ["KOOPSIM_DIRECT"] = direct
    slots = Stacked([run], build_task(run.task, device), device, 2, Way(capture=False))
    assert type(slots.part.gradients) is gradients.Direct
    taken = []
    known = slots.part.gradients.direct
    type(known).__call__, plain = (lambda self, *a: taken.append(1) or plain(self, *a)), type(known).__call__
    for epoch in range(2):
        slots.begin_epoch()
        slots.advance(0, slots.epoch_steps)
        slots.finish_epoch()
    type(known).__call__ = plain
    assert len(taken) == (6 if direct == "1" else 0)
    states.append(slots.part.members)
fast, slow = states
torch.testing.assert_close(fast.losses, slow.losses, rtol=1e-5, atol=1e-6)
torch.testing.assert_close(fast.flat, slow.flat, rtol=1e-4, atol=1e-5)
"""


def test_training_without_a_tape_is_training(in_triton):
    in_triton(TRAINING)


class TwiceAsMuch:
    """In the place of the kernels: a loss of 3 and a gradient of the scale it is given."""

    def __init__(self, model, flat, begins):
        self.flat, self.begins = flat, begins

    def takes(self, x, y):
        return True

    def __call__(self, x, y, smoothing, scale):
        return torch.full((1,), 3.0), torch.full_like(self.flat, scale)


@pytest.fixture
def tags(monkeypatch):
    monkeypatch.setattr(gradients, "direct", lambda model: True)
    monkeypatch.setattr(gradients, "DirectSIM", TwiceAsMuch)
    return OfTags(lambda outputs, y, smoothing: outputs.sum(), 0.25)


def members(rule=None):
    model = build(replace(run_of("copy/sim-single").model, lift=TCNConfig(levels=1, channels=4, kernel=3)))
    return Members([model], torch.ones(1, 3, 4), 3, rule or Rule())


def test_who_is_chosen_for_it(tags):
    kind = lambda *a, **k: type(choose(members(), *a, **k))  # noqa: E731
    assert kind(tags, (False, False), None, False, True) is gradients.Direct
    assert kind(tags, (False, False), torch.bfloat16, False, True) is Alone
    assert kind(tags, (True, False), None, False, True) is Alone
    assert kind(lambda model, x, y: None, (False, False), None, False, True) is Alone
    task = build_task(CopyMemoryConfig(horizon=5, train=4, valid=2, test=2), torch.device("cpu"))
    assert task.member_loss(replace(run_of("copy/sim-single"))) == OfTags(task.loss, 0.0)
    task.__class__ = type("Own", (type(task),), {"loss": lambda self, outputs, y, smoothing=0.0: outputs.mean()})
    own = task.member_loss(run_of("copy/sim-single"))
    assert not isinstance(own, OfTags), "another loss than the kernels know"
    assert own(lambda x: x, torch.tensor([2.0, 4.0]), torch.zeros(2)) == 3
    task.__class__ = type(task).__base__
    task.masked = True  # pyright: ignore[reportAttributeAccessIssue]
    assert not isinstance(task.member_loss(run_of("copy/sim-single")), OfTags)


def test_the_loss_is_scaled_and_weighted(tags):
    own = members(Rule(scale=8.0))
    way = choose(own, tags, (False, False), None, False, True)
    begins = way.direct.begins  # pyright: ignore[reportAttributeAccessIssue]
    sizes = [p.numel() for p in own.template.parameters()]
    assert list(begins.values()) == [0, *itertools.accumulate(sizes)][:-1]
    batch = (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5, dtype=torch.int64))
    losses, g = way(batch)
    assert (losses.tolist(), g.unique().tolist()) == ([3.0], [8.0])
    way.world = type("Two", (), {"alone": False})()  # pyright: ignore[reportAttributeAccessIssue]
    for weight in (0.25, torch.tensor(0.25)):
        way.weight = weight
        losses, g = way(batch)
        assert (losses.tolist(), g.unique().tolist()) == ([0.75], [2.0])


def small_run(batch, **recipe):
    run = run_of("copy/sim-single")
    task = CopyMemoryConfig(horizon=60, train=5 * batch - batch // 2, valid=2, test=3)
    return replace(run, task=task, recipe=replace(run.recipe, batch_size=batch, epochs=2, **recipe))


def trained(run, capture, again=False):
    """Two epochs; `again`: the second from what was saved in its middle."""
    device = torch.device("cuda")
    slots = Stacked([run], build_task(run.task, device), device, 2, Way(capture=capture))
    for _ in range(2):
        slots.begin_epoch()
        slots.advance(0, 2)
        if again:
            state, ages = {name: t.clone() for name, t in slots.state().items()}, list(slots.ages)
            slots = Stacked([run], build_task(run.task, device), device, 2, Way(capture=capture))
            slots.load(state, ages)
        slots.advance(2, slots.epoch_steps)
        slots.finish_epoch()
    return slots.part


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("batch", [1, 6])
def test_captured_steps_on_a_gpu(batch, monkeypatch):
    run = small_run(batch, label_smoothing=0.05)
    part = trained(run, capture=True)
    assert type(part.gradients).__name__ == "Direct"
    own = part.members
    assert own.losses.isfinite().all()
    assert own.losses.all()
    assert own.steps.tolist() == [2 * part.epoch_steps]
    for same in (trained(run, capture=True), trained(run, capture=True, again=True), trained(run, capture=False)):
        assert torch.equal(same.members.flat, own.flat), "the same steps, other bits"
        assert torch.equal(same.members.losses[:, 2:], own.losses[:, 2:])
    monkeypatch.setenv("KOOPSIM_DIRECT", "0")
    taped = trained(run, capture=True).members
    assert not torch.equal(taped.flat, own.flat), "that was the same way"
    torch.testing.assert_close(own.losses, taped.losses, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(own.flat, taped.flat, rtol=1e-3, atol=1e-5)
