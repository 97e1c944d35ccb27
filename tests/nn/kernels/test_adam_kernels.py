"""Adam's two Triton kernels against the tensor operations, through Triton's interpreter or on CUDA."""

import pytest

KERNELS = """
import torch
from torch import nn
from koopsim.config import Recipe
from koopsim.engine.part import Way
from koopsim.engine.members import Members, Rule
from koopsim.engine.update import readable_update
from koopsim.nn.kernels import adam as kernels
from koopsim.schedule import BETA2, adam_table

kernels.PARTS, kernels.BLOCK = 4, 16  # so that small vectors go round several times
device = "cuda" if torch.cuda.is_available() else "cpu"

class Two(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.a, self.b = nn.Parameter(start[:1].clone()), nn.Parameter(start[1].clone())

def members_of(start, schedules, rule, epoch_steps=6):
    return Members([Two(s) for s in start], schedules, epoch_steps, rule)

cases = [  # members, entries, clip_norm, decay, average, size of the gradient, scale
    (1, 1, None, False, 0.0, 1.0, 1), (1, 16, 1e3, False, 0.0, 1.0, 1), (2, 63, 0.5, False, 0.0, 3.0, 64),
    (1, 64, 0.5, True, 0.9, 1e-4, 1), (3, 65, None, True, 0.0, 1.0, 1), (1, 200, 0.1, True, 0.6, 1.0, 8),
    (2, 131, 2.0, False, 0.3, 100.0, 1),
]
for size, n, clip, decay, average, large, scale in cases:
    torch.manual_seed(n)
    rates = [Recipe(epochs=2, learning_rate=0.03 / (p + 1), schedule="onecycle", weight_decay=0.2) for p in range(size)]
    schedules = torch.stack([torch.as_tensor(adam_table(r, 3), dtype=torch.float32) for r in rates]).to(device)
    start = torch.randn(size, 2, n, device=device)
    rule = Rule(1e-8, clip, decay, average, float(scale))
    fast, slow = members_of(start, schedules, rule), members_of(start, schedules, rule)
    for step in range(6):
        g, losses = large * torch.randn(size, 2 * n, device=device), torch.rand(size, device=device)
        before = g.clone()
        kernels.update(fast, g, losses, BETA2)
        assert torch.equal(g, before)
        readable_update(slow, g.clone(), losses)
        assert fast.steps.tolist() == slow.steps.tolist() == [step + 1] * size
        assert fast.positions.tolist() == slow.positions.tolist() == [step + 1] * size
        assert torch.equal(fast.losses, slow.losses) and torch.equal(fast.losses[:, step], losses)
        for name, b in slow.state().items():
            if b.is_floating_point():
                bound = 2e-6 * max(1.0, float(b.abs().max()))
                torch.testing.assert_close(fast.state()[name], b, rtol=2e-5, atol=bound, msg=name)
    assert not torch.equal(slow.flat, start.flatten(1))

# A gradient that is not a number is seen in every parameter, clipped or not where it stands.
for clip, spoilt in [(1.0, 2 * n), (None, 1)]:
    members = members_of(start[:1], schedules[:1], Rule(1e-8, clip))
    g = torch.ones(1, 2 * n, device=device)
    g[0, 5] = torch.nan
    kernels.update(members, g, losses[:1], BETA2)
    assert int(members.flat.isnan().sum()) == spoilt

# Past the end of the schedule, and where it was stopped, a member takes no step.
members = members_of(start, schedules, Rule())
members.steps[0] = 6
members.active[1] = False
before = members.flat.clone()
kernels.update(members, torch.ones_like(members.flat), losses, BETA2)
assert torch.equal(members.flat, before) and members.steps.tolist() == [6, 0] and not members.losses.any()
"""

TRAINING = """
from dataclasses import replace
import torch
from koopsim.config import CopyMemoryConfig, TCNConfig
from koopsim.engine import update as updating
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.presets import run_of
from koopsim.tasks import build_task

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
run = run_of("copy/sim-single")
run = replace(run, model=replace(run.model, lift=TCNConfig(levels=2, channels=4, kernel=3), lift_dim=8, hidden=8))
recipe = replace(run.recipe, batch_size=10, epochs=2, clip_norm=0.5, average=0.8, weight_decay=0.01)
run = replace(run, task=CopyMemoryConfig(horizon=5, train=23, valid=2, test=3), recipe=recipe)
states = []
for fused in (True, False):
    updating.uses_kernels = lambda members, fused=fused: fused
    slots = Stacked([run], build_task(run.task, device), device, 2, Way(capture=False))
    for epoch in range(2):
        slots.begin_epoch()
        slots.advance(0, slots.epoch_steps)
        slots.finish_epoch()
    states.append(slots.part.members)
fast, slow = states
assert fast.steps.tolist() == slow.steps.tolist() == [6]
torch.testing.assert_close(fast.losses, slow.losses, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(fast.flat, slow.flat, rtol=1e-3, atol=1e-4)
torch.testing.assert_close(fast.averaged, slow.averaged, rtol=1e-3, atol=1e-4)
"""


@pytest.mark.parametrize("script", [KERNELS, TRAINING], ids=["kernels", "training"])
def test_the_kernels_are_the_tensor_operations(script, in_triton):
    in_triton(script)
