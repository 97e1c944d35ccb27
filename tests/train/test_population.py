"""A population against its members one by one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from koopsim.config import Recipe
from koopsim.errors import KoopsimError
from koopsim.train.population import Population, Stack, free_memory, groups
from koopsim.train.schedule import adam_table

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


def alone(model, x, y, rate, steps=STEPS, **adam):
    """Ten lines anyone would write."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, **adam)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(model, x, y).backward()
        optimiser.step()
    return model


def same(population, p, model, **tolerance):
    for name, tensor in population.stack.member(p).items():
        torch.testing.assert_close(tensor, model.state_dict()[name], **tolerance)


RATES = (1e-3, 1e-2, 3e-2)


def test_members_end_where_they_end_alone_batch_norm_included():
    x, y = data(3)
    population = Population([network(s) for s in range(3)], loss, (x, y), schedules(RATES), (False, False))
    population.run(STEPS)
    for p, rate in enumerate(RATES):
        same(population, p, alone(network(p), x[p], y[p], rate), rtol=1e-10, atol=1e-10)


def test_in_float32_too():
    x, y = data(2, torch.float32)
    models = [network(s, dtype=torch.float32) for s in range(2)]
    population = Population(models, loss, (x, y), schedules(RATES[:2]), (False, False))
    population.run(STEPS)
    for p, rate in enumerate(RATES[:2]):
        expected = alone(network(p, dtype=torch.float32), x[p], y[p], rate)
        same(population, p, expected, rtol=1e-4, atol=1e-5)


def test_shared_data_are_the_same_for_all():
    x, y = data(1)
    population = Population([network(s) for s in range(2)], loss, (x[0], y[0]), schedules(RATES[:2]), (True, True))
    population.run(STEPS)
    for p, rate in enumerate(RATES[:2]):
        same(population, p, alone(network(p), x[0], y[0], rate), rtol=1e-10, atol=1e-10)


def test_batches_may_depend_on_each_members_own_step():
    x, y = data(2)

    def batch(steps):
        rows = (steps.unsqueeze(1) * 10 + torch.arange(10)) % 30
        member = torch.arange(2).unsqueeze(1)
        return x[member, rows], y[member, rows]

    population = Population([network(s) for s in range(2)], loss, batch, schedules(RATES[:2]), (False, False))
    population.run(3)
    for p in range(2):
        model = network(p)
        optimiser = torch.optim.Adam(model.parameters(), lr=RATES[p])
        for step in range(3):
            optimiser.zero_grad()
            loss(model, x[p, 10 * step : 10 * step + 10], y[p, 10 * step : 10 * step + 10]).backward()
            optimiser.step()
        same(population, p, model, rtol=1e-10, atol=1e-10)


def test_clipping_and_decay_are_each_members_own():
    x, y = data(2)
    recipe = {"clip_norm": 0.05, "weight_decay": 0.1, "eps": 1e-5}
    population = Population(
        [network(s) for s in range(2)], loss, (x, y), schedules(RATES[:2], **recipe), (False, False),
        eps=1e-5, clip_norm=0.05, decay=True,
    )  # fmt: skip
    population.run(STEPS)
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
        same(population, p, model, rtol=1e-9, atol=1e-9)


def test_an_average_is_each_members_own_and_is_what_is_judged():
    x, y = data(3)
    models = [nn.Linear(2, 1).double() for _ in range(3)]
    rates = schedules(RATES)
    population = Population(models, loss, (x, y), rates, (False, False), average=0.75)
    expected, steps = torch.zeros_like(population.stack.flat), torch.tensor([[STEPS], [4], [STEPS]])
    for step in range(STEPS):
        if step == 4:
            population.stop([1])
        population.run(1)
        moving = [0, 2] if step >= 4 else [0, 1, 2]
        expected[moving] = 0.75 * expected[moving] + 0.25 * population.stack.flat[moving]
    torch.testing.assert_close(population.averaged, expected)
    judged = [torch.cat([p.reshape(-1) for p in model.parameters()]) for model in population.models()]
    torch.testing.assert_close(torch.stack(judged), expected / (1 - 0.75**steps))
    population.replace(0, models[0], rates[0])
    for p in population.model(0).parameters():  # before its first step there is nothing to average
        assert any(torch.equal(p, q) for q in models[0].parameters())
    population.run(1)
    first = torch.cat([p.reshape(-1) for p in population.model(0).parameters()])
    torch.testing.assert_close(first, population.stack.flat[0])  # after it the average is what it led to


