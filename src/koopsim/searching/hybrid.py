"""A search on a Ray cluster in which each worker trains a stack of trials: g GPUs do g times what one does.

    driver:  trials, ASHA, reports.jsonl           worker k:  slots for a share of the trials (stack_worker.py)
    loop:    the next worker's epoch -> its figures, one trial at a time -> ASHA -> what goes into its freed slots

Nobody waits for anybody: halving is asynchronous, as in Ray Tune, by the same rule (asha.py). A worker or machine that
dies is replaced where there is room; its stack goes on from where it was last sent, and what is reported a second time
is not heard again. A driver that was killed finds stacks and reports in its folder, which nobody else has to see.
"""

from __future__ import annotations

import contextlib
import io
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koopsim.engine.drive import Stopped, stop_requests
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.files.tensors import read_tensors
from koopsim.searching.asha import ASHA, verdict
from koopsim.searching.cluster import exceptions, ray, start_ray
from koopsim.searching.directory import RAY_FOLDER
from koopsim.searching.ray_worker import payload_of
from koopsim.searching.reports import ReportedSearch
from koopsim.searching.stack_worker import Epoch, StackWorker
from koopsim.searching.stacking import stack_key
from koopsim.searching.trial import Trial

RETRIES = 10  # of a stack whose worker or machine died
LOOK = 2.0  # seconds between looks at what the cluster has
ROUNDING = 1e-6  # of shares: 0.9 processors at 0.3 each are three workers
STACK = "stack-{}.safetensors"


@dataclass
class Stack:
    """Trials of one group that train together: who is in which slot, and where it was last saved."""

    number: int
    waiting: deque[int]  # of the group, shared by all its stacks
    slots: list[int | None] = field(default_factory=list)
    lost: int = 0  # workers


@dataclass
class Worker:
    """A worker, what it trains, and the call whose answer is awaited."""

    actor: Any
    stack: Stack | None = None


