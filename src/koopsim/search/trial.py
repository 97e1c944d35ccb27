"""A trial: a configuration, and what became of it. And a trial trained by itself.

    waiting -> running -> finished | pruned | diverged | failed

`Alone` is the readable twin of the stack (stack.py), the slot of models that cannot be stacked, and what a Ray worker
runs; `AlonePictures` is the same for image regression (stacked_pictures.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from koopsim.config import Run
from koopsim.files.tensors import require_match
from koopsim.kinds import model_kind, task_kind
from koopsim.search.bandwidth import with_median_bandwidth
from koopsim.search.space import is_median, trial_run
from koopsim.spaces import BANDWIDTH, SearchSpace
from koopsim.tasks import ImageRegression, Task
from koopsim.train import prepare
from koopsim.train.loop import untrained
from koopsim.train.pictures import Member, population_of

Listener = Callable[[dict[str, Any]], None]


class Diverged(Exception):
    """A loss that is not a number: the trial is over, and nobody else's business."""


@dataclass
class Trial:
    """What a search knows of one configuration."""

    index: int
    values: dict[str, Any]  # as they were drawn
    run: Run
    status: str = "waiting"
    reason: str = ""  # why it stopped, in words
    curve: list[dict[str, Any]] = field(default_factory=list)  # a line an epoch: t, seconds, train_loss, figures

    @property
    def t(self) -> int:
        """Its age in epochs."""
        return self.curve[-1]["t"] if self.curve else 0

    def last(self, metric: str) -> float | None:
        """The metric as last reported, which is what the paper chooses by (scope `last`)."""
        return self.curve[-1].get(metric) if self.curve else None

    @property
    def over(self) -> bool:
        return self.status not in ("waiting", "running")

    def end(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason


def draw_trials(base: Run, space: SearchSpace, seed: int) -> list[Trial]:
    """Every trial of a search; one whose values cannot go together is there too, as failed."""
    trials = []
    for index in range(space.trials):
        values = space.sample(seed, index)
        try:
            trials.append(Trial(index, values, trial_run(base, values, index)))
        except Exception as error:
            trials.append(Trial(index, values, base, "failed", str(error)))
    return trials


def settled(trial: Trial, task: Task, device: torch.device) -> Run:
    """The trial's run with every value a number, a bandwidth from the data included."""
    value = trial.values.get(BANDWIDTH)
    if isinstance(value, str) and is_median(value):
        factor = float(value.partition("*")[2] or 1)
        return with_median_bandwidth(trial.run, task, factor, device)
    return trial.run


def length(run: Run, max_t: int) -> int:
    """How many epochs a trial may have: the recipe's, and no more than the search's."""
    return min(run.recipe.epochs, max_t)


class Alone:
    """One trial by itself, epoch by epoch."""

    def __init__(self, run: Run, task: Task, device: torch.device, capture: bool | None = None, room: int = 0):
        self.run, self.task, self.room = run, task, room
        _, self.trainer = prepare(run, device, capture, task=task, room=room)
        self.trainer.adaptive = False  # no captures in the midst of other trials
        self.steps_per_epoch = self.trainer.steps_per_epoch
        self.trainer.warm_up()
        rest = len(self.trainer.x) % self.trainer.size
        if self.trainer.capture and rest:  # the last batch of an epoch, while nobody else is at work
            self.trainer.graph(rest)

    def can_become(self, run: Run) -> bool:
        """Whether another trial of the same group can take over, and with it what was captured.

        A model with a solver may have chosen settings of its own on the way, so it is built anew.
        """
        return model_kind(run.model).can_take_over and run.recipe.epochs <= self.room

    def become(self, run: Run) -> None:
        """Begin that trial in the place of this one."""
        self.trainer.restart(untrained(run, self.trainer.device), run.recipe, run.seed)
        self.run = run

    def begin_epoch(self, t: int) -> None:
        self.trainer.start_epoch(t)
        self.trainer.tune()

    def advance(self, first: int, last: int) -> None:
        self.trainer.run(first, last)

    def figures(self) -> dict[str, float]:
        """Training loss of the epoch and the figures on the validation split."""
        loss = finite_mean(self.trainer.losses)
        return {"train_loss": loss} | self.task.evaluate(self.trainer.result(), "valid")

    def state(self) -> dict[str, Tensor]:
        return self.trainer.state_tensors()

    @torch.no_grad()
    def load(self, state: dict[str, Tensor], t: int) -> None:
        """Go on in epoch `t` from what `state` gave."""
        self.trainer.start_epoch(t)
        for name, value in state.items():
            if name.startswith("diagnostics."):
                self.trainer.diagnostics[name.removeprefix("diagnostics.")] = value.to(self.trainer.device)
        put(self.trainer.state_tensors(), state)


def members_of(run: Run, pictures: int) -> list[Member]:
    """A trial's networks, one a picture."""
    return [Member(p, run.model, run.recipe.learning_rate, run.seed * 1_000_003 + p) for p in range(pictures)]


class AlonePictures:
    """One trial of image regression: a network a picture; judged by the mean over the pictures."""

    def __init__(self, run: Run, task: ImageRegression, device: torch.device, capture: bool | None = None):
        self.run, self.task, self.t = run, task, 0
        self.steps_per_epoch = task.config.steps_an_epoch
        members = members_of(run, len(task.names))
        capture = device.type == "cuda" if capture is None else capture
        self.population = population_of(task, members, run.recipe, run.precision, run.train_on, capture)
        self.population.warm_up()

    def begin_epoch(self, t: int) -> None:
        self.t = t

    def advance(self, first: int, last: int) -> None:
        self.population.run(last - first)

    def figures(self) -> dict[str, float]:
        losses = self.population.losses[:, self.t * self.steps_per_epoch : (self.t + 1) * self.steps_per_epoch]
        loss = finite_mean(losses)
        return {"train_loss": loss, **self.task.evaluate(self.population.models(), "valid")}  # pyright: ignore

    def state(self) -> dict[str, Tensor]:
        return self.population.state()

    @torch.no_grad()
    def load(self, state: dict[str, Tensor], t: int) -> None:
        self.t = t
        put(self.population.state(), state)


def alone(
    run: Run, task: Task, device: torch.device, capture: bool | None = None, room: int = 0
) -> Alone | AlonePictures:
    """The trial by itself, whatever its task."""
    if task_kind(run.task).many:
        assert isinstance(task, ImageRegression)
        return AlonePictures(run, task, device, capture)
    return Alone(run, task, device, capture, room)


def finite_mean(losses: Tensor) -> float:
    """The mean of an epoch's losses, or `Diverged`."""
    losses = losses.detach().double().cpu()
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        raise Diverged(f"the loss became {float(losses[tuple(bad[0])])} at step {int(bad[0][-1])} of the epoch")
    return float(losses.mean())


def put(own: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """Copy `state` into the tensors of the same names."""
    theirs = {name: t for name, t in state.items() if name in own}
    require_match(own, theirs, "The saved state", "state of another search")
    for name, tensor in own.items():
        tensor.copy_(state[name])
