"""Runs side by side, a stack of its own each: of any shapes, and a crash of one stays in its slot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from koopsim.config import Run
from koopsim.engine.slots import Slots
from koopsim.engine.stacked import Stacked
from koopsim.tasks.base import Figures

ROUND = 4  # steps a slot queues before it is the next one's turn


def is_of_a_slot(name: str) -> bool:
    """Whether a tensor was saved of one slot among several, as `Beside.state` names them."""
    return name.partition(".")[0].isdigit()


class Beside(Slots):
    """Runs side by side, each a stack of its own. On CUDA each has a stream, so small ones overlap."""

    def __init__(self, runs: Sequence[Run], make: Callable[[Run], Stacked], takes_over: Callable[[Run], bool]):
        """`make` a run's own stack; `takes_over`: a run that may begin in the tensors of one that is over."""
        self.make, self.takes_over = make, takes_over
        self.runs, self.ages, self.streams = [], [], []
        self.parts: list[Stacked | None] = []
        self.idle: dict[int, Stacked] = {}
        self.errors: dict[int, Exception] = {}  # of this epoch, by slot
        for run in runs:
            self.add(run)

    @property
    def epoch_steps(self) -> int:
        """The same for all runs of a group; 0 while none could be started."""
        return next((part.epoch_steps for part in self.parts if part is not None), 0)

    @contextlib.contextmanager
    def _slot(self, slot: int):
        """Work on the slot's stream; an error stays in the slot, but a full device is for the caller to mend."""
        try:
            with torch.cuda.stream(self.streams[slot]):
                yield
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.errors[slot] = error

    def add(self, run: Run) -> None:
        """One slot more, with this run in it."""
        self.runs.append(None)
        self.ages.append(0)
        self.parts.append(None)
        self.streams.append(torch.cuda.Stream() if torch.cuda.is_available() else None)
        self.start(len(self.runs) - 1, run)

    def start(self, slot: int, run: Run) -> None:
        self.runs[slot], self.ages[slot], self.parts[slot] = run, 0, None
        before = self.idle.pop(slot, None)
        with self._slot(slot):
            if before is not None and self.takes_over(run):
                before.start(0, run)
                self.parts[slot] = before
            else:
                own = self.make(run)
                own.part.adaptive = False  # no captures in the midst of other runs
                own.warm_up()
                self.parts[slot] = own

    def stop(self, slot: int) -> None:
        part = self.parts[slot]
        if part is not None and slot not in self.errors:
            self.idle[slot] = part
        self.runs[slot] = self.parts[slot] = None
        self.errors.pop(slot, None)

    def warm_up(self) -> None:
        """Each has captured its step already."""

    def _working(self):
        for slot, part in enumerate(self.parts):
            if part is not None and slot not in self.errors:
                yield slot, part

    def begin_epoch(self) -> None:
        for slot, part in self._working():
            with self._slot(slot):
                part.begin_epoch()

    def advance(self, first: int, last: int) -> None:
        """Queued in rounds: hundreds of steps of one slot would fill the launch queue, and nothing would overlap."""
        for start in range(first, last, ROUND):
            for slot, part in self._working():
                with self._slot(slot):
                    part.advance(start, min(start + ROUND, last))

    def finish_epoch(self) -> None:
        super().finish_epoch()
        for _, part in self._working():
            part.finish_epoch()

    def figures(self, slot: int) -> Figures:
        """As in a stack; a crash of this run is raised here."""
        if slot in self.errors:
            self.parts[slot] = None  # whatever it was, nobody shall take it over
            raise self.errors.pop(slot)
        part = self.parts[slot]
        assert part is not None
        with torch.cuda.stream(self.streams[slot]):
            return part.figures(0)

    @property
    def sparse(self) -> bool:
        return None in self.runs

    def compact(self, keep: Sequence[int]) -> None:
        """Free slots cost nothing here; they are only dropped."""
        for name in ("runs", "ages", "streams", "parts"):
            own = getattr(self, name)
            setattr(self, name, [own[s] for s in keep])
        self.idle.clear()
        self.errors = {keep.index(s): error for s, error in self.errors.items() if s in keep}

    def state(self) -> dict[str, Tensor]:
        return {f"{slot}.{k}": v for slot, part in self._working() for k, v in part.state().items()}

    def load(self, state: dict[str, Tensor], ages: Sequence[int]) -> None:
        self.ages = list(ages)
        for slot, part in self._working():
            own = {k.partition(".")[2]: v for k, v in state.items() if k.partition(".")[0] == str(slot)}
            if own:
                part.load(own, [self.ages[slot]])
