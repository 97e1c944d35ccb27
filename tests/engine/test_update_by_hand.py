"""One step by hand: what is clipped, written down, averaged, and who stands still whatever the gradient."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from koopsim.engine import update as updates
from koopsim.engine.members import Members, Rule
from koopsim.engine.update import average_statistics, lone_update, readable_update, uses_kernels
from koopsim.schedule import BETA2


def members(count, rule, steps=4, epoch_steps=2):
    torch.manual_seed(0)
    models = [nn.Linear(2, 1, dtype=torch.float64) for _ in range(count)]
    rows = torch.tensor([0.1, 0.5, 0.2, 0.03], dtype=torch.float64)  # step size, root correction, 1 - beta1, decay
    return Members(models, rows.expand(count, steps, 4), epoch_steps, rule)


@pytest.mark.parametrize("way", [readable_update, lone_update])
def test_a_step_is_adams(way):
    own = members(1, Rule(eps=0.01, clip_norm=0.5, decay=True, average=0.75, scale=2.0))
    p, g = own.flat.clone(), torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64)
    m0, v0 = own.mean.fill_(0.3).clone(), own.square.fill_(0.2).clone()
    way(own, g.clone(), torch.tensor([7.0], dtype=torch.float64))
    g = g * min(1, 2.0 * 0.5 / (5.0 + 1e-6))
    m, v = m0 + 0.2 * (g - m0), v0 + (1 - BETA2) * (g**2 - v0)
    decayed = p - 0.03 * p * torch.tensor([1.0, 1.0, 0.0])
    p = decayed - 0.1 * m / (v.sqrt() / 0.5 + 2.0 * 0.01)
    for found, wanted in ((own.mean, m), (own.square, v), (own.flat, p), (own.averaged["parameters"], 0.25 * p)):
        torch.testing.assert_close(found, wanted)
    assert (own.losses.tolist(), own.steps.tolist(), own.positions.tolist()) == ([[7.0, 0.0]], [1], [1])


@pytest.mark.parametrize("way", [readable_update, lone_update])
def test_losses_past_the_epoch_are_written_in_its_last_place(way):
    own = members(1, Rule())
    for value in (1.0, 2.0, 3.0):
        way(own, torch.zeros_like(own.flat), torch.tensor([value], dtype=torch.float64))
    assert (own.losses.tolist(), own.steps.tolist(), own.positions.tolist()) == ([[1.0, 3.0]], [3], [3])
    way(own, torch.zeros_like(own.flat), torch.tensor([4.0], dtype=torch.float64))
    before = {name: t.clone() for name, t in own.state().items()}
    way(own, torch.ones_like(own.flat), torch.tensor([5.0], dtype=torch.float64))  # past its schedule
    assert all(torch.equal(t, before[name]) for name, t in own.state().items())


def test_who_stands_still_does_so_whatever_the_gradient():
    own = members(3, Rule(average=0.5, decay=True, clip_norm=None))
    own.stop([1])
    own.steps[2] = 4
    before = {name: t.clone() for name, t in own.state().items()}
    g = torch.ones_like(own.flat)
    g[1], g[2] = math.inf, math.nan
    readable_update(own, g, torch.tensor([1.0, math.inf, math.nan], dtype=torch.float64))
    for name, t in own.state().items():
        assert torch.equal(t[1:], before[name][1:]), name
        if name in ("flat", "mean", "square", "steps", "positions", "losses", "averaged.parameters"):
            assert not torch.equal(t[0], before[name][0]), name


@pytest.mark.parametrize("count", [1, 3])
def test_statistics_are_averaged_of_those_who_go_on(count):
    models = [nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(count)]
    own = Members(models, torch.ones(count, 4, 4), 2, Rule(average=0.75))
    own.stop([2] if count > 1 else [])
    own.buffers["1.running_mean"].fill_(8.0)
    average_statistics(own)
    found = own.averaged["1.running_mean"][:, 0].tolist()
    assert found == ([2.0] if count == 1 else [2.0, 2.0, 0.0])
    assert own.averaged["1.running_var"][0].tolist() == [0.25, 0.25]
    plain = Members(models, torch.ones(count, 4, 4), 2, Rule())
    average_statistics(plain)
    assert plain.averaged == {}


def test_kernels_are_for_single_precision_on_a_gpu(monkeypatch):
    monkeypatch.setattr(updates, "find_spec", lambda name: name)
    with FakeTensorMode():
        flat = {d: torch.empty(1, 3, device="cuda", dtype=d) for d in (torch.float32, torch.float64)}
        assert uses_kernels(SimpleNamespace(flat=flat[torch.float32]))
        assert not uses_kernels(SimpleNamespace(flat=flat[torch.float64]))
        monkeypatch.setattr(updates, "find_spec", lambda name: None)
        assert not uses_kernels(SimpleNamespace(flat=flat[torch.float32]))
    monkeypatch.setattr(updates, "find_spec", lambda name: name)
    assert not uses_kernels(SimpleNamespace(flat=torch.empty(1, 3)))


def test_one_on_a_cpu_is_updated_without_masks(monkeypatch):
    asked = []
    monkeypatch.setattr(updates, "lone_update", lambda *given: asked.append("lone"))
    monkeypatch.setattr(updates, "readable_update", lambda *given: asked.append("readable"))
    for count in (1, 2):
        own = members(count, Rule())
        updates.update(own, torch.zeros_like(own.flat), torch.zeros(count))
    assert asked == ["lone", "readable"]
