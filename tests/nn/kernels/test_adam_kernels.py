"""Adam's two Triton kernels against the tensor operations, through Triton's interpreter or on CUDA."""

import pytest

KERNELS = """
import torch
from torch import nn
from koopsim.config import Recipe
from koopsim.nn.kernels import adam as adam_kernels
from koopsim.train.adam import Adam, Course
from koopsim.train.schedule import adam_table

adam_kernels.PARTS, adam_kernels.BLOCK = 4, 16  # so that small vectors go round several times
device = "cuda" if torch.cuda.is_available() else "cpu"
cases = [  # entries, clip_norm, decay, average, size of the gradient
    (1, None, False, 0.0, 1.0), (16, 1e3, False, 0.0, 1.0), (63, 0.5, False, 0.0, 3.0), (64, 0.5, True, 0.9, 1e-4),
    (65, None, True, 0.0, 1.0), (200, 0.1, True, 0.6, 1.0), (131, 2.0, False, 0.3, 100.0),
]
for n, clip, decay, average, size in cases:
    torch.manual_seed(n)
    recipe = Recipe(epochs=2, learning_rate=0.03, schedule="onecycle", weight_decay=0.2 if decay else 0.0)
    table = torch.as_tensor(adam_table(recipe, 3), dtype=torch.float32, device=device)
    start = torch.randn(2, n, device=device)
    pair = []
    for fused in (True, False):
        adam = Adam([nn.Parameter(start[:1].clone()), nn.Parameter(start[1].clone())], 1e-8, clip, decay, average)
        adam.fused = lambda fused=fused: fused
        counters = torch.zeros(2, dtype=torch.int64, device=device)
        pair.append((adam, Course(table, counters, torch.zeros(6, device=device))))
    for step in range(6):
        g, loss = size * torch.randn(2 * n, device=device), torch.rand((), device=device)
        before = g.clone()
        for adam, course in pair:
            adam.advance(g, loss, course)
        assert torch.equal(g, before)
        (fast, one), (slow, two) = pair
        assert one.counters.tolist() == two.counters.tolist() == [step + 1] * 2
        assert torch.equal(one.losses, two.losses) and one.losses[step] == loss
        for name in ("flat", "mean", "square", "averaged"):
            a, b = getattr(fast, name), getattr(slow, name)
            if b is not None:
                torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6 * max(1.0, float(b.abs().max())), msg=name)
    assert not torch.equal(slow.flat, start.flatten())

# A gradient that is not a number is seen in every parameter, clipped or not where it stands.
for clip, spoilt in [(1.0, 2 * n), (None, 1)]:
    adam = Adam([nn.Parameter(start.clone())], 1e-8, clip)
    adam.fused = lambda: True
    g = torch.ones(2 * n, device=device)
    g[5] = torch.nan
    counters = torch.zeros(2, dtype=torch.int64, device=device)
    adam.advance(g, loss, Course(table, counters, torch.zeros(6, device=device)))
    assert int(adam.flat.isnan().sum()) == spoilt

# Past the end of the schedule there are no scalars: nothing goes on as if there were.
adam = Adam([nn.Parameter(start.clone())], 1e-8)
adam.fused = lambda: True
course = Course(table, torch.tensor([6, 0], device=device), torch.zeros(6, device=device))
adam.advance(torch.ones(2 * n, device=device), loss, course)
assert bool(adam.flat.isnan().all())
"""

TRAINING = """
from dataclasses import replace
import torch
from koopsim.config import CopyMemoryConfig, TCNConfig
from koopsim.presets import run_of
from koopsim.train import prepare

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
run = run_of("copy/sim-single")
run = replace(run, model=replace(run.model, lift=TCNConfig(levels=2, channels=4, kernel=3), lift_dim=8, hidden=8))
recipe = replace(run.recipe, batch_size=10, epochs=2, clip_norm=0.5, average=0.8, weight_decay=0.01)
run = replace(run, task=CopyMemoryConfig(horizon=5, train=23, valid=2, test=3), recipe=recipe)
states = []
for fused in (True, False):
    _, trainer = prepare(run, device, capture=False)
    trainer.adam.fused = lambda fused=fused: fused
    for epoch in range(2):
        trainer.start_epoch(epoch)
        trainer.run(0, trainer.steps_per_epoch)
    states.append(trainer)
fast, slow = states
assert fast.counters.tolist() == slow.counters.tolist() == [6, 3]
torch.testing.assert_close(fast.losses, slow.losses, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(fast.adam.flat, slow.adam.flat, rtol=1e-3, atol=1e-4)
torch.testing.assert_close(fast.averaged, slow.averaged, rtol=1e-3, atol=1e-4)
"""

POPULATION = """
import numpy as np
import torch
from torch import nn
from koopsim.config import Recipe
from koopsim.nn.kernels import adam as adam_kernels
from koopsim.train.population import Population
from koopsim.train.schedule import adam_table

adam_kernels.PARTS, adam_kernels.BLOCK = 4, 16
device = "cuda" if torch.cuda.is_available() else "cpu"

def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 7, bias=False), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 1)).to(device)

for clip, decay, average in [(None, False, 0.0), (0.05, True, 0.7), (50.0, False, 0.0)]:
    tables = [adam_table(Recipe(epochs=6, learning_rate=r, weight_decay=0.3), 1) for r in (1e-3, 3e-2, 1e-2, 2e-2)]
    x = torch.rand(4, 9, 2, generator=torch.Generator().manual_seed(1)).to(device)
    x[3, 0, 0] = torch.inf  # this one is lost at its first step, and nobody else with it
    pair = []
    for fused in (True, False):
        loss = lambda model, x: (model(x) - 1).square().mean()
        models = [network(seed) for seed in range(4)]
        schedules = torch.as_tensor(np.stack(tables))
        population = Population(models, loss, (x,), schedules, (False,), clip_norm=clip, decay=decay, average=average)
        population.fused = lambda fused=fused: fused
        population.run(2)
        population.stop([1])
        population.steps[2] = 4  # at its end two steps later
        population.run(3)
        pair.append(population)
    fast, slow = (population.state() for population in pair)
    assert ("averaged" in fast) == bool(average)
    assert fast["steps"].tolist() == slow["steps"].tolist() == [5, 2, 6, 5]
    for name, b in slow.items():
        torch.testing.assert_close(fast[name], b, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)
    assert bool(slow["flat"][:3].isfinite().all()) and not bool(slow["flat"][3].isfinite().all())
"""


@pytest.mark.parametrize("script", [KERNELS, TRAINING, POPULATION], ids=["kernels", "trainer", "population"])
def test_the_kernels_are_the_tensor_operations(script, in_triton):
    in_triton(script)
