"""Trials of image regression as one population: trials x pictures networks, one step for all of them.

    of a slot: a trial, so a network for each picture        of all: the pictures, the shapes

The same slots as `stack.Stacked`; a batch is all pixels of a picture, so nothing is shuffled. A trial gives the numbers
it gives alone (`trial.AlonePictures`, up to the order of additions).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from koopsim.config import Run
from koopsim.search.stack import Slots, padded_schedule
from koopsim.search.trial import finite_mean, members_of, put
from koopsim.tasks import ImageRegression
from koopsim.train.pictures import bytes_of, population_of, put_member
from koopsim.train.population import free_memory


def fitting(run: Run, task: ImageRegression) -> int:
    """How many trials like this one fit into the device's memory, at least one."""
    pixels = len(task.split(run.train_on)[0])
    each = len(task.names) * bytes_of(run.model, pixels, run.precision)
    return max(1, int(0.8 * free_memory(task.device)) // each)


class StackedPictures(Slots):
    """Trains the trials in its slots, a network for each picture."""

    def __init__(
        self,
        runs: Sequence[Run],
        task: ImageRegression,
        device: torch.device,
        max_t: int,
        capture: bool | None = None,
        compile: bool = False,
    ):
        self.task, self.device, self.max_t, self.compile = task, device, max_t, compile
        self.pictures, self.steps_per_epoch = len(task.names), task.config.steps_an_epoch
        self.capture = device.type == "cuda" if capture is None else capture
        self.runs = list(runs)
        self.ages = [0] * len(runs)
        self._assemble(runs)

    def _assemble(self, runs: Sequence[Run]) -> None:
        first = runs[0]
        members = [member for run in runs for member in members_of(run, self.pictures)]
        schedules = torch.stack([self.schedule(run) for run in runs]).repeat_interleave(self.pictures, dim=0)
        self.population = population_of(
            self.task, members, first.recipe, first.precision, first.train_on, self.capture, self.compile, schedules
        )

    def schedule(self, run: Run) -> Tensor:
        return padded_schedule(run.recipe, self.steps_per_epoch, self.max_t).to(self.device)

    def rows(self, slot: int) -> range:
        """The members of a slot, a picture each."""
        return range(slot * self.pictures, (slot + 1) * self.pictures)

    def warm_up(self) -> None:
        self.population.warm_up()

    def start(self, slot: int, run: Run) -> None:
        """A new trial in a slot, at its first step."""
        self.runs[slot], self.ages[slot] = run, 0
        for row, member in zip(self.rows(slot), members_of(run, self.pictures), strict=True):
            put_member(self.population, row, member, self.task, run.precision, run.train_on, self.schedule(run))

    def stop(self, slot: int) -> None:
        self.runs[slot] = None
        self.population.stop(self.rows(slot))

    def begin_epoch(self) -> None:
        """Every step sees all pixels: there is no order to draw."""

    def advance(self, first: int, last: int) -> None:
        self.population.run(last - first)

    def figures(self, slot: int) -> dict[str, float]:
        """Training loss of the epoch just finished and the PSNRs on the validation pixels; or `Diverged`."""
        rows, last = self.rows(slot), self.ages[slot] * self.steps_per_epoch
        loss = finite_mean(self.population.losses[rows.start : rows.stop, last - self.steps_per_epoch : last])
        models = [self.population.model(row) for row in rows]
        return {"train_loss": loss} | self.task.figures(self.task.psnrs(models, "valid"))

    def compact(self, keep: Sequence[int]) -> None:
        """Only these slots go on, closer together."""
        rows = [row for slot in keep for row in self.rows(slot)]
        old = {name: tensor[rows].clone() for name, tensor in self.population.state().items()}
        self.runs, self.ages = [self.runs[slot] for slot in keep], [self.ages[slot] for slot in keep]
        self._assemble([run for run in self.runs if run is not None])
        put(self.population.state(), old)