def test_a_member_that_diverges_or_stops_disturbs_nobody():
    x, y = data(3)
    x[0, 0, 0] = torch.inf
    population = Population([network(s) for s in range(3)], loss, (x, y), schedules(RATES), (False, False))
    population.run(5)
    population.stop([1])
    population.run(STEPS)  # more than the schedule has: members stay at their end
    assert population.losses[0].isnan().all()
    assert population.steps.tolist() == [STEPS, 5, STEPS]
    same(population, 2, alone(network(2), x[2], y[2], RATES[2]), rtol=1e-10, atol=1e-10)
    same(population, 1, alone(network(1), x[1], y[1], RATES[1], steps=5), rtol=1e-10, atol=1e-10)


def test_a_slot_is_given_to_a_new_model_in_place():
    x, y = data(2)
    population = Population([network(s) for s in range(2)], loss, (x, y), schedules(RATES[:2]), (False, False))
    population.run(4)
    addresses = {name: t.data_ptr() for name, t in population.state().items()}
    population.stop([0])
    population.replace(0, network(9), schedules([5e-3])[0])
    assert {name: t.data_ptr() for name, t in population.state().items()} == addresses
    population.run(STEPS)
    same(population, 0, alone(network(9), x[0], y[0], 5e-3), rtol=1e-10, atol=1e-10)
    same(population, 1, alone(network(1), x[1], y[1], RATES[1]), rtol=1e-10, atol=1e-10)


def test_losses_are_kept_for_every_member_and_step():
    x, y = data(2)
    population = Population([network(s) for s in range(2)], loss, (x, y), schedules(RATES[:2]), (False, False))
    first = torch.stack([loss(network(p), x[p], y[p]) for p in range(2)])
    population.run(2)
    torch.testing.assert_close(population.losses[:, 0], first.detach())
    assert population.losses[:, 2:].isnan().all()


def test_stacking_and_unstacking_is_the_identity():
    models = [network(s) for s in range(3)]
    for model, again in zip(models, Stack(models).models(), strict=True):
        assert model.state_dict().keys() == again.state_dict().keys()
        assert all(torch.equal(t, again.state_dict()[n]) for n, t in model.state_dict().items())


def test_unequal_shapes_and_missing_schedules_are_refused():
    with pytest.raises(KoopsimError, match=r"Model 1 cannot be stacked.*'0.weight' is 8 x 2 there and 7 x 2 here"):
        Stack([network(0), network(0, width=8)])
    x, y = data(2)
    with pytest.raises(KoopsimError, match="2 models and schedules for 1"):
        Population([network(0), network(1)], loss, (x, y), schedules([0.1]), (False, False))


def test_compiling_that_fails_goes_on_without(monkeypatch):
    def broken(function, dynamic):
        def call(*arguments):
            raise RuntimeError("no compiler here")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    x, y = data(2)
    models = [network(s) for s in range(2)]
    population = Population(models, loss, (x, y), schedules(RATES[:2]), (False, False), compile=True)
    with pytest.warns(UserWarning, match="no compiler here"):
        population.run(STEPS)
    same(population, 1, alone(network(1), x[1], y[1], RATES[1]), rtol=1e-10, atol=1e-10)


@given(count=st.integers(1, 200), each=st.integers(1, 10**12), at_once=st.none() | st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_groups_cover_everything_once_and_fit(count, each, at_once):
    cpu = torch.device("cpu")
    parts = groups(count, each, cpu, at_once)
    assert [p for part in parts for p in part] == list(range(count))
    longest = max(map(len, parts))
    assert longest - min(map(len, parts)) <= 1
    assert longest <= (at_once or max(1, free_memory(cpu) // each))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_captured_step_is_the_eager_step_and_survives_a_replacement():
    x, y = (t.cuda() for t in data(3))
    ends = []
    for capture in (False, True):
        models = [network(s).cuda() for s in range(3)]
        population = Population(models, loss, (x, y), schedules(RATES), (False, False), capture=capture)
        population.run(4)
        population.stop([1])
        population.replace(0, network(9).cuda(), schedules([5e-3])[0])
        population.run(STEPS)
        ends.append(population)
    for name, tensor in ends[0].state().items():
        torch.testing.assert_close(ends[1].state()[name], tensor, rtol=1e-8, atol=1e-10, equal_nan=True)
