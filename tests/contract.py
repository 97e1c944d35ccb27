"""What every trainable preset promises, whatever its model and task. `tests/test_contract.py` runs it over all."""

import copy
from dataclasses import replace

import torch

from koopsim.config import Run
from koopsim.engine.slots import Stacked
from koopsim.models import build
from koopsim.nn import count_parameters
from koopsim.tasks import build_task

CPU = torch.device("cpu")


def converged(model: torch.nn.Module) -> bool:
    """Whether all of the model's last solve converged; a model without a solver always has."""
    report = getattr(model, "diagnostics", dict)()
    return float(report.get("unconverged", 0.0)) == 0.0


def keeps_the_contract(run: Run) -> None:
    """Builds, counts, runs in float32 and float64, learns, evaluates, and is the same again from its seed."""
    torch.manual_seed(0)
    model = build(run.model)
    task = build_task(run.task, CPU)
    x, y = task.split("train")
    x, y = task.inputs(x[:4]), (y[0] if task.many else y)[:4]
    outputs = model(x)
    assert outputs.dtype == torch.float32
    assert outputs.isfinite().all()
    loss = task.loss(outputs, y)
    assert loss.shape == ()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(g.isfinite().all() for g in gradients)

    exact = copy.deepcopy(model).double()(x.double() if task.many else x)
    assert exact.dtype == torch.float64
    if converged(model):  # a solve that stopped short depends on every rounding
        torch.testing.assert_close(outputs.double(), exact, rtol=5e-2, atol=5e-3)

    for split in ("valid", "test"):
        figures = task.evaluate(model, split)
        assert task.metric in figures
        assert all(isinstance(value, float) for value in figures.values())

    short = replace(run, recipe=replace(run.recipe, epochs=2))
    losses = []
    for _ in range(2):
        slots = Stacked([short], task, CPU, epochs=2)
        steps = min(12, slots.epoch_steps)
        for _ in range(2):
            slots.begin_epoch()
            slots.advance(0, steps)
            losses.append(slots.losses(0)[:, :steps].clone())
            slots.finish_epoch()
        members = slots.part.members
        assert members.size == len(task.names)
        assert members.flat.shape[1] == count_parameters(model)
    assert torch.equal(losses[0], losses[2])
    assert torch.equal(losses[1], losses[3])
    assert losses[1].mean() < losses[0].mean()
