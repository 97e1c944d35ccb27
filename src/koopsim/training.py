"""A run from its first step to its result, through whatever stops it on the way.

    configuration -> epochs of steps -> metrics.jsonl, checkpoint -> result.json

A run that was killed at any moment goes on from its last checkpoint and ends with the same numbers as one that was not:
the order of the data depends on seed and epoch alone, and lines of metrics.jsonl that the checkpoint does not know of
are dropped and written again. Members that do not fit the device together train in groups, one after the other.
"""

from __future__ import annotations

import logging
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from koopsim.config import Run, from_dict, resolve_precision, to_dict
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
from koopsim.engine.drive import Course, Steps, drive
from koopsim.engine.memory import cut, device_memory, fitting_groups
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.engine.threads import few_threads
from koopsim.engine.world import ALONE, World
from koopsim.errors import KoopsimError, LostOthers
from koopsim.files import folders
from koopsim.files.mirror import Mirror
from koopsim.kinds import task_kind
from koopsim.nn import count_parameters
from koopsim.progress import describe
from koopsim.runs import LOOKS, RUN_FILES, RunDirectory, write_json
from koopsim.tasks import Task, build_task
from koopsim.tasks.fingerprint import fingerprint_of
from koopsim.tasks.fits import refuse_misfits
from koopsim.tasks.inputs import note_inputs

log = logging.getLogger(__name__)
Listener = Callable[[dict[str, Any]], None]


def unheard(event: dict[str, Any]) -> None:
    """Who listens where nobody does."""


@dataclass(frozen=True)
class Session:
    """Where something is trained, and who hears of it.

    capture   replay steps from CUDA graphs; None: where there is CUDA
    compile   let torch.compile fuse small kernels
    world     the processes that train together; the first of them writes and speaks
    shard     they share the model too, not only the batch;   recompute   its blocks again in the backward pass
    mirror    where the run directory is kept besides, for machines that do not share it
    """

    device: torch.device
    capture: bool | None = None
    compile: bool = False
    listen: Listener = unheard
    world: World = ALONE
    shard: bool = False
    recompute: bool = False
    mirror: Mirror | None = None


def start_run(
    run: Run, out: Path, name: str, session: Session, overwrite: bool = False, task: Task | None = None
) -> dict[str, Any]:
    """A new run in `out`; data that is missing or broken stops here, before anything is written.

    `task`: the run's own, where no configuration can build it.
    """
    if not session.world.first:
        return _follow(out, session, task)
    run = settled_run(run, session) if task is None else run
    with folders.held(out):
        RunDirectory.refuse_taken(out, overwrite)
        if session.mirror is not None and not overwrite and session.mirror.there():
            raise KoopsimError(
                f"{session.mirror.url} already holds a run: go on with 'koopsim train --resume {out} --storage "
                f"{session.mirror.url}', or add --overwrite to start again."
            )
        with folders.replacing(out, overwrite):
            task = task or build_task(run.task, session.device)
            directory = RunDirectory.create(out, run, name, overwrite)
        if session.mirror is not None:
            session.mirror.push(out)
        return train_run(run, directory, name, session, task=task)


def resume_run(out: Path, session: Session, task: Task | None = None) -> dict[str, Any]:
    """Go on with the run in `out`, by its own configuration; a finished one is read. `task`: as in `start_run`."""
    if not session.world.first:
        return _follow(out, session, task)
    if session.mirror is not None:
        fetched(out, session.mirror)
    folders.refuse_replaced(out, "train")
    directory = RunDirectory(out)
    name, run = directory.read_config()
    if directory.result_file.exists():
        session.world.told(None)
        return directory.read_result()
    return train_run(run, directory, name, session, resume=True, task=task)


def mirror_of(url: str | None) -> Mirror | None:
    """A run directory's files at a URL; what relies on others comes last."""
    last = ("checkpoint.safetensors", "result.json")
    names = [name for name in (*RUN_FILES, LOOKS) if name not in last]
    return None if url is None else Mirror(url, (*names, *last))


def fetched(out: Path, mirror: Mirror) -> None:
    """The run at a URL, into `out`; what is no run replaces nothing."""
    with RunDirectory(out).held():
        with tempfile.TemporaryDirectory(prefix="koopsim-") as folder:
            if Mirror(mirror.url, mirror.names[:1]).fetch(Path(folder)):
                RunDirectory(folder).read_config()
        mirror.fetch(out)


def settled_run(run: Run, session: Session) -> Run:
    """The run with what depends on this machine decided, so that it goes on alike on another one; it is said."""
    config, told = task_kind(run.task).settled(run.task, device_memory(session.device))
    if told:
        session.listen({"event": "note", "text": told})
    return run if config == run.task else replace(run, task=config)


