import pytest
import torch
from torch import nn

from koopsim.config import Recipe
from koopsim.train.adam import Adam
from koopsim.train.schedule import adam_table, learning_rates


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "step", "onecycle"])
def test_the_flat_update_is_torch_adam(schedule, clip):
    recipe = Recipe(epochs=6, learning_rate=0.02, schedule=schedule, step_size=2, eps=1e-5, clip_norm=clip)
    ours, theirs = network(), network()
    adam = Adam(ours.parameters(), recipe.eps, clip)
    table = torch.as_tensor(adam_table(recipe, 5))
    lr, beta1 = learning_rates(recipe, 5)
    reference = torch.optim.Adam(theirs.parameters(), lr=1.0, eps=recipe.eps)
    for step in range(30):
        x = torch.randn(4, 3, dtype=torch.float64)
        adam.update(adam.gradient(ours(x).square().mean()), table[step])
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
    before = model[0].bias.clone()
    adam = Adam(model.parameters(), 1e-8)
    adam.update(
        adam.gradient(model[:2](torch.ones(1, 3, dtype=torch.float64)).sum()), torch.tensor([0.1, 1.0, 0.1, 0.0])
    )
    assert torch.equal(model[0].bias, before)
    assert torch.equal(model.extra, torch.ones(2, dtype=torch.float64))


def test_decay_is_that_of_adamw_on_matrices_only():
    recipe = Recipe(epochs=2, learning_rate=0.02, schedule="cosine", weight_decay=0.3)
    ours, theirs = network(), network()
    adam = Adam(ours.parameters(), recipe.eps, decay=True)
    table = torch.as_tensor(adam_table(recipe, 5))
    lr, _ = learning_rates(recipe, 5)
    matrices = [p for p in theirs.parameters() if p.ndim > 1]
    rest = [p for p in theirs.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": rest, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=1.0)
    for step in range(10):
        x = torch.randn(4, 3, dtype=torch.float64)
        adam.update(adam.gradient(ours(x).square().mean()), table[step])
        reference.zero_grad()
        theirs(x).square().mean().backward()
        for group in reference.param_groups:
            group["lr"] = lr[step]
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
