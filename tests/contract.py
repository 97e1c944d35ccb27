"""What every preset promises, built in or a plugin's, whatever its model and task: `test_contract.py` runs it."""

import copy
import dataclasses
from dataclasses import replace

import torch

from koopsim.config import Run
from koopsim.engine.stacked import Stacked
from koopsim.implicit.base import SolverModel
from koopsim.kinds import model_kind
from koopsim.models import build
from koopsim.nn import count_parameters
from koopsim.tasks import build_task

CPU = torch.device("cpu")
STEPS = 12  # of an epoch
SMALL = {"horizon": 5, "train": 300, "valid": 20, "test": 20, "size": 16, "steps_an_epoch": STEPS, "count": 2}


def small(run: Run) -> Run:
    """The run with what is large of its task cut down, whatever task that is."""
    given = {entry.name: getattr(run.task, entry.name) for entry in dataclasses.fields(run.task)}
    cut = {name: min(given[name], most) for name, most in SMALL.items() if isinstance(given.get(name), int)}
    return replace(run, task=replace(run.task, **cut))


def converged(model: torch.nn.Module) -> bool:
    """Whether all of the model's last solve converged; a model without a solver always has."""
    return not isinstance(model, SolverModel) or float(model.diagnostics()["unconverged"]) == 0.0


def keeps_the_contract(run: Run) -> None:
    """Builds, counts, runs in float32 and float64, is judged, learns, and is the same again from its seed."""
    task = build_task(run.task, CPU)
    torch.manual_seed(0)
    model = build(run.model)
    assert isinstance(model, SolverModel) == model_kind(run.model).has_solver
    answers(model, run, task)
    for split in ("valid", "test"):
        figures = task.evaluate(model, split)
        assert task.metric in figures
        assert all(isinstance(value, float) for value in figures.values())
    learns(run, task, count_parameters(model))


def answers(model: torch.nn.Module, run: Run, task) -> None:
    """Finite outputs, loss and gradients; float64 agrees with float32."""
    data = task.data(run, [0])
    x, y = (data.x[:4], data.y[:4]) if hasattr(data, "inputs") else (data.x[:4], data.y[0, :4])
    x = task.inputs(x)
    outputs = model(x)
    assert outputs.dtype == torch.float32
    assert outputs.isfinite().all()
    loss = task.loss(outputs, y)
    assert loss.shape == ()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(g.isfinite().all() for g in gradients)
    exact = copy.deepcopy(model).double()(x.double() if x.is_floating_point() else x)
    assert exact.dtype == torch.float64
    if converged(model):  # a solve that stopped short depends on every rounding
        torch.testing.assert_close(outputs.double(), exact, rtol=5e-2, atol=5e-3)


def learns(run: Run, task, parameters: int) -> None:
    """Two epochs, twice: the loss of every member falls, and each is the same again."""
    short = replace(run, recipe=replace(run.recipe, epochs=2))
    found = []
    for _ in range(2):
        slots = Stacked([short], task, CPU, epochs=2)
        assert slots.losses(0).shape == (len(task.names), slots.epoch_steps)
        steps = min(STEPS, slots.epoch_steps)
        losses = []
        for _ in range(2):
            slots.begin_epoch()
            slots.advance(0, steps)
            losses.append(slots.losses(0)[:, :steps].clone())
            slots.finish_epoch()
        found.append(torch.stack(losses))
        assert slots.part.members.flat.shape == (len(task.names), parameters)
    assert found[0].isfinite().all()
    assert torch.equal(found[0], found[1])
    assert (found[0][1].mean(1) < found[0][0].mean(1)).all()
