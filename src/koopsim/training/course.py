"""A run's course: groups of members one after the other, an epoch's line, a checkpoint, the result.

    open a group -> epochs of steps -> a line of metrics.jsonl each -> put the group away -> the next

`engine/drive.py` drives it. A checkpoint holds the groups that are done, the one in training with Adam's moments, and
how far it is; resumed, it goes on with the same numbers as if nothing had stopped it.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch import nn

from koopsim.config import Run, to_dict
from koopsim.engine.best_epoch import BestEpoch
from koopsim.engine.checkpoint import (
    State,
    lasting,
    models_of,
    read_run,
    refuse_other_layout,
    restore_random,
    write_checkpoint,
)
from koopsim.engine.drive import Course, Steps
from koopsim.engine.memory import cut, fitting_groups
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked, on_device
from koopsim.errors import KoopsimError, LostOthers
from koopsim.nn import count_parameters
from koopsim.progress import describe
from koopsim.runs import RunDirectory
from koopsim.tasks import Task
from koopsim.training.session import Session

log = logging.getLogger(__package__)


class Training(Course):
    """A run: where it stands, and how it goes on."""

    def __init__(self, run: Run, directory: RunDirectory, session: Session, task: Task):
        self.run, self.directory, self.session, self.task = run, directory, session, task
        self.device, self.world, self.together = session.device, session.world, session.shard
        count, each = len(task.names), task.bytes_of(run)
        self.groups = [range(count)] if each is None else fitting_groups(count, each, self.device, task.at_once)
        self.done: list[State] = []
        self.slots: Stacked | None = None
        self.waiting: State = {}  # of a group that was interrupted
        self.random: State = {}  # the generators, as they were then
        self.layout: dict[str, list[int]] | None = None
        self.lost: dict[int, str] = {}  # rows of what is streamed that cannot be read
        self.epoch, self.seconds, self.set_up = 0, 0.0, 0.0
        self.epoch_steps = task.epoch_steps(run)
        self.patience = self._patience()

    def _patience(self) -> BestEpoch | None:
        """Of one model that has rows to be judged on which it does not learn."""
        epochs = self.run.recipe.patience
        if epochs is None:
            return None
        if self.run.train_on != "train":
            raise KoopsimError("Patience goes by the validation part, which this run learns too: --train-on train.")
        if self.task.many or self.session.shard:
            raise KoopsimError("Patience is for one model that is whole; leave --recipe.patience away here.")
        return BestEpoch(epochs, self.task.metric, self.task.lower_is_better)

    # ------------------------------------------------------------ turns

    def turn(self) -> Stacked | None:
        if len(self.done) == len(self.groups):
            return None
        if self.slots is None:
            self._open()
        return self.slots

    def _open(self) -> None:
        """The next group, from where it was interrupted."""
        began, group = time.perf_counter(), self.groups[len(self.done)]
        session, epochs = self.session, self.run.recipe.epochs
        way = Way(
            capture=session.capture, compile=session.compile, world=self.world, shard=session.shard,
            recompute=session.recompute,
        )  # fmt: skip
        slots = Stacked([self.run], self.task, self.device, epochs, way, group)
        if self.waiting:
            refuse_other_layout(self.layout, slots.part.members, self.directory.checkpoint_file)
            if self.position > slots.epoch_steps:
                raise KoopsimError(f"{self.directory.checkpoint_file} is at a step which this run never reaches.")
            slots.load(self.waiting, [self.epoch])
            self.waiting = {}
        slots.warm_up()
        if self.random:  # after all that draws: a module with dropout goes on with the numbers it would have had
            restore_random(self.random)
            self.random = {}
        if not self.world.first:  # dropout of its own, from where the first one's numbers are
            torch.manual_seed(int(torch.randint(2**62, ())) + self.world.rank)
        self.slots, self.set_up = slots, self.set_up + time.perf_counter() - began

    @property
    def step(self) -> int:
        """Steps of finished epochs, over all groups."""
        return (len(self.done) * self.run.recipe.epochs + self.epoch) * self.epoch_steps

    @property
    def steps(self) -> int:
        return len(self.groups) * self.run.recipe.epochs * self.epoch_steps

    def after(self, steps: Steps, first: int, last: int, seconds: float) -> None:
        assert self.slots is not None
        self.seconds += seconds
        losses = self.slots.losses(0)[:, first:last]
        if not bool(losses.isfinite().all()):
            self._not_a_number(losses, first)
        self.session.listen({"event": "progress", "step": self.step + last, "steps": self.steps})

    def _not_a_number(self, losses: torch.Tensor, first: int) -> None:
        if not self.world.first:
            raise LostOthers("The loss became no number, as rank 0 says.")
        row, at = (~losses.isfinite()).nonzero()[0].tolist()
        name = self.task.names[self.groups[len(self.done)][row]]
        run = self.run
        cure = " or --recipe.clip-norm 1.0" if run.recipe.clip_norm is None else ""
        cure += ", or --precision bf16" if run.precision == "fp16" else ""
        raise KoopsimError(
            f"The loss{f' of {name}' if name else ''} became {float(losses[row, at])} at step {self.step + first + at} "
            f"(epoch {self.epoch + 1}) with learning rate {run.recipe.learning_rate:g}. Try a smaller "
            f"--recipe.learning-rate{cure}; the last checkpoint is from before this."
        )

    def over(self, steps: Steps) -> None:
        """Write the epoch's line; a group that is through gives its place to the next."""
        slots = self.slots
        assert slots is not None
        self.epoch += 1
        slots.meet()
        self._count_lost(slots)
        if self.world.first:
            self._note(slots)
        enough = self.epoch == self.run.recipe.epochs
        if self.patience is not None:  # the first process judges, all stop
            enough |= self.world.agreed(0, self.world.first and self.patience.over(self.epoch))[1]
        if enough:
            self.layout = slots.part.members.layout()
            self.done.append((self.patience and self.patience.state) or lasting(slots.state()))
            slots.part.feed.close()
            self.slots, self.epoch, self.must_save = None, 0, True

    def _count_lost(self, slots: Stacked) -> None:
        """What could not be read and was left out, of all processes together; news is told."""
        if not getattr(self.task, "skip", False):
            return
        before, shards = len(self.lost), getattr(self.task, "lost_shards", ())
        for found in self.world.gathered(dict(slots.part.feed.lost)):
            self.lost |= found
        if self.world.first and (len(self.lost) > before or (shards and self.epoch == 1)):
            count = f"{len(self.lost):,} pictures" + (f" and {len(shards):,} files or row groups" if shards else "")
            told = f"{count} cannot be read and are left out. The first: {[*shards, *self.lost.values()][0]}"
            self.session.listen({"event": "note", "text": told})

    def _note(self, slots: Stacked) -> None:
        """An epoch's line, where the first process writes it."""
        group = self.groups[len(self.done)]
        line: dict[str, Any] = {"epoch": self.epoch, "step": self.step, "seconds": self.seconds}
        figures = None
        if self.run.train_on == "train":
            figures = self.task.gathered(slots.judged(range(len(group)), "valid", group), group)
        if self.patience is not None:
            self.patience.judge(self.epoch, figures or {}, slots.state())
        line |= self.task.line(slots.losses(0), figures)
        line |= {"unreadable": len(self.lost)} if self.lost else {}
        totals = slots.part.gradients.diagnostics.items()
        line |= {name: float(total) / self.epoch_steps for name, total in totals}
        if len(self.groups) > 1:
            line["group"] = len(self.done) + 1
        self.directory.append_metrics(line)
        log.info("%s: epoch %d/%d  %s", self.directory.path, self.epoch, self.run.recipe.epochs, describe(line))
        self.session.listen({"event": "epoch", **line})

    # ------------------------------------------------------------ where it stands

    def save(self) -> None:
        """Adam's moments only of the group in training."""
        if self.slots is not None:
            self.slots.meet()
        if not self.world.first:
            return
        parts = dict(enumerate(self.done))
        if self.slots is not None:
            parts[len(self.done)] = self.slots.state()
            self.layout = self.slots.part.members.layout()
            if self.patience is not None and self.patience.state:
                parts[len(self.groups)] = self.patience.state
        far = {"done": len(self.done), "groups": len(self.groups), "epoch": self.epoch, "step": self.position}
        header = {"run": far | {"seconds": self.seconds}, "layout": self.layout}
        write_checkpoint(self.directory.checkpoint_file, parts, header)
        if self.session.mirror is not None:
            self.session.mirror.push(self.directory.path)

    def resume(self) -> None:
        """Go on from the checkpoint, where there is one; a broken or foreign file is refused."""
        file = self.directory.checkpoint_file
        if file.exists():
            parts, far, rest, self.layout = read_run(file, self.run)
            if far["groups"] > len(self.task.names):
                raise KoopsimError(f"{file} is of another run: {far['groups']} groups of {len(self.task.names)}.")
            self.groups = cut(len(self.task.names), far["groups"])  # as it was begun
            self.done = [parts.get(g, {}) for g in range(far["done"])]
            self.waiting = parts.get(far["done"], {})
            self.epoch, self.position, self.seconds = far["epoch"], far["step"], float(far["seconds"])
            taken = self.waiting.get("steps", torch.empty(0))
            if bool((taken != self.epoch * self.epoch_steps + self.position).any()):
                raise KoopsimError(f"{file} is not what was written: its header and its tensors differ in their steps.")
            self._refuse_early()
            if self.epoch == self.run.recipe.epochs and self.waiting:  # of before: all epochs done, not yet put away
                self.done, self.waiting, self.epoch = [*self.done, self.waiting], {}, 0
            self.random = rest
            if self.patience is not None:
                lines = [line for line in self.directory.read_metrics() if line["step"] <= self.step]
                self.patience.recall(lines, parts.get(len(self.groups), {}))
        if self.world.first:
            self.directory.forget_metrics_after(self.step)

    def _refuse_early(self) -> None:
        """A group that is done took all its steps, unless patience ended it: else a header was edited."""
        whole = self.run.recipe.epochs * self.epoch_steps
        for number, state in enumerate(self.done, 1):
            if self.patience is None and bool((state.get("steps", torch.empty(0)) != whole).any()):
                file = self.directory.checkpoint_file
                raise KoopsimError(f"{file} is not what was written: group {number} is called done before its end.")

    # ------------------------------------------------------------ what came of it

    def models(self) -> list[nn.Module]:
        """The trained models, in the order of the task's members."""
        file = self.directory.checkpoint_file
        return [m.to(self.device) for state in self.done for m in models_of(self.run, state, file, self.task.model)]

    def result(self, name: str) -> dict[str, Any]:
        models = self.models()
        many = {"pictures": list(self.task.names)} if self.task.many else {}
        capture, lines = self.session.capture, self.directory.read_metrics()
        steps = self.steps if self.patience is None else int(lines[-1]["step"])
        best = {} if self.patience is None else {"best_epoch": self.patience.at}
        return {
            "name": name,
            "parameters": count_parameters(models[0]),
            **{split: self.task.evaluate(models, split) for split in self.task.reported(self.run)},
            **self.task.concluded(models),
            **many,
            "train_seconds": self.seconds,
            "milliseconds_per_step": 1e3 * self.seconds / steps,
            "steps": steps,
            **best,
            "captured": self.device.type == "cuda" if capture is None else capture,
            "device": str(self.device),
            **({} if self.world.alone else {"processes": self.world.size}),
            **self._unreadable(),
            "precision": on_device(self.run, self.device).precision,
            "metrics": lines,
            "run": to_dict(self.run),
            "environment": self.directory.read_environment(),
            "set_up_seconds": self.set_up,
        }

    def _unreadable(self) -> dict[str, Any]:
        why = [*getattr(self.task, "lost_shards", ()), *self.lost.values()]
        return {"unreadable": {"count": len(why), "first": why[:10]}} if why else {}