def _follow(out: Path, session: Session, task: Task | None) -> dict[str, Any]:
    """What the other processes of a run do: the same steps by the first one's configuration, and nothing written."""
    world = session.world
    said = world.told(None)  # once the first one's folder is there
    if said is None:
        return {}
    run = from_dict(Run, said["run"])
    if session.mirror is not None:  # its own copy: `out` may be the first one's, or older
        with tempfile.TemporaryDirectory(prefix="koopsim-") as folder:
            session.mirror.fetch(Path(folder))
            return _followed(run, RunDirectory(folder), replace(session, mirror=None), task, said)
    return _followed(run, RunDirectory(out), session, task, said)


def _followed(
    run: Run, directory: RunDirectory, session: Session, task: Task | None, said: dict[str, Any]
) -> dict[str, Any]:
    world, resume, fingerprint = session.world, said["resume"], said["fingerprint"]
    own, problem = f"Rank {world.rank} on {platform.node()}", ""
    try:
        if not directory.config_file.exists() or to_dict(directory.read_config()[1]) != said["run"]:
            where = directory.path.resolve()
            problem = f"{own} does not see the run of rank 0 in {where}; give an --out on a path that all machines "
            problem += "share, or a --storage URL."
        else:
            task = build_task(run.task, session.device) if task is None else task
            other = fingerprint_of(task) != fingerprint
            problem = f"{own} has other data than rank 0; give both the same." if other else ""
    except KoopsimError as error:
        problem = f"{own}: {error}"
    world.all_well(problem)
    assert task is not None
    training = Training(run, directory, session, task)
    if resume:
        training.resume()
    drive(training)
    return {}


def train_run(
    run: Run, directory: RunDirectory, name: str, session: Session, resume: bool = False, task: Task | None = None
) -> dict[str, Any]:
    """Train `run` in `directory` and return its result; the listener hears of progress and of each epoch."""
    with directory.held():
        task = build_task(run.task, session.device) if task is None else task
        refuse_misfits(run, task)
        fingerprint = fingerprint_of(task)
        directory.check_data(fingerprint, note=True)
        note_inputs(directory.path, task)
        session.world.told({"run": to_dict(run), "resume": resume, "fingerprint": fingerprint})
        session.world.all_well()
        training = Training(run, directory, session, task)
        if resume:
            training.resume()
        log.info("%s: %s in %s on %s", name, "goes on" if resume else "begins", directory.path, session.device)
        work = task.work(run) if session.device.type == "cpu" else None
        with nullcontext() if work is None else few_threads(work):
            drive(training)
            result = training.result(name)
        if "test" in result:
            directory.note_look(name, result["test"])
        write_json(directory.result_file, result)
        if session.mirror is not None:
            session.mirror.push(directory.path)
        log.info("%s: finished after %.1f s of training", name, result["train_seconds"])
    return result


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
            if self.epoch == self.run.recipe.epochs and self.waiting:  # of before: all epochs done, not yet put away
                self.done, self.waiting, self.epoch = [*self.done, self.waiting], {}, 0
            self.random = rest
            if self.patience is not None:
                lines = [line for line in self.directory.read_metrics() if line["step"] <= self.step]
                self.patience.recall(lines, parts.get(len(self.groups), {}))
        if self.world.first:
            self.directory.forget_metrics_after(self.step)

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
            "precision": resolve_precision(self.run.precision, self.device.type),
            "metrics": lines,
            "run": to_dict(self.run),
            "environment": self.directory.read_environment(),
            "set_up_seconds": self.set_up,
        }

    def _unreadable(self) -> dict[str, Any]:
        why = [*getattr(self.task, "lost_shards", ()), *self.lost.values()]
        return {"unreadable": {"count": len(why), "first": why[:10]}} if why else {}


def load_run(
    path: Path | str, device: torch.device | str = "cpu", make: Callable[[Run], nn.Module] | None = None
) -> nn.Module:
    """The trained model of a run directory in eval mode; of a set of pictures the list of their networks.

    `make`: an untrained one, where it is a module of somebody's own.
    """
    directory = RunDirectory(path)
    _, run = directory.read_config()
    parts, far, *_ = read_run(directory.checkpoint_file, run)
    if task_kind(run.task).many and far["done"] < far["groups"]:
        raise KoopsimError(f"{directory.path} is unfinished: koopsim train --resume {directory.path}.")
    models = [m for g in sorted(parts) for m in models_of(run, parts[g], directory.checkpoint_file, make)]
    if not models:
        raise KoopsimError(f"{directory.checkpoint_file} holds no model.")
    return (nn.ModuleList(models) if task_kind(run.task).many else models[0]).to(device).eval()
