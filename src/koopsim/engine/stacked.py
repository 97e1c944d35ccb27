"""Runs of equal shapes as one part: of a slot a run, and of a run its members (one, or one a picture).

    rows of the part:   slot 0: member 0, 1, ...   slot 1: member 0, 1, ...   ...   each with weights of its own
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from koopsim.config import Run, resolve_precision
from koopsim.engine import rehearsal
from koopsim.engine.answers import StackAnswers
from koopsim.engine.blocks import recomputed
from koopsim.engine.feeds import feed_of
from koopsim.engine.members import Rule
from koopsim.engine.part import Part, Way, schedule_of
from koopsim.engine.slots import Diverged, Slots
from koopsim.models import build
from koopsim.nn.products import multiplies_bf16
from koopsim.nn.synced import synchronised
from koopsim.tasks.base import Figures, ModelAnswers, Task

AT_ONCE = 16  # members that are judged together; their answers on a whole split are kept
PLAIN = Way()


def untrained(run: Run, seed: int, device: torch.device, make: Callable[[Run], nn.Module] | None = None) -> nn.Module:
    """A member before its first step: weights and random frequencies depend on the seed alone."""
    torch.manual_seed(seed)
    model = build(run.model) if make is None else make(run)
    return model.to(device, torch.float64 if run.precision == "float64" else torch.float32)


def on_device(run: Run, device: torch.device) -> Run:
    """The run in the precision that it really has there."""
    short = device.type == "cpu" and run.task.gains_by_bf16 and multiplies_bf16()
    return replace(run, precision=resolve_precision(run.precision, device.type, short))


class Stacked(Slots):
    """Runs of equal shapes as one part. `which` of the task's members: all, unless they do not fit together.

    `way`: whether steps are captured or compiled; precision is the runs' own.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        task: Task,
        device: torch.device,
        epochs: int,
        way: Way = PLAIN,
        which: Sequence[int] | None = None,
    ):
        self.task, self.device, self.epochs, self.way = task, device, epochs, way
        self.which = range(len(task.names)) if which is None else which
        self.runs, self.ages = [on_device(run, device) for run in runs], [0] * len(runs)
        self.part = self._part([run for run in self.runs if run is not None])
        self._judged: dict[int, Figures] = {}

    def _part(self, runs: list[Run]) -> Part:
        run, task = runs[0], self.task
        torch.set_float32_matmul_precision(task.products(run))
        torch.backends.cudnn.benchmark = True  # convolutions: the first steps try out which kernels are fastest
        models = [untrained(run, seed, self.device, task.model) for run in runs for seed in self._seeds(run)]
        if not self.way.world.alone:
            models = [synchronised(model) for model in models]
        if self.way.recompute:
            models = [recomputed(model) for model in models]
        data = task.data(run, [*self.which] * len(runs))
        feed = feed_of(data, run.recipe, models)
        schedules = [schedule_of(run.recipe, feed.epoch_steps, self.epochs) for run in runs]
        table = torch.stack(schedules).repeat_interleave(len(self.which), dim=0)
        way = replace(
            self.way, autocast=task.autocast(run), alone=task.by_itself, count=task.counted,
            rehearse=rehearsal.WANTED and rehearsal.indifferent(task, models[0]),
        )  # fmt: skip
        decays = any(run.recipe.weight_decay > 0 for run in runs)  # how much is in each schedule
        rule = replace(Rule.of(run.recipe, task.loss_scale(run)), decay=decays)
        part = Part(models, task.member_loss(run), feed, table, rule, way)
        part.seeds = [seed for run in runs for seed in self._seeds(run)]
        return part

    def _seeds(self, run: Run) -> list[int]:
        seeds = self.task.seeds(run)
        return [seeds[p] for p in self.which]

    def rows(self, slot: int) -> range:
        """The members of a slot."""
        return range(slot * len(self.which), (slot + 1) * len(self.which))

    @property
    def epoch_steps(self) -> int:
        return self.part.epoch_steps

    def warm_up(self) -> None:
        self.part.warm_up()

    def start(self, slot: int, run: Run) -> None:
        run = on_device(run, self.device)
        self.runs[slot], self.ages[slot] = run, 0
        schedule = schedule_of(run.recipe, self.epoch_steps, self.epochs)
        for row, seed in zip(self.rows(slot), self._seeds(run), strict=True):
            self.part.put(row, untrained(run, seed, self.device, self.task.model), schedule, seed)

    def stop(self, slot: int) -> None:
        self.runs[slot] = None
        self.part.members.stop(self.rows(slot))

    def begin_epoch(self) -> None:
        self.part.begin_epoch()

    def advance(self, first: int, last: int) -> None:
        self.part.advance(first, last)

    def finish_epoch(self) -> None:
        super().finish_epoch()
        self.part.ages = [age for age in self.ages for _ in self.which]
        self._judged.clear()

    def losses(self, slot: int) -> Tensor:
        """(members, steps): of the epoch so far, or just finished."""
        rows = self.rows(slot)
        return self.part.members.losses[rows.start : rows.stop]

    def figures(self, slot: int) -> Figures:
        loss = finite_mean(self.losses(slot))
        if slot not in self._judged:
            self._judge([s for s, run in enumerate(self.runs) if run is not None and s >= slot])
        return {"train_loss": loss} | self._judged.pop(slot)

    def _judge(self, slots: Sequence[int]) -> None:
        """The figures of the first few of these slots, all their members at once."""
        some = slots[: max(1, AT_ONCE // len(self.which))]
        which = [*self.which]
        found = self.judged([row for slot in some for row in self.rows(slot)], "valid", which * len(some))
        for i, slot in enumerate(some):
            self._judged[slot] = self.task.gathered(found[i * len(which) : (i + 1) * len(which)], which)

    def judged(self, rows: Sequence[int], split: str, which: Sequence[int]) -> list[Figures]:
        """The figures of members, a stack of them at once."""
        members = self.part.members
        if members.size == 1 and self.task.by_itself:
            own = members.template if members.whole and not members.averaged else members.model(0)
            answers = ModelAnswers([own], self.task.exact)
        else:
            answers = StackAnswers(members, rows, self.task.exact)
        return self.task.judged(answers, split, which)

    @property
    def sparse(self) -> bool:
        """A captured or compiled step has to be made again for it."""
        running = sum(run is not None for run in self.runs)
        made = self.part.capture or self.way.compile
        return 2 * running <= len(self.runs) if made else running < len(self.runs)

    def compact(self, keep: Sequence[int]) -> None:
        rows = [row for slot in keep for row in self.rows(slot)]
        old = {name: tensor[rows].clone() for name, tensor in self.part.members.state().items()}
        self.runs, self.ages = [self.runs[s] for s in keep], [self.ages[s] for s in keep]
        self.part = self._part([run for run in self.runs if run is not None])
        self.part.load(old, [age for age in self.ages for _ in self.which])

    def meet(self) -> None:
        """Before `state` and `judged`, by all processes: what is spread over them comes together."""
        self.part.members.meet()

    def state(self) -> dict[str, Tensor]:
        return self.part.state()

    def load(self, state: dict[str, Tensor], ages: Sequence[int]) -> None:
        self.ages = list(ages)
        self.part.load(state, [age for age in ages for _ in self.which])


def finite_mean(losses: Tensor) -> float:
    """The mean of an epoch's losses, or `Diverged`."""
    losses = losses.detach().double().cpu()
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        raise Diverged(f"the loss became {float(losses[tuple(bad[0])])} at step {int(bad[0][-1])} of the epoch")
    return float(losses.mean())
