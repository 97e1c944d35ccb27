"""The readable update against torch.optim, and members that stand still."""

import pytest
import torch
from torch import nn

from koopsim.config import Recipe
from koopsim.engine.gradients import Alone
from koopsim.engine.members import Members, Rule
from koopsim.engine.update import lone_update, readable_update, update
from koopsim.schedule import adam_table, learning_rates


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def stepping(model, recipe, loss=lambda model, x: model(x).square().mean()):
    members = Members([model], torch.as_tensor(adam_table(recipe, 5)).unsqueeze(0), 5, Rule.of(recipe))
    gradients = Alone(members, loss, (True,), None, False)

    def step(x):
        losses, g = gradients((x,))
        update(members, g, losses)

    return members, step


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "step", "onecycle"])
def test_the_update_is_torch_adam(schedule, clip):
    recipe = Recipe(epochs=6, learning_rate=0.02, schedule=schedule, step_size=2, eps=1e-5, clip_norm=clip)
    ours, theirs = network(), network()
    _, step_ours = stepping(ours, recipe)
    lr, beta1 = learning_rates(recipe, 5)
    reference = torch.optim.Adam(theirs.parameters(), lr=1.0, eps=recipe.eps)
    for step in range(30):
        x = torch.randn(4, 3, dtype=torch.float64)
        step_ours(x)
        reference.zero_grad()
        theirs(x).square().mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        reference.param_groups[0].update(lr=lr[step], betas=(beta1[step], 0.999))
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_frozen_and_unused_parameters_are_left_alone():
    model = network()
    model[0].bias.requires_grad_(False)
    model.extra = nn.Parameter(torch.ones(2, dtype=torch.float64))
    before, weight = model[0].bias.clone(), model[0].weight.clone()
    _, step = stepping(model, Recipe(epochs=1), lambda model, x: model[:2](x).sum())
    step(torch.ones(1, 3, dtype=torch.float64))
    assert torch.equal(model[0].bias, before)
    assert torch.equal(model.extra, torch.ones(2, dtype=torch.float64))
    assert not torch.equal(model[0].weight, weight)


def test_decay_is_that_of_adamw_on_matrices_only():
    recipe = Recipe(epochs=2, learning_rate=0.02, schedule="cosine", weight_decay=0.3)
    ours, theirs = network(), network()
    _, step_ours = stepping(ours, recipe)
    lr, _ = learning_rates(recipe, 5)
    matrices = [p for p in theirs.parameters() if p.ndim > 1]
    rest = [p for p in theirs.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": rest, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=1.0)
    for step in range(10):
        x = torch.randn(4, 3, dtype=torch.float64)
        step_ours(x)
        reference.zero_grad()
        theirs(x).square().mean().backward()
        for group in reference.param_groups:
            group["lr"] = lr[step]
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_past_its_schedule_a_member_stands_still():
    members, step = stepping(network(), Recipe(epochs=1, learning_rate=0.1))
    for _ in range(5):
        step(torch.ones(4, 3, dtype=torch.float64))
    members.begin_epoch()
    before = members.flat.clone()
    step(torch.ones(4, 3, dtype=torch.float64))
    assert torch.equal(members.flat, before)
    assert members.steps.tolist() == [5]
    assert members.positions.tolist() == [0]


def test_a_scaled_loss_gives_the_same_steps():
    """What keeps small gradients alive in float16 must not change a step: eps and clipping take the scale along."""
    recipe = Recipe(epochs=2, learning_rate=0.02, eps=1e-3, clip_norm=0.05)
    ends = []
    for scale in (1.0, 2.0**14):
        model = network()
        members = Members([model], torch.as_tensor(adam_table(recipe, 5)).unsqueeze(0), 5, Rule.of(recipe, scale))
        gradients = Alone(members, lambda model, x: model(x).square().mean(), (True,), None, False)
        for k in range(6):
            losses, g = gradients((torch.full((4, 3), 0.3 * k, dtype=torch.float64),))
            update(members, g, losses)
        ends.append(members)
    torch.testing.assert_close(ends[0].flat, ends[1].flat, rtol=1e-4, atol=1e-6)  # 1e-6 + |g| has no scale
    torch.testing.assert_close(ends[0].losses, ends[1].losses, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("recipe", [
    Recipe(epochs=2, clip_norm=0.5, weight_decay=0.1, average=0.9, schedule="onecycle"), Recipe(epochs=2),
])  # fmt: skip
def test_one_member_on_a_cpu_moves_as_among_many_to_the_last_bit(recipe, dtype):
    lone, plain = (
        Members([network().to(dtype)], torch.as_tensor(adam_table(recipe, 5)).unsqueeze(0), 5, Rule.of(recipe))
        for _ in range(2)
    )
    for step in range(12):  # two more than the schedule has
        if step == 7:
            lone.stop([0]), plain.stop([0])
        if step == 8:
            lone.active.fill_(True), plain.active.fill_(True)
        g, losses = torch.randn(lone.flat.shape, dtype=dtype), torch.rand(1, dtype=dtype)
        lone_update(lone, g.clone(), losses)
        readable_update(plain, g.clone(), losses)
        for (name, a), b in zip(lone.state().items(), plain.state().values(), strict=True):
            assert torch.equal(a, b), name
