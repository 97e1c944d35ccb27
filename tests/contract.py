"""What every trainable preset promises, whatever its model and task. `tests/test_contract.py` runs it over all."""

import copy
from dataclasses import replace

import torch

from koopsim.config import Run
from koopsim.models import build
from koopsim.nn import count_parameters
from koopsim.tasks import build_task
from koopsim.train import prepare

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
    x, y = (t[:4] for t in task.split("train"))

    x = task.inputs(x)
    outputs = model(x)
    assert outputs.dtype == torch.float32
    assert outputs.isfinite().all()
    loss = task.loss(outputs, y)
    assert loss.shape == ()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(g.isfinite().all() for g in gradients)

    exact = copy.deepcopy(model).double()(x)
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
        _, trainer = prepare(short, CPU)
        steps = min(12, trainer.steps_per_epoch)
        for epoch in range(2):
            trainer.start_epoch(epoch)
            trainer.run(0, steps)
            losses.append(trainer.losses[:steps].clone())
        assert count_parameters(trainer.model) == count_parameters(model)
    assert torch.equal(losses[0], losses[2])
    assert torch.equal(losses[1], losses[3])
    assert losses[1].mean() < losses[0].mean()
