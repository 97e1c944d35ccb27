"""Trials side by side in one process, each with a trainer of its own.

For models that cannot be stacked, and for those whose hand-written kernels beat a stack. On CUDA each has a stream of
its own, so small ones overlap. A trial that crashes takes nobody along: its slot is freed and its error kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from koopsim.config import Run
from koopsim.search.trial import Alone, AlonePictures, alone
from koopsim.tasks import Task

ROUND = 4  # steps a slot queues before it is the next one's turn


class Separate:
    """The same slots as `stack.Stacked`, one trainer each."""

    def __init__(
        self, runs: Sequence[Run], task: Task, device: torch.device, capture: bool | None = None, room: int = 0
    ):
        self.task, self.device, self.capture, self.room = task, device, capture, room
        self.runs: list[Run | None] = list(runs)
        self.ages = [0] * len(runs)
        self.errors: dict[int, Exception] = {}  # of this epoch, by slot
        self.streams = [torch.cuda.Stream(device) if device.type == "cuda" else None for _ in runs]
        self.trainers: list[Alone | AlonePictures | None] = [None] * len(runs)
        self.idle: dict[int, Alone] = {}  # by slot: trainers whose trial is over, for the next one to take over
        for slot, run in enumerate(runs):
            self.start(slot, run)

    @property
    def steps_per_epoch(self) -> int:
        """The same for all trials of a group; 0 while none could be started."""
        return next((t.steps_per_epoch for t in self.trainers if t is not None), 0)

    @contextlib.contextmanager
    def _slot(self, slot: int):
        """Work on the slot's stream; an error stays in the slot, but a full device is for the caller to mend."""
        stream = self.streams[slot]
        try:
            with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
                yield
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.errors[slot] = error

    def start(self, slot: int, run: Run) -> None:
        self.runs[slot], self.ages[slot], self.trainers[slot] = run, 0, None
        before = self.idle.pop(slot, None)
        with self._slot(slot):
            if before is not None and before.can_become(run):
                before.become(run)
                self.trainers[slot] = before
            else:
                self.trainers[slot] = alone(run, self.task, self.device, self.capture, self.room)

    def add(self, run: Run) -> None:
        """One slot more, with this trial in it."""
        self.runs.append(run)
        self.ages.append(0)
        self.streams.append(torch.cuda.Stream(self.device) if self.device.type == "cuda" else None)
        self.trainers.append(None)
        self.start(len(self.runs) - 1, run)

    def stop(self, slot: int) -> None:
        trainer = self.trainers[slot]
        if isinstance(trainer, Alone) and slot not in self.errors and self.room:
            self.idle[slot] = trainer
        self.runs[slot] = self.trainers[slot] = None
        self.errors.pop(slot, None)

    def warm_up(self) -> None:
        """Each trainer has captured its step already."""

    def _working(self):
        for slot, trainer in enumerate(self.trainers):
            if trainer is not None and slot not in self.errors:
                yield slot, trainer

    def begin_epoch(self) -> None:
        for slot, trainer in self._working():
            with self._slot(slot):
                trainer.begin_epoch(self.ages[slot])

    def advance(self, first: int, last: int) -> None:
        """Queued in rounds: hundreds of steps of one slot would fill the launch queue, and nothing would overlap."""
        for start in range(first, last, ROUND):
            for slot, trainer in self._working():
                with self._slot(slot):
                    trainer.advance(start, min(start + ROUND, last))

    def finish_epoch(self) -> None:
        self.ages = [age + (run is not None) for age, run in zip(self.ages, self.runs, strict=True)]

    def figures(self, slot: int) -> dict[str, float]:
        """As in the stack; a crash of this trial is raised here."""
        if slot in self.errors:
            self.trainers[slot] = None  # whatever it was, nobody shall take it over
            raise self.errors.pop(slot)
        trainer, stream = self.trainers[slot], self.streams[slot]
        assert trainer is not None
        with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
            return trainer.figures()

    @property
    def sparse(self) -> bool:
        return None in self.runs

    def compact(self, keep: Sequence[int]) -> None:
        """Free slots cost nothing here; they are only dropped."""
        for name in ("runs", "ages", "streams", "trainers"):
            own = getattr(self, name)
            setattr(self, name, [own[s] for s in keep])
        self.idle.clear()
        self.errors = {keep.index(s): error for s, error in self.errors.items() if s in keep}

    def state(self) -> dict[str, Tensor]:
        return {f"{slot}.{k}": v for slot, trainer in self._working() for k, v in trainer.state().items()}

    def load(self, state: dict[str, Tensor], ages: list[int]) -> None:
        self.ages = list(ages)
        for slot, trainer in self._working():
            own = {k.partition(".")[2]: v for k, v in state.items() if k.partition(".")[0] == str(slot)}
            if own:
                trainer.load(own, self.ages[slot])

    def describe(self) -> dict[str, Any]:
        return {"engine": "separate", "slots": len(self.runs)}
