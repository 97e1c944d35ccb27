"""One model on rows of numbers, by the engine: epochs of a part, and the weights of the best of them.

    part (engine/part.py) -> drive (engine/drive.py) -> after each epoch: the held-out loss, stop when it stays

What is left is the model as it is judged, Adam's moments and its age, so that `partial_fit` goes on where this ended.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from koopsim.config import ModelConfig, Recipe
from koopsim.engine.drive import Course, Steps, Stopped, drive
from koopsim.engine.feeds import Resident
from koopsim.engine.members import Rule
from koopsim.engine.part import Part, Way, schedule_of
from koopsim.models import build
from koopsim.tasks.base import Samples
from koopsim.tasks.row_losses import OfAnswers, RowLoss
from koopsim.tasks.table import FOLDS


@dataclass(frozen=True)
class HeldOut:
    """Stop when the held-out loss has not fallen by `tol` for so many epochs."""

    x: Tensor
    y: Tensor
    epochs: int
    tol: float


@dataclass
class Learnt:
    """A model, and where its training stands. The moments are None of a model that was only loaded."""

    model: nn.Module
    steps: int = 0
    mean: Tensor | None = None
    square: Tensor | None = None
    losses: list[float] = field(default_factory=list)  # of each epoch
    held_out: list[float] = field(default_factory=list)  # of each epoch, with early stopping


def untrained_model(config: ModelConfig, seed: int, device: torch.device) -> nn.Module:
    """Weights and random frequencies by the seed alone; the user's own random numbers stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(config).to(device, torch.float32)


def learn(
    learnt: Learnt, samples: Samples, loss: RowLoss, recipe: Recipe, seed: int, patience: HeldOut | None = None
) -> Learnt:
    """Train further, by a recipe from its beginning; Adam goes on with the moments there are."""
    part = _part(learnt, samples, loss, recipe)
    part.seeds, part.ages = [seed], [len(learnt.losses)]
    course = _Fitting(part, recipe.epochs, loss, patience)
    try:
        drive(course)
    except Stopped:
        raise KeyboardInterrupt from None
    members = part.members
    model = course.best if course.best is not None else members.model(0)
    done = learnt.steps + course.epoch * part.epoch_steps
    return Learnt(
        model.eval(), done, members.mean[0].clone(), members.square[0].clone(),
        learnt.losses + course.losses, learnt.held_out + course.held_out,
    )  # fmt: skip


def _part(learnt: Learnt, samples: Samples, loss: RowLoss, recipe: Recipe) -> Part:
    feed = Resident(samples, recipe, 1)
    steps = recipe.epochs * feed.epoch_steps
    if learnt.steps:  # Adam's corrections go by its age; of a model that goes on only the constant schedule is asked
        longer = replace(recipe, epochs=math.ceil((learnt.steps + steps) / feed.epoch_steps))
        rows = schedule_of(longer, feed.epoch_steps)[learnt.steps :][:steps]
    else:
        rows = schedule_of(recipe, feed.epoch_steps)
    model = copy.deepcopy(learnt.model).to(samples.x.device).train()
    whole = OfAnswers(loss, feed.size >= FOLDS)
    part = Part([model], whole, feed, rows.unsqueeze(0), Rule.of(recipe), Way())
    if learnt.mean is not None and learnt.square is not None:
        part.members.mean[0].copy_(learnt.mean)
        part.members.square[0].copy_(learnt.square)
    return part


class _Fitting(Course):
    """A part and its epochs. Nothing is saved on the way: a fit is over, or it was not."""

    def __init__(self, part: Part, epochs: int, loss: RowLoss, patience: HeldOut | None):
        self.part, self.epochs, self.loss, self.patience = part, epochs, loss, patience
        self.device, self.epoch, self.ended = part.device, 0, False
        self.losses: list[float] = []
        self.held_out: list[float] = []
        self.best: nn.Module | None = None
        self.bar, self.waited = math.inf, 0
        part.warm_up()

    def turn(self) -> Steps | None:
        return None if self.ended or self.epoch == self.epochs else self.part

    def save(self) -> None:
        return

    def over(self, steps: Steps) -> None:
        self.epoch += 1
        mean = float(self.part.members.losses.double().mean())
        if not math.isfinite(mean):
            raise ValueError(
                f"The loss became {mean} in epoch {self.epoch}: the learning rate is too large for this data, or the "
                "data too large for float32; try a smaller learning_rate, and leave scale at True."
            )
        self.losses.append(mean)
        if self.patience is not None:
            self._judge(self.patience)

    def _judge(self, patience: HeldOut) -> None:
        model = self.part.members.model(0).eval()
        with torch.no_grad():
            found = float(self.loss(model(patience.x), patience.y))
        if self.best is None or found < min(self.held_out):
            self.best = model
        self.held_out.append(found)
        if found < self.bar - patience.tol:
            self.bar, self.waited = found, 0
        else:
            self.waited += 1
        self.ended = self.waited >= patience.epochs
