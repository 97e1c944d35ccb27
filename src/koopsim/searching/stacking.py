"""Which trials can share a stack, and which rather run beside each other.

of a slot: weights, learning rate, schedule, length, bandwidth, seed        of all: the rest of the run
"""

from __future__ import annotations

from dataclasses import replace

import torch

from koopsim.config import Recipe, Run, to_dict
from koopsim.kinds import model_kind
from koopsim.tasks import Task

OWN = ("learning_rate", "schedule", "step_size", "epochs", "warm_up", "weight_decay")  # may differ within a stack


def stackable(run: Run) -> bool:
    """Whether a run can be stacked: its model knows torch.vmap, which a solver's loop does not."""
    return model_kind(run.model).stackable


def better_stacked(run: Run, task: Task, device: torch.device) -> bool:
    """Whether a stack is the faster way: some tasks' models have kernels of their own, which a stack cannot use.

    On a CPU a stack's convolutions are in groups: up to 2.4 times as long as one by one, in bfloat16 3.7 times.
    """
    alone = run.precision in task.fast_alone if device.type == "cuda" else run.task.convolves
    return stackable(run) and not task.streamed and not alone


def takes_over(run: Run) -> bool:
    """Whether a trial may begin in another's tensors; a model with a solver may have chosen settings of its own."""
    return model_kind(run.model).can_take_over


def stack_key(run: Run) -> str:
    """Runs with the same key can share a stack: all is equal but what a slot has of its own."""
    plain = Recipe()
    recipe = replace(run.recipe, **{name: getattr(plain, name) for name in OWN})
    decays = float(run.recipe.weight_decay > 0)  # how much is a slot's own, whether is not
    model = model_kind(run.model).common(run.model)
    return repr(to_dict(replace(run, model=model, recipe=replace(recipe, weight_decay=decays), seed=0)))
