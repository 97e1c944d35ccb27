"""A whole search inside one process.

    groups of trials with equal shapes  ->  slots  ->  an epoch each in turn  ->  ASHA  ->  freed slots to new trials

Trials that differ only in learning rate, schedule, bandwidth or seed share a stack (stack.py, stacked_pictures.py);
others run beside each other (separate.py). The groups take turns, an epoch each, so that halving compares trials of all
groups at the same age. The order of all this is fixed: a search that was killed at any moment goes on from its last
saved state and comes to the same verdicts (on a CPU bit for bit).
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch
from torch import Tensor

from koopsim.config import Run
from koopsim.errors import KoopsimError
from koopsim.kinds import task_kind
from koopsim.search.asha import ASHA
from koopsim.search.directory import Search, SearchDirectory
from koopsim.search.results import trials_csv
from koopsim.search.separate import Separate
from koopsim.search.stack import Stacked, longest, stack_key, stackable
from koopsim.search.stacked_pictures import StackedPictures, fitting
from koopsim.search.state import read_state, write_state
from koopsim.search.trial import Diverged, Listener, Trial, draw_trials, length, settled
from koopsim.tasks import ImageRegression, Task, build_task
from koopsim.train.loop import Stopped, _stop_requests

Engine = Stacked | StackedPictures | Separate

CHUNK_SECONDS = 0.25  # how often the host looks up: progress, Ctrl-C
SAVE_SECONDS = 20.0  # between saved states; a search that ends or is stopped saves too
STACK_ON = {"cuda": 128, "cpu": 64}  # trials in a stack unless told otherwise
BESIDE_ON = {"cuda": 8, "cpu": 2}


class Group:
    """Trials that can share an engine: those in its slots, and those still waiting."""

    def __init__(self, trials: list[int]):
        self.waiting = deque(trials)
        self.slots: list[int | None] = []
        self.engine: Engine | None = None

    @property
    def running(self) -> list[tuple[int, int]]:
        """(slot, trial) of what is in training."""
        return [(slot, trial) for slot, trial in enumerate(self.slots) if trial is not None]

    @property
    def over(self) -> bool:
        return not self.waiting and not self.running


class LocalSearch:
    """A search, where it stands, and how it goes on."""

    def __init__(
        self,
        search: Search,
        directory: SearchDirectory,
        device: torch.device,
        capture: bool | None = None,
        compile: bool = False,
        listen: Listener = lambda event: None,
        task: Task | None = None,
    ):
        self.search, self.directory, self.device, self.listen = search, directory, device, listen
        self.capture, self.compile = capture, compile
        space = search.space
        self.task = build_task(search.base.task, device) if task is None else task
        self.trials = draw_trials(search.base, space, search.seed)
        self.asha = ASHA(space.max_t, space.grace, space.reduction, space.mode)
        kinds: dict[str, list[int]] = {}
        for trial in self.trials:
            if not trial.over:
                kinds.setdefault(stack_key(trial.run), []).append(trial.index)
        self.groups = [Group(members) for members in kinds.values()]
        self.turn, self.position, self.seconds = 0, 0, 0.0  # whose turn, how far into its epoch, time spent before
        self.chunk, self.began, self.saved = 1, time.monotonic(), time.monotonic()

    def run(self) -> list[Trial]:
        """Go on to the end; Ctrl-C saves and raises `Stopped`."""
        torch.backends.cudnn.benchmark = True
        self.began = self.saved = time.monotonic()
        with _stop_requests() as stop:
            while not all(group.over for group in self.groups):
                while self.turn < len(self.groups):
                    self._epoch(self.groups[self.turn], stop)
                    self.turn, self.position = self.turn + 1, 0
                    self._save_when_due(stop)
                self.turn = 0
        self.save()
        return self.trials

    @property
    def elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.began

    # ------------------------------------------------------------ one group, one epoch

    def _epoch(self, group: Group, stop: list[int]) -> None:
        if group.over:
            return
        if self.position == 0:
            self._fill(group)
        if not group.running:
            return
        engine = group.engine
        assert engine is not None
        engine.begin_epoch() if self.position == 0 or isinstance(engine, Stacked) else None
        while self.position < engine.steps_per_epoch:
            last, began = min(self.position + self.chunk, engine.steps_per_epoch), time.perf_counter()
            engine.advance(self.position, last)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            spent = max(time.perf_counter() - began, 1e-6)
            self.position = last
            self.chunk = max(1, min(2 * self.chunk, round(self.chunk * CHUNK_SECONDS / spent)))
            self._save_when_due(stop)
        engine.finish_epoch()
        self._judge(group, engine)
        if group.over:
            group.engine = None  # its memory is another's

    def _judge(self, group: Group, engine: Engine) -> None:
        """Every trial's report in turn, and what becomes of it."""
        space = self.search.space
        for slot, index in group.running:
            trial = self.trials[index]
            t = trial.t + 1
            try:
                figures = engine.figures(slot)
                metric = figures[space.metric]
                if not abs(metric) < float("inf"):
                    raise Diverged(f"{space.metric} is {metric} on the validation split")
            except Diverged as error:
                trial.end("diverged", f"epoch {t}: {error}")
            except KeyError as error:
                raise KoopsimError(f"The task reports no {error}; it has {', '.join(figures)}.") from error
            except Exception as error:  # a crash of one trial is that trial's end
                trial.end("failed", f"epoch {t}: {type(error).__name__}: {str(error)[:300]}")
            else:
                trial.curve.append({"t": t, "seconds": self.elapsed, **figures})
                goes_on = self.asha.report(index, t, metric)
                if t >= length(trial.run, space.max_t):
                    if t < space.max_t:
                        self.asha.complete(index, t, metric)
                    trial.end("finished", f"all {t} epochs")
                elif not goes_on:
                    trial.end("pruned", f"below the others at epoch {t}")
            if trial.over:
                engine.stop(slot)
                group.slots[slot] = None
            self.listen({"event": "trial", "trial": trial, "trials": self.trials, "seconds": self.elapsed})

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
        if isinstance(group.engine, Separate):
            while group.waiting and self._room(group) > 0:
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
        """The group's first engine; where the device is too small for it, one with half the slots."""
        chosen: list[int] = []
        room = self._room(group)
        while group.waiting and len(chosen) < room:
            index = self._next(group)
            chosen += [] if index is None else [index]
        while chosen:
            try:
                group.engine, group.slots = self._engine(group, chosen), list(chosen)
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

    def _engine(self, group: Group, chosen: list[int]) -> Engine:
        runs = [self.trials[i].run for i in chosen]
        everyone = [self.trials[i].run for i in (*chosen, *group.waiting)]
        if self._stacks(runs[0]):
            max_t = longest(everyone, self.search.space.max_t)
            if isinstance(self.task, ImageRegression):
                engine = StackedPictures(runs, self.task, self.device, max_t, self.capture, self.compile)
            else:
                engine = Stacked(runs, self.task, self.device, max_t, self.capture, self.compile)
        else:
            room = max(run.recipe.epochs for run in everyone)
            engine = Separate(runs, self.task, self.device, self.capture, room)
        engine.warm_up()
        return engine

    def _stacks(self, run: Run) -> bool:
        if self.search.engine == "auto":
            # the small VGG has kernels of its own in bfloat16, which a stack cannot use
            fused = self.device.type == "cuda" and run.precision == "bf16" and not task_kind(run.task).many
            return stackable(run) and not fused
        if self.search.engine == "stacked" and not stackable(run):
            raise KoopsimError(
                "These trials cannot be stacked (docs/search.md says which can); leave --engine at auto."
            )
        return self.search.engine == "stacked"

    def _room(self, group: Group) -> int:
        """How many trials a group may still take: a whole stack, or its share of those side by side."""
        at_once, run = self.search.at_once, self.trials[group.waiting[0]].run
        if self._stacks(run):
            room = at_once or STACK_ON[self.device.type]
            return min(room, fitting(run, self.task)) if isinstance(self.task, ImageRegression) else room
        at_once = at_once or BESIDE_ON[self.device.type]
        unfinished = [g for g in self.groups if not g.over]
        each, rest = divmod(at_once, len(unfinished))
        share = each + (unfinished.index(group) < rest)
        return min(share - len(group.running), at_once - sum(len(g.running) for g in unfinished))

    # ------------------------------------------------------------ where it stands

    def _save_when_due(self, stop: list[int]) -> None:
        if stop or time.monotonic() - self.saved > SAVE_SECONDS:
            self.save()
            self.saved = time.monotonic()
        if stop:
            raise Stopped

    def save(self) -> None:
        """The verdicts and the tensors as one file, and the table of trials beside it."""
        tensors: dict[str, Tensor] = {}
        groups = []
        for number, group in enumerate(self.groups):
            ages = group.engine.ages if group.engine is not None and group.running else []
            groups.append({"waiting": list(group.waiting), "slots": group.slots, "ages": ages})
            if group.engine is not None and group.running:
                tensors |= {f"{number}/{name}": t for name, t in group.engine.state().items()}
        position = {"turn": self.turn, "position": self.position, "seconds": self.elapsed, "groups": groups}
        write_state(self.directory, position | {"asha": self.asha.state()}, self.trials, tensors)
        self.directory.write(self.directory.trials_file, trials_csv(self.trials, self.search.space).encode())

    def load(self) -> None:
        """Go on from the saved state; a broken file is refused before anything changes."""
        saved = read_state(self.directory)
        if saved is None:
            return  # killed before anything was saved: from the start
        state, self.trials, tensors = saved
        self.asha.load(state["asha"])
        self.turn, self.position, self.seconds = state["turn"], state["position"], state["seconds"]
        for number, (group, stand) in enumerate(zip(self.groups, state["groups"], strict=True)):
            self._load_group(group, stand, {k.partition("/")[2]: v for k, v in tensors.items() if _of(k, number)})

    def _load_group(self, group: Group, saved: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        group.waiting, group.slots = deque(saved["waiting"]), list(saved["slots"])
        running = group.running
        if not running:
            group.slots = []
            return
        stand_in = running[0][1]  # a free slot's weights are never looked at, only its shapes
        group.engine = self._engine(group, [stand_in if i is None else i for i in group.slots])
        for slot, index in enumerate(group.slots):
            if index is None:
                group.engine.stop(slot)
        group.engine.load(tensors, saved["ages"])


def _of(key: str, number: int) -> bool:
    return key.partition("/")[0] == str(number)
