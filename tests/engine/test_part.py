"""Many members against each of them one by one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from koopsim.config import Recipe
from koopsim.engine.feeds import Feed
from koopsim.engine.members import Members, Rule
from koopsim.engine.part import Part, Way
from koopsim.errors import KoopsimError
from koopsim.schedule import adam_table

STEPS = 12


def network(seed, width=7, dtype=torch.float64):
    torch.manual_seed(seed)  # no bias before the norm: its gradient is rounding noise, which Adam makes large
    return nn.Sequential(nn.Linear(2, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1)).to(
        dtype
    )


def schedules(rates, **recipe):
    base = Recipe(epochs=STEPS, **recipe)
    return torch.as_tensor(np.stack([adam_table(replace(base, learning_rate=r), 1) for r in rates]))


def loss(model, x, y):
    return (model(x) - y).square().mean()


def data(members, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(members, 30, 2, generator=generator, dtype=dtype)
    return x, (5 * x[..., :1]).sin() + x[..., 1:]


def run(part, steps):
    """So many steps, whatever epoch they are in."""
    for _ in range(steps):
        part.advance(0, 1)


class Given(Feed):
    """The same tensors every step, or what a function of the positions gives."""

    def __init__(self, batch, shared, epoch_steps=STEPS):
        self.tensors, self.shared, self.epoch_steps = batch, shared, epoch_steps

    def batch(self, positions, size):
        return self.tensors(positions) if callable(self.tensors) else self.tensors


def part_of(models, batch, tables, shared, capture=False, compile=False, **rule):
    way = Way(capture=capture, compile=compile, alone=False)
    return Part(models, loss, Given(batch, shared), tables, Rule(**rule), way)


def alone(model, x, y, rate, steps=STEPS, **adam):
    """Ten lines anyone would write."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, **adam)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(model, x, y).backward()
        optimiser.step()
    return model


def same(part, p, model, **tolerance):
    for name, tensor in part.members.model(p).state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name], **tolerance)


RATES = (1e-3, 1e-2, 3e-2)


def test_members_end_where_they_end_alone_batch_norm_included():
    x, y = data(3)
    part = part_of([network(s) for s in range(3)], (x, y), schedules(RATES), (False, False))
    run(part, STEPS)
    for p, rate in enumerate(RATES):
        same(part, p, alone(network(p), x[p], y[p], rate), rtol=1e-10, atol=1e-10)


def test_in_float32_too():
    x, y = data(2, torch.float32)
    models = [network(s, dtype=torch.float32) for s in range(2)]
    part = part_of(models, (x, y), schedules(RATES[:2]), (False, False))
    run(part, STEPS)
    for p, rate in enumerate(RATES[:2]):
        expected = alone(network(p, dtype=torch.float32), x[p], y[p], rate)
        same(part, p, expected, rtol=1e-4, atol=1e-5)


def test_shared_data_are_the_same_for_all():
    x, y = data(1)
    part = part_of([network(s) for s in range(2)], (x[0], y[0]), schedules(RATES[:2]), (True, True))
    run(part, STEPS)
    for p, rate in enumerate(RATES[:2]):
        same(part, p, alone(network(p), x[0], y[0], rate), rtol=1e-10, atol=1e-10)


def test_batches_may_depend_on_each_members_own_step():
    x, y = data(2)

    def batch(steps):
        rows = (steps.unsqueeze(1) * 10 + torch.arange(10)) % 30
        member = torch.arange(2).unsqueeze(1)
        return x[member, rows], y[member, rows]

    part = part_of([network(s) for s in range(2)], batch, schedules(RATES[:2]), (False, False))
    run(part, 3)
    for p in range(2):
        model = network(p)
        optimiser = torch.optim.Adam(model.parameters(), lr=RATES[p])
        for step in range(3):
            optimiser.zero_grad()
            loss(model, x[p, 10 * step : 10 * step + 10], y[p, 10 * step : 10 * step + 10]).backward()
            optimiser.step()
        same(part, p, model, rtol=1e-10, atol=1e-10)


