"""Trials into slots: how many go together, as a stack or side by side.

    stack      equal shapes, one batched model: as many as were asked for, or as fit into memory
    beside     any others: a few, which take turns on the device
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from koopsim.config import Run
from koopsim.engine.beside import Beside, is_of_a_slot
from koopsim.engine.memory import fitting
from koopsim.engine.part import Way
from koopsim.engine.slots import Slots
from koopsim.engine.stacked import Stacked
from koopsim.errors import KoopsimError
from koopsim.searching.directory import Search
from koopsim.searching.stacking import better_stacked, stackable, takes_over
from koopsim.tasks import Task
from koopsim.training import Session

STACK_ON = {"cuda": 128, "cpu": 64}  # trials in a stack unless told otherwise
BESIDE_ON = {"cuda": 8, "cpu": 2}


@dataclass(frozen=True)
class SlotsOf:
    """How the trials of a search go together on a device."""

    search: Search
    task: Task
    session: Session

    def stacks(self, run: Run) -> bool:
        """Whether runs like this one go into one stack."""
        asked = self.search.engine
        if asked == "auto":
            return better_stacked(run, self.task, self.session.device)
        if asked == "stacked" and not stackable(run):
            raise KoopsimError(
                "These trials cannot be stacked (docs/search.md says which can); leave --engine at auto."
            )
        return asked == "stacked"

    def room(self, run: Run, at_once: int | None) -> int:
        """How many runs like this one may train at a time, at most `at_once` if that is said."""
        device = self.session.device
        if not self.stacks(run):
            return at_once or BESIDE_ON[device.type]
        room, each = at_once or STACK_ON[device.type], self.task.bytes_of(run)
        return room if each is None else min(room, fitting(each * len(self.task.names), device))

    def slots(self, runs: Sequence[Run], epochs: int, saved: Iterable[str] = ()) -> Slots:
        """The runs in slots, ready for their first step; room for so many epochs each.

        What was `saved`, by the names of its tensors, goes on as it was: perhaps on another kind of device.
        """
        way = Way(capture=self.session.capture, compile=self.session.compile)

        def stacked(*runs: Run) -> Stacked:
            return Stacked(runs, self.task, self.session.device, epochs, way)

        names = set(saved)
        together = not any(map(is_of_a_slot, names)) if names else self.stacks(runs[0])
        slots = stacked(*runs) if together else Beside(runs, stacked, takes_over)
        slots.warm_up()
        return slots
