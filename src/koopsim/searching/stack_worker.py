"""What a Ray worker of a hybrid search does: a stack of trials, an epoch of all of them at a time.

    begin(trials, saved)     slots for these trials, from where another worker saved them if one did
    epoch(changes)           freed slots to new trials, an epoch, and the figures of each; now and then the stack itself

The driver (hybrid.py) says who goes on. The worker draws the trials itself, so that it needs koopsim and the data, but
no disk of the driver's: where its stack stands travels with its figures, in at most a twentieth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from koopsim.engine.drive import SAVE_SHARE
from koopsim.engine.slots import Slots
from koopsim.engine.subnormal import subnormals_are_zero
from koopsim.files.tensors import tensors_bytes
from koopsim.searching.packing import SlotsOf
from koopsim.searching.ray_worker import prepared
from koopsim.searching.space import is_median
from koopsim.searching.trial import Trial, checked, draw_trials, length, settled, why
from koopsim.spaces import BANDWIDTH
from koopsim.training import Session


@dataclass
class Epoch:
    """What came of an epoch: a line for each trial, or why it ended; who is in which slot now; the stack, if saved."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    slots: list[int | None] = field(default_factory=list)
    back: list[int] = field(default_factory=list)  # trials there was no room for
    state: bytes | None = None


class StackWorker:
    """Slots of one group of trials at a time."""

    def __init__(self, payload: str, device: str = "auto"):
        torch.set_num_threads(1)
        self.device = torch.device("cuda" if device == "auto" and torch.cuda.is_available() else "cpu")
        self.search, self.task = prepared(payload, str(self.device))
        self.packing = SlotsOf(self.search, self.task, Session(self.device))
        self.trials = draw_trials(self.search.base, self.search.space, self.search.seed)
        self.engine: Slots | None = None
        self.slots: list[int | None] = []
        self.saved, self.cost = 0.0, 0.0

    def ready(self) -> str:
        """Where it is: a worker is given work when it has answered."""
        return str(self.device)

    # ------------------------------------------------------------ a stack

    def begin(self, trials: Sequence[int], at_once: int | None, saved: Mapping[str, Any] | None = None) -> Epoch:
        """Slots for these trials; those there is no room for are given back, as are all of no good."""
        found = Epoch()
        self.engine, self.saved, self.cost = None, time.monotonic(), 0.0
        if saved is not None:
            self._go_on(saved)
            return Epoch(slots=[*self.slots])
        good = [i for i in trials if self._settle(i, found)]
        room = self.packing.room(self.trials[good[0]].run, at_once) if good else 0
        chosen = good[:room]
        while chosen:
            try:
                self.engine = self.packing.slots([self.trials[i].run for i in chosen], self._epochs())
                break
            except torch.OutOfMemoryError:
                self.engine = None
                torch.cuda.empty_cache()
                if len(chosen) == 1:
                    found.lines.append(_ended(chosen.pop(), "failed", "too large for the device's memory"))
                    good = []
                chosen = chosen[: len(chosen) // 2]
        self.slots = [*chosen]
        found.slots, found.back = [*chosen], [i for i in good if i not in chosen]
        return found

    def _go_on(self, saved: Mapping[str, Any]) -> None:
        self.slots = list(saved["slots"])
        running = [i for i in self.slots if i is not None]
        for index in running:
            self._settle(index, Epoch())
        runs = [self.trials[running[0] if i is None else i].run for i in self.slots]  # a free slot: only its shapes
        self.engine = self.packing.slots(runs, self._epochs(), saved["tensors"])
        for slot, index in enumerate(self.slots):
            if index is None:
                self.engine.stop(slot)
        self.engine.load(dict(saved["tensors"]), saved["ages"])

    def _epochs(self) -> int:
        return max(length(t.run, self.search.space.max_t) for t in self.trials)

    def _settle(self, index: int, found: Epoch) -> bool:
        """The trial's run with every value a number; where that fails, it is its end."""
        trial = self.trials[index]
        try:
            trial.run = settled(trial, self.task, self.device)
        except Exception as error:
            found.lines.append(_ended(index, *why(error)))
            return False
        return True

    # ------------------------------------------------------------ an epoch

    def epoch(self, changes: Mapping[int, int | None], more: bool) -> Epoch:
        """An epoch of all slots after these changes (None: the slot is free); `more`: others wait for a free slot."""
        engine, found = self.engine, Epoch()
        assert engine is not None
        for slot, index in changes.items():
            engine.stop(slot)
            self.slots[slot] = None
            if index is not None and self._settle(index, found):
                engine.start(slot, self.trials[index].run)
                self.slots[slot] = index
        keep = [slot for slot, index in enumerate(self.slots) if index is not None]
        if keep and not more and engine.sparse:
            engine.compact(keep)
            self.slots = [self.slots[slot] for slot in keep]
        if keep:
            with subnormals_are_zero(self.device):  # as in every training (engine/drive.py)
                engine.begin_epoch()
                engine.advance(0, engine.epoch_steps)
                engine.finish_epoch()
        for slot, index in enumerate(self.slots):
            if index is not None:
                found.lines.append(self._line(self.trials[index], engine, slot))
        found.slots, found.state = [*self.slots], self._state() if keep else None
        return found

    def _line(self, trial: Trial, engine: Slots, slot: int) -> dict[str, Any]:
        t = engine.ages[slot]
        try:
            figures = engine.figures(slot)
            checked(figures, self.search.space.metric)
        except Exception as error:
            status, reason = why(error)
            return _ended(trial.index, status, f"epoch {t}: {reason}")
        line: dict[str, Any] = {"index": trial.index, "t": t, **figures}
        if is_median(trial.values.get(BANDWIDTH)):
            line["bandwidth"] = trial.run.model.fourier.bandwidth  # pyright: ignore
        return line

    def _state(self) -> bytes | None:
        """Where the stack stands, when that is due."""
        assert self.engine is not None
        if (time.monotonic() - self.saved) * SAVE_SHARE < self.cost:
            return None
        began = time.monotonic()
        data = tensors_bytes(self.engine.state(), {"stack": {"slots": self.slots, "ages": list(self.engine.ages)}})
        self.saved = time.monotonic()
        self.cost = self.saved - began
        return data


def _ended(index: int, status: str, reason: str) -> dict[str, Any]:
    return {"index": index, "ended": status, "reason": reason}