def test_clipping_and_decay_are_each_members_own():
    x, y = data(2)
    recipe = {"clip_norm": 0.05, "weight_decay": 0.1, "eps": 1e-5}
    part = part_of([network(s) for s in range(2)], (x, y), schedules(RATES[:2], **recipe), (False, False),
        eps=1e-5, clip_norm=0.05, decay=True,
    )  # fmt: skip
    run(part, STEPS)
    for p in range(2):
        model = network(p)
        matrices = [q for q in model.parameters() if q.ndim > 1]
        rest = [q for q in model.parameters() if q.ndim < 2]
        optimiser = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0}], lr=RATES[p], eps=1e-5
        )
        for _ in range(STEPS):
            optimiser.zero_grad()
            loss(model, x[p], y[p]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimiser.step()
        same(part, p, model, rtol=1e-9, atol=1e-9)


def test_an_average_is_each_members_own_and_is_what_is_judged():
    x, y = data(3)
    models = [nn.Linear(2, 1).double() for _ in range(3)]
    rates = schedules(RATES)
    part = part_of(models, (x, y), rates, (False, False), average=0.75)
    expected, steps = torch.zeros_like(part.members.flat), torch.tensor([[STEPS], [4], [STEPS]])
    for step in range(STEPS):
        if step == 4:
            part.members.stop([1])
        run(part, 1)
        moving = [0, 2] if step >= 4 else [0, 1, 2]
        expected[moving] = 0.75 * expected[moving] + 0.25 * part.members.flat[moving]
    torch.testing.assert_close(part.members.averaged["parameters"], expected)
    judged = [torch.cat([p.reshape(-1) for p in model.parameters()]) for model in part.members.models()]
    torch.testing.assert_close(torch.stack(judged), expected / (1 - 0.75**steps))
    part.put(0, models[0], rates[0], seed=0)
    for p in part.members.model(0).parameters():  # before its first step there is nothing to average
        assert any(torch.equal(p, q) for q in models[0].parameters())
    run(part, 1)
    first = torch.cat([p.reshape(-1) for p in part.members.model(0).parameters()])
    torch.testing.assert_close(first, part.members.flat[0])  # after it the average is what it led to


def test_a_member_that_diverges_or_stops_disturbs_nobody():
    x, y = data(3)
    x[0, 0, 0] = torch.inf
    part = part_of([network(s) for s in range(3)], (x, y), schedules(RATES), (False, False))
    run(part, 5)
    part.members.stop([1])
    run(part, STEPS)  # more than the schedule has: members stay at their end
    assert part.members.losses[0].isnan().all()
    assert part.members.steps.tolist() == [STEPS, 5, STEPS]
    same(part, 2, alone(network(2), x[2], y[2], RATES[2]), rtol=1e-10, atol=1e-10)
    same(part, 1, alone(network(1), x[1], y[1], RATES[1], steps=5), rtol=1e-10, atol=1e-10)


def test_a_slot_is_given_to_a_new_model_in_place():
    x, y = data(2)
    part = part_of([network(s) for s in range(2)], (x, y), schedules(RATES[:2]), (False, False))
    run(part, 4)
    addresses = {name: t.data_ptr() for name, t in part.state().items()}
    part.members.stop([0])
    part.put(0, network(9), schedules([5e-3])[0], seed=0)
    assert {name: t.data_ptr() for name, t in part.state().items()} == addresses
    run(part, STEPS)
    same(part, 0, alone(network(9), x[0], y[0], 5e-3), rtol=1e-10, atol=1e-10)
    same(part, 1, alone(network(1), x[1], y[1], RATES[1]), rtol=1e-10, atol=1e-10)


def test_losses_are_kept_for_every_member_and_step():
    x, y = data(2)
    part = part_of([network(s) for s in range(2)], (x, y), schedules(RATES[:2]), (False, False))
    first = torch.stack([loss(network(p), x[p], y[p]) for p in range(2)])
    run(part, 2)
    torch.testing.assert_close(part.members.losses[:, 0], first.detach())
    assert not part.members.losses[:, 2:].any()


def test_stacking_and_unstacking_is_the_identity():
    models = [network(s) for s in range(3)]
    for model, again in zip(models, Members(models, torch.zeros(3, 1, 4), 1, Rule()).models(), strict=True):
        assert model.state_dict().keys() == again.state_dict().keys()
        assert all(torch.equal(t, again.state_dict()[n]) for n, t in model.state_dict().items())


def test_unequal_shapes_and_missing_schedules_are_refused():
    with pytest.raises(KoopsimError, match=r"Model 1 cannot be stacked.*'0.weight' is 8 x 2 there and 7 x 2 here"):
        Members([network(0), network(0, width=8)], torch.zeros(2, 1, 4), 1, Rule())
    x, y = data(2)
    with pytest.raises(KoopsimError, match="2 models and schedules for 1"):
        part_of([network(0), network(1)], (x, y), schedules([0.1]), (False, False))


def test_compiling_that_fails_goes_on_without(monkeypatch):
    def broken(function, dynamic):
        def call(*arguments):
            raise RuntimeError("no compiler here")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    x, y = data(2)
    models = [network(s) for s in range(2)]
    part = part_of(models, (x, y), schedules(RATES[:2]), (False, False), compile=True)
    with pytest.warns(UserWarning, match="no compiler here"):
        run(part, STEPS)
    same(part, 1, alone(network(1), x[1], y[1], RATES[1]), rtol=1e-10, atol=1e-10)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_captured_step_is_the_eager_step_and_survives_a_replacement():
    x, y = (t.cuda() for t in data(3))
    ends = []
    for capture in (False, True):
        models = [network(s).cuda() for s in range(3)]
        part = part_of(models, (x, y), schedules(RATES), (False, False), capture=capture)
        run(part, 4)
        part.members.stop([1])
        part.put(0, network(9).cuda(), schedules([5e-3])[0], seed=0)
        run(part, STEPS)
        ends.append(part)
    for name, tensor in ends[0].state().items():
        torch.testing.assert_close(ends[1].state()[name], tensor, rtol=1e-8, atol=1e-10, equal_nan=True)