class HybridSearch(ReportedSearch):
    """The driver: who trains what, and what becomes of it."""

    def begin(self) -> None:
        space = self.search.space
        self.asha = ASHA(space.max_t, space.grace, space.reduction, space.mode)
        self.folder = folders.make_inside(self.directory.path, RAY_FOLDER)
        self.calls: dict[Any, Worker] = {}  # awaited answer -> whose
        self.stacks, self.made = deque[Stack](), 0  # those nobody trains; how many there have been
        self._judge_again()
        self._find_stacks()

    # ------------------------------------------------------------ where it stands

    def _judge_again(self) -> None:
        """ASHA's rungs from the reports; a trial whose end was not written down any more ends now."""
        lines = sorted((line["seconds"], t.index, line) for t in self.trials for line in t.curve)
        for _, index, line in lines:
            trial = self.trials[index]
            self._verdict(trial, line["t"], line[self.search.space.metric])

    def _find_stacks(self) -> None:
        """The stacks that were saved; trials that are in none of them wait, in groups of equal shapes."""
        kinds: dict[str, deque[int]] = {}
        groups = {t.index: kinds.setdefault(stack_key(t.run), deque()) for t in self.trials if not t.over}
        held: set[int] = set()
        for file in sorted(self.folder.glob(STACK.format("*"))):
            slots = self._saved(file)["slots"]
            mine = [i for i in slots if i in groups and i not in held]
            if mine:
                number = int(file.stem.partition("-")[2])
                self.stacks.append(Stack(number, groups[mine[0]], [i if i in mine else None for i in slots]))
                self.made = max(self.made, number + 1)
                held.update(mine)
            else:
                file.unlink()
        for index, waiting in groups.items():
            if index not in held:
                waiting.append(index)
        self.groups = list(kinds.values())

    def _saved(self, file: Path) -> dict[str, Any]:
        tensors, header = read_tensors(file, "stack of trials", finite=False)  # one that diverged holds NaN
        said: dict[str, Any] = header["stack"] if isinstance(header.get("stack"), dict) else {}
        slots, ages = said.get("slots"), said.get("ages")
        known = (None, *range(len(self.trials)))
        if not isinstance(slots, list) or not isinstance(ages, list) or not all(i in known for i in slots):
            raise KoopsimError(f"{file} is not a whole stack of trials. Remove it: its trials begin again.")
        return {"slots": slots, "ages": ages, "tensors": tensors}

    # ------------------------------------------------------------ the loop

    def run(self) -> list[Trial]:
        """Go on to the end; Ctrl-C saves and raises `Stopped`."""
        if not all(t.over for t in self.trials):
            with contextlib.redirect_stdout(io.StringIO()):  # Ray talks there; ours is for results
                start_ray(self.cluster.address)
                try:
                    self._until_over()
                finally:
                    ray.shutdown()
        self.save()
        if not all(t.over for t in self.trials):
            raise Stopped
        folders.remove_inside(self.directory.path, RAY_FOLDER)
        return self.trials

    def _until_over(self) -> None:
        self.payload = ray.put(payload_of(self.search, []))
        with stop_requests() as stop:
            while not stop and not all(t.over for t in self.trials):
                self._hire()
                for call in ray.wait(list(self.calls), timeout=LOOK)[0]:
                    self._heard(call)

    def _share(self) -> dict[str, float]:
        """What a worker gets of a machine: a GPU of its own where there are any, unless told otherwise."""
        gpus = self.cluster.gpus_per_trial
        if gpus is None:
            gpus = 1.0 if ray.cluster_resources().get("GPU") else 0.0
        return {"num_cpus": self.cluster.cpus_per_trial, "num_gpus": gpus}

    def _capacity(self) -> int:
        """How many workers the cluster has room for now, at least one."""
        there, share = ray.cluster_resources(), self._share()
        rooms = [there.get("CPU", 0) / share["num_cpus"]] if share["num_cpus"] else []
        rooms += [there.get("GPU", 0) / share["num_gpus"]] if share["num_gpus"] else []
        return max(1, int(min(rooms, default=1) + ROUNDING))

    def _hire(self) -> None:
        """Workers for what has to be done, as far as there is room; each gets work once it answers."""
        work = len(self.stacks) + sum(len(g) for g in self.groups) + self._busy()
        for _ in range(min(self._capacity(), work) - len(self.calls)):
            actor = ray.remote(StackWorker).options(**self._share(), max_restarts=0).remote(self.payload)
            self.calls[actor.ready.remote()] = Worker(actor)

    def _busy(self) -> int:
        return sum(worker.stack is not None for worker in self.calls.values())

    def _heard(self, call: Any) -> None:
        """A worker has answered, or is gone."""
        worker = self.calls.pop(call)
        try:
            found = ray.get(call)
        except exceptions.RayActorError:
            return self._lost(worker)
        except exceptions.RayTaskError as error:
            first = (str(error.cause).strip().splitlines() or [type(error.cause).__name__])[0]
            raise KoopsimError(f"A worker of the search failed: {first[:300]}") from error
        if isinstance(found, Epoch) and worker.stack is not None:
            self._take(worker.stack, found)
        self._go_on(worker)

    def _take(self, stack: Stack, found: Epoch) -> None:
        stack.slots = list(found.slots)
        stack.waiting.extendleft(reversed(found.back))
        for line in found.lines:
            self._line(self.trials[line["index"]], line)
        if found.state is not None:
            self.directory.write(self.folder / STACK.format(stack.number), found.state)

    def _line(self, trial: Trial, line: dict[str, Any]) -> None:
        if trial.over or line.get("t", trial.t + 1) <= trial.t:
            return  # heard before, from a worker that is gone
        self.hear(line)
        if "t" in line:
            self._verdict(trial, line["t"], line[self.search.space.metric], True)

    def _verdict(self, trial: Trial, t: int, metric: float, told: bool = False) -> None:
        """Whether a trial goes on, by halving; `told`: its end is news."""
        ended = verdict(self.asha, trial, t, metric, self.search.space)
        if ended and not trial.over:
            if told:
                self.hear({"index": trial.index, "ended": ended[0], "reason": ended[1]})
            else:
                trial.end(*ended)

    # ------------------------------------------------------------ who trains what

    def _go_on(self, worker: Worker) -> None:
        """Its next epoch, or its next stack; where nothing is left to do its place is another's."""
        stack = worker.stack
        if stack is not None:
            changes = self._changes(stack)
            if any(i is not None for i in stack.slots):
                call = worker.actor.epoch.remote(changes, bool(stack.waiting))
                self.calls[call] = worker
                return
            (self.folder / STACK.format(stack.number)).unlink(missing_ok=True)
        worker.stack = self._next_stack(worker)
        if worker.stack is None:
            ray.kill(worker.actor)

    def _changes(self, stack: Stack) -> dict[int, int | None]:
        """Slots whose trial is over, and who comes into them."""
        changes: dict[int, int | None] = {}
        for slot, index in enumerate(stack.slots):
            free = index is None or self.trials[index].over
            if free and (stack.waiting or index is not None):
                changes[slot] = stack.slots[slot] = stack.waiting.popleft() if stack.waiting else None
        return changes

    def _next_stack(self, worker: Worker) -> Stack | None:
        """One that lost its worker, or a new one: a fair share of the largest group."""
        everyone = self._capacity()
        at_once = self.search.at_once and max(1, self.search.at_once // everyone)
        while self.stacks:
            stack = self.stacks.popleft()
            file = self.folder / STACK.format(stack.number)
            own = [i for i in _inside(stack.slots) if not self.trials[i].over]
            if file.exists():
                saved = self._saved(file)
                stack.waiting.extendleft(reversed([i for i in own if i not in saved["slots"]]))  # began after that
                self.calls[worker.actor.begin.remote([], None, saved)] = worker
                return stack
            if own:  # it was never saved, and begins again
                stack.slots = [*own]
                self.calls[worker.actor.begin.remote(own, at_once)] = worker
                return stack
        waiting = max(self.groups, key=len, default=deque())
        if not waiting:
            return None
        share = -(-sum(len(g) for g in self.groups) // max(1, everyone - self._busy()))
        chosen = [waiting.popleft() for _ in range(min(share, len(waiting)))]
        self.calls[worker.actor.begin.remote(chosen, at_once)] = worker
        self.made += 1
        return Stack(self.made - 1, waiting, [*chosen])

    def _lost(self, worker: Worker) -> None:
        """Its machine or its process is gone: its stack waits for another."""
        stack = worker.stack
        if stack is None:
            return
        stack.lost += 1
        if stack.lost <= RETRIES:
            self.stacks.append(stack)
            return
        for index in _inside(stack.slots):
            if not self.trials[index].over:
                self.hear({"index": index, "ended": "failed", "reason": f"its worker died {RETRIES} times or more"})


def _inside(slots: Sequence[int | None]) -> list[int]:
    return [i for i in slots if i is not None]
