"""Trials of equal shapes as one population: one step advances them all.

    of a slot: weights, schedule, seed, order of the data, age        of all: the data, the shapes, the batch size

All slots begin an epoch together, so they stand at the same place in it whatever their age, and a new trial takes a
slot between two epochs. The last batch of an epoch may be smaller: it is a second variant of the captured step.
A trial gives the numbers it gives alone (`trial.Alone`, up to the order of additions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from koopsim.config import Recipe, Run, to_dict
from koopsim.kinds import model_kind, task_kind
from koopsim.models import build
from koopsim.search.batched import batchable
from koopsim.search.batched_step import BatchedPopulation
from koopsim.search.together import Slot, together
from koopsim.search.trial import finite_mean, length, put
from koopsim.tasks import Task
from koopsim.tasks.augment import numbers
from koopsim.train.population import Population
from koopsim.train.schedule import adam_table
from koopsim.train.step import shuffle

OWN = ("learning_rate", "schedule", "step_size", "epochs", "warm_up", "weight_decay")  # may differ within a stack


def stackable(run: Run) -> bool:
    """Whether a run can be stacked: its model knows torch.vmap, which a solver's loop does not.

    Parameters can be averaged in a stack, running statistics cannot: of averaged models only those of pictures.
    """
    averages = run.recipe.average and not task_kind(run.task).many
    return model_kind(run.model).stackable and not averages


def stack_key(run: Run) -> str:
    """Runs with the same key can share a stack: all is equal but what a slot has of its own."""
    plain = Recipe()
    recipe = replace(run.recipe, **{name: getattr(plain, name) for name in OWN})
    recipe = replace(
        recipe, weight_decay=float(run.recipe.weight_decay > 0)
    )  # how much is a slot's own, whether is not
    return repr(to_dict(replace(run, model=model_kind(run.model).common(run.model), recipe=recipe, seed=0)))


def padded_schedule(recipe: Recipe, steps_per_epoch: int, max_t: int) -> Tensor:
    """(steps, 4), as long as a trial may last; one that ends earlier holds its last row."""
    table = adam_table(recipe, steps_per_epoch)
    rows = np.minimum(np.arange(max_t * steps_per_epoch), len(table) - 1)
    return torch.as_tensor(table[rows])


class Slots:
    """What stacks of trials have in common: who is in which slot (`None`: nobody), how old, and where they stand."""

    runs: list[Run | None]
    ages: list[int]
    population: Population
    capture: bool
    compile: bool

    def finish_epoch(self) -> None:
        self.ages = [age + (run is not None) for age, run in zip(self.ages, self.runs, strict=True)]

    @property
    def sparse(self) -> bool:
        """Whether closing the ranks pays: a captured or compiled step has to be made again for it."""
        running = sum(run is not None for run in self.runs)
        return 2 * running <= len(self.runs) if self.capture or self.compile else running < len(self.runs)

    def state(self) -> dict[str, Tensor]:
        return self.population.state()

    @torch.no_grad()
    def load(self, state: dict[str, Tensor], ages: list[int]) -> None:
        """Go on from what `state` gave; whatever else a trial has follows from its seed and age."""
        self.ages = list(ages)
        put(self.population.state(), state)

    def describe(self) -> dict[str, Any]:
        return {"engine": "stacked", "slots": len(self.runs), "captured": self.capture}


class Stacked(Slots):
    """Trains the trials in its slots."""

    def __init__(
        self,
        runs: Sequence[Run],
        task: Task,
        device: torch.device,
        max_t: int,
        capture: bool | None = None,
        compile: bool = False,
    ):
        run = runs[0]
        self.task, self.device, self.max_t, self.recipe = task, device, max_t, run.recipe
        self.runs = list(runs)
        self.ages = [0] * len(runs)
        self.x, self.y = task.split(run.train_on)
        self.size = min(run.recipe.batch_size, len(self.x))
        self.steps_per_epoch = -(-len(self.x) // self.size)
        torch.set_float32_matmul_precision("high" if run.precision == "tf32" else "highest")
        self.dtype = torch.float64 if run.precision == "float64" else torch.float32
        self.decays = any(r.recipe.weight_decay > 0 for r in runs)  # of one it is of all: see `stack_key`
        self.capture = device.type == "cuda" if capture is None else capture
        self.compile, self.autocast = compile, torch.bfloat16 if run.precision == "bf16" else None
        self.judged: dict[int, Slot] = {}  # stand-ins for the models, to be evaluated after an epoch
        self._assemble([self.fresh(r) for r in runs], torch.stack([self.schedule(r) for r in runs]))

    def fresh(self, run: Run) -> nn.Module:
        """The untrained model, the same that `prepare` makes."""
        torch.manual_seed(run.seed)
        return build(run.model).to(self.device, self.dtype)

    def schedule(self, run: Run) -> Tensor:
        return padded_schedule(run.recipe, self.steps_per_epoch, self.max_t).to(self.device)

    def _assemble(self, models: list[nn.Module], schedules: Tensor) -> None:
        """The population over these models; `begin_epoch` fills the orders."""
        count, n = len(models), len(self.x)
        self.order = torch.zeros(count, n, dtype=torch.int64, device=self.device)
        drawn = numbers(self.recipe) if self.recipe.augments else 0
        self.draws = torch.zeros(count, n, drawn, device=self.device) if drawn else None
        self.offsets = torch.arange(self.size, device=self.device)
        recipe = self.recipe
        if batchable(models[0], self.device) and self.autocast is None and not self.compile:
            self.population = BatchedPopulation(
                models, self._loss, self._batch, schedules, recipe.eps, recipe.clip_norm, self.decays
            )
            return
        self.population = Population(
            models,
            self._loss,
            self._batch,
            schedules,
            shared=(False, False),
            eps=recipe.eps,
            clip_norm=recipe.clip_norm,
            decay=self.decays,
            autocast=self.autocast,
            capture=self.capture,
            compile=self.compile,
        )

    def _loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.task.loss(model(x), y, smoothing=self.recipe.label_smoothing)

    def _batch(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Each slot's next rows; how many is the population's variant."""
        size = self.population.variant or self.size
        at = (steps % self.steps_per_epoch).unsqueeze(1) * self.size + self.offsets[:size]
        rows = self.order.gather(1, at)
        flat = rows.flatten()
        draws = None
        if self.draws is not None:
            places = rows.unsqueeze(-1).expand(-1, -1, self.draws.shape[-1])
            draws = self.draws.gather(1, places).flatten(0, 1)
        x = self.task.inputs(self.x.index_select(0, flat), self.recipe, draws)
        return x.unflatten(0, rows.shape), self.y.index_select(0, flat).unflatten(0, rows.shape)

    def warm_up(self) -> None:
        """Capture what an epoch needs, so that too little memory is found out before anything is trained."""
        for size in {self.size, len(self.x) - (self.steps_per_epoch - 1) * self.size}:
            self.population.variant = size
            self.population.warm_up()

    def start(self, slot: int, run: Run) -> None:
        """A new trial in a slot, at its first step."""
        self.runs[slot], self.ages[slot] = run, 0
        self.population.replace(slot, self.fresh(run), self.schedule(run))

    def stop(self, slot: int) -> None:
        self.runs[slot] = None
        self.population.stop([slot])

    def begin_epoch(self) -> None:
        """Shuffle for every trial as it would be shuffled alone: by its seed and its own epoch."""
        for slot, run in enumerate(self.runs):
            if run is not None:
                draws = None if self.draws is None else self.draws[slot]
                shuffle(self.order[slot], draws, run.seed, self.ages[slot])

    def advance(self, first: int, last: int) -> None:
        """Steps `first` to `last` (exclusive) of the epoch."""
        for position in range(first, last):
            self.population.variant = min(self.size, len(self.x) - position * self.size)
            self.population.run(1)

    def finish_epoch(self) -> None:
        super().finish_epoch()
        self.judged = together(self.population.stack, [s for s, run in enumerate(self.runs) if run is not None])

    def figures(self, slot: int) -> dict[str, float]:
        """Training loss of the epoch just finished and the figures on the validation split, once; or `Diverged`."""
        last = self.ages[slot] * self.steps_per_epoch
        loss = finite_mean(self.population.losses[slot, last - self.steps_per_epoch : last])
        return {"train_loss": loss} | self.task.evaluate(self.judged.pop(slot), "valid")

    def compact(self, keep: Sequence[int]) -> None:
        """Only these slots go on, closer together: what stopped no longer costs a step."""
        old = {name: tensor[list(keep)].clone() for name, tensor in self.population.state().items()}
        schedules = self.population.schedules[list(keep)].clone()
        self.runs, self.ages = [self.runs[s] for s in keep], [self.ages[s] for s in keep]
        stand_in = self.fresh(next(run for run in self.runs if run is not None))  # for the shapes
        self._assemble([stand_in] * len(keep), schedules)
        put(self.population.state(), old)


def longest(runs: Sequence[Run], max_t: int) -> int:
    """The epochs of the longest of these trials."""
    return max(length(run, max_t) for run in runs)
