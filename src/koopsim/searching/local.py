"""A whole search inside one process.

    groups of trials with equal shapes  ->  slots  ->  an epoch each in turn  ->  ASHA  ->  freed slots to new trials

Trials that differ only in learning rate, schedule, bandwidth or seed share a stack; others run beside each other
(engine/beside.py). The groups take turns, an epoch each, so that halving compares trials of all groups at the same age.
The order of all this is fixed: a search that was killed at any moment goes on from its last saved state and comes to
the same verdicts (on a CPU bit for bit).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from koopsim.engine.as_it_was import torch_as_it_was
from koopsim.engine.beside import Beside
from koopsim.engine.drive import Course, Steps, drive
from koopsim.engine.slots import Slots
from koopsim.errors import KoopsimError
from koopsim.searching.asha import ASHA, verdict
from koopsim.searching.directory import Search, SearchDirectory
from koopsim.searching.overview import Pace, event_of
from koopsim.searching.packing import SlotsOf
from koopsim.searching.results import trials_csv
from koopsim.searching.stacking import stack_key
from koopsim.searching.state import read_state, write_state
from koopsim.searching.trial import Trial, checked, draw_trials, length, settled, why
from koopsim.tasks import Task, build_task
from koopsim.training import Session


class Group:
    """Trials that can share slots: those in them, and those still waiting."""

    def __init__(self, trials: list[int]):
        self.waiting = deque(trials)
        self.slots: list[int | None] = []
        self.engine: Slots | None = None

    @property
    def running(self) -> list[tuple[int, int]]:
        """(slot, trial) of what is in training."""
        return [(slot, trial) for slot, trial in enumerate(self.slots) if trial is not None]

    @property
    def over(self) -> bool:
        return not self.waiting and not self.running


class LocalSearch(Course):
    """A search, where it stands, and how it goes on."""

    def __init__(self, search: Search, directory: SearchDirectory, session: Session, task: Task | None = None):
        self.search, self.directory, self.session = search, directory, session
        self.device = session.device
        space = search.space
        self.task = build_task(search.base.task, self.device) if task is None else task
        self.packing = SlotsOf(search, self.task, session)
        self.trials = draw_trials(search.base, space, search.seed)
        self.asha = ASHA(space.max_t, space.grace, space.reduction, space.mode)
        kinds: dict[str, list[int]] = {}
        for trial in self.trials:
            if not trial.over:
                kinds.setdefault(stack_key(trial.run), []).append(trial.index)
        self.groups = [Group(members) for members in kinds.values()]
        self.whose, self.seconds, self.began = 0, 0.0, time.monotonic()  # whose turn; time spent before
        self.pace = Pace()

    @torch_as_it_was()
    def run(self) -> list[Trial]:
        """Go on to the end; Ctrl-C saves and raises `Stopped`."""
        self.began = time.monotonic()
        drive(self)
        self.save()
        return self.trials

    @property
    def elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.began

    # ------------------------------------------------------------ turns

    def turn(self) -> Slots | None:
        while not all(group.over for group in self.groups):
            while self.whose < len(self.groups):
                group = self.groups[self.whose]
                if self.position == 0 and not group.over:
                    self._fill(group)
                if group.running:
                    return group.engine
                self.whose += 1
            self.whose = 0
        return None

    def over(self, steps: Steps) -> None:
        """Every trial's report in turn, and what becomes of it."""
        group = self.groups[self.whose]
        assert group.engine is not None
        for slot, index in group.running:
            trial = self.trials[index]
            self._report(trial, group.engine, slot)
            if trial.over:
                group.engine.stop(slot)
                group.slots[slot] = None
            self.session.listen(event_of(trial, self.trials, self.search.space, self.elapsed, self.pace))
        if group.over:
            group.engine = None  # its memory is another's
        self.whose += 1

    def _report(self, trial: Trial, engine: Slots, slot: int) -> None:
        space, t, figures = self.search.space, trial.t + 1, {}
        try:
            figures = engine.figures(slot)
            metric = checked(figures, space.metric)
        except KeyError as error:
            raise KoopsimError(f"The task reports no {error}; it has {', '.join(figures)}.") from error
        except Exception as error:
            status, reason = why(error)
            return trial.end(status, f"epoch {t}: {reason}")
        trial.curve.append({"t": t, "seconds": self.elapsed, **figures})
        if ended := verdict(self.asha, trial, t, metric, space):
            trial.end(*ended)

    # ------------------------------------------------------------ slots

    def _fill(self, group: Group) -> None:
        """Waiting trials into free slots; when none waits and enough slots are free, close the ranks.

        Side by side the device is shared by all groups, so what one no longer needs, another gets.
        """
        if group.engine is None:
            self._open(group)
            return
        for slot, trial in enumerate(group.slots):
            if trial is None and group.waiting and self._room(group) > 0:
                index = self._next(group)
                if index is None:
                    continue
                group.engine.start(slot, self.trials[index].run)
                group.slots[slot] = index
        while isinstance(group.engine, Beside) and group.waiting and self._room(group) > 0:
            index = self._next(group)
            if index is not None:
                group.engine.add(self.trials[index].run)
                group.slots.append(index)
        keep = [slot for slot, _ in group.running]
        if keep and not group.waiting and group.engine.sparse:
            group.engine.compact(keep)
            group.slots = [group.slots[s] for s in keep]

    def _next(self, group: Group) -> int | None:
        """The next waiting trial, its bandwidth settled; one for which that fails is over at once."""
        while group.waiting:
            trial = self.trials[group.waiting.popleft()]
            try:
                trial.run = settled(trial, self.task, self.device)
            except Exception as error:
                trial.end("failed", str(error))
                continue
            trial.status = "running"
            return trial.index
        return None

    def _open(self, group: Group) -> None:
        """The group's first slots; where the device is too small for them, half as many."""
        chosen: list[int] = []
        room = self._room(group)
        while group.waiting and len(chosen) < room:
            index = self._next(group)
            chosen += [] if index is None else [index]
        while chosen:
            try:
                group.engine, group.slots = self._slots(group, chosen), list(chosen)
                return
            except torch.OutOfMemoryError:
                group.engine = None
                torch.cuda.empty_cache()
                alone = len(chosen) == 1 and not any(g.running for g in self.groups)
                if alone:  # nobody is in its way
                    self.trials[chosen[0]].end("failed", "too large for the device's memory")
                back = [] if alone else chosen[len(chosen) // 2 :]
                group.waiting.extendleft(reversed(back))
                for index in back:
                    self.trials[index].status = "waiting"
                chosen = chosen[: len(chosen) // 2]

    def _slots(self, group: Group, chosen: list[int], saved: Iterable[str] = ()) -> Slots:
        everyone = [self.trials[i].run for i in (*chosen, *group.waiting)]
        epochs = max(length(run, self.search.space.max_t) for run in everyone)
        return self.packing.slots([self.trials[i].run for i in chosen], epochs, saved)

    def _room(self, group: Group) -> int:
        """How many trials a group may still take: a whole stack, or its share of those side by side."""
        at_once, run = self.search.at_once, self.trials[group.waiting[0]].run
        at_once = self.packing.room(run, at_once)
        if self.packing.stacks(run):
            return at_once
        unfinished = [g for g in self.groups if not g.over]
        each, rest = divmod(at_once, len(unfinished))
        share = each + (unfinished.index(group) < rest)
        return min(share - len(group.running), at_once - sum(len(g.running) for g in unfinished))

    # ------------------------------------------------------------ where it stands

    def save(self) -> None:
        """The verdicts and the tensors as one file, and the table of trials beside it."""
        tensors: dict[str, Tensor] = {}
        groups = []
        for number, group in enumerate(self.groups):
            ages = group.engine.ages if group.engine is not None and group.running else []
            groups.append({"waiting": list(group.waiting), "slots": group.slots, "ages": ages})
            if group.engine is not None and group.running:
                tensors |= {f"{number}/{name}": t for name, t in group.engine.state().items()}
        position = {"turn": self.whose, "position": self.position, "seconds": self.elapsed, "groups": groups}
        write_state(self.directory, position | {"asha": self.asha.state()}, self.trials, tensors)
        self.directory.write(self.directory.trials_file, trials_csv(self.trials, self.search.space).encode())

    def load(self) -> None:
        """Go on from the saved state; a broken file is refused before anything changes."""
        saved = read_state(self.directory, self.trials, self.search.space.metric)
        if saved is None:
            return  # killed before anything was saved: from the start
        state, self.trials, parts = saved
        if len(state["groups"]) != len(self.groups):
            told = f"{len(state['groups'])} groups of equal shapes and this one {len(self.groups)}"
            raise KoopsimError(f"The search that was saved has {told}: the model must stay as it was.")
        self.asha.load(state["asha"])
        self.whose, self.position, self.seconds = state["turn"], state["position"], state["seconds"]
        for number, (group, stand) in enumerate(zip(self.groups, state["groups"], strict=True)):
            self._load_group(group, stand, parts.get(number, {}))

    def _load_group(self, group: Group, saved: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        group.waiting, group.slots = deque(saved["waiting"]), list(saved["slots"])
        running = group.running
        if not running:
            group.slots = []
            return
        stand_in = running[0][1]  # a free slot's weights are never looked at, only its shapes
        group.engine = self._slots(group, [stand_in if i is None else i for i in group.slots], tensors)
        for slot, index in enumerate(group.slots):
            if index is None:
                group.engine.stop(slot)
        group.engine.load(tensors, saved["ages"])
