"""As much of Ray as the driver of a hybrid search knows, in this process: its workers die when they are meant to.

    ray = Here(told(loss))             workers that say what is written: `loss(trial, epoch)`
    ray = Here(real)                   StackWorkers, each on this processor

Calls are answered one at a time, the oldest first. Real clusters are in test_ray.py; what cannot be chosen there is
which call a worker does not answer.
"""

import copy
import itertools
from collections import Counter
from types import SimpleNamespace

import torch
from ray.exceptions import RayActorError

from koopsim.files.tensors import tensors_bytes
from koopsim.searching.stack_worker import Epoch, StackWorker

MOST_LOOKS = 300  # a driver that goes on and on is stopped


class Here:
    """A cluster. before(method, n): what happens before the n-th call of that name is answered; it may raise.

    said    ("begin", trials, at_once, the slots of a saved stack), ("epoch", changes, more), as they were answered
    hired   what each worker was given;   up: whether it runs, None before it was started
    """

    def __init__(self, worker, cpu=1.0, gpu=0.0, before=lambda method, n: None):
        self.worker, self.resources, self.before = worker, {"CPU": cpu, "GPU": gpu}, before
        self.said, self.hired, self.killed, self.up = [], [], [], None
        self.calls, self.asked, self.looks = {}, Counter(), 0

    def start(self, address):
        self.up = True

    def shutdown(self):
        self.up = False

    def cluster_resources(self):
        return self.resources

    def put(self, value):
        return value

    def remote(self, kind):
        assert kind is StackWorker

        def hire(payload, share):
            self.hired.append(share)
            return self._actor(self.worker(payload))

        return SimpleNamespace(options=lambda **share: SimpleNamespace(remote=lambda payload: hire(payload, share)))

    def _actor(self, worker):
        def later(method):
            def call(*arguments):
                token = object()
                self.calls[token] = worker, method, copy.deepcopy(arguments)  # as they are when they are sent
                return token

            return SimpleNamespace(remote=call)

        return SimpleNamespace(worker=worker, **{method: later(method) for method in ("ready", "begin", "epoch")})

    def wait(self, calls, timeout):
        self.looks += 1
        assert timeout == 2.0
        assert self.looks < MOST_LOOKS, "the driver goes on and on"
        return calls[:1], calls[1:]

    def get(self, token):
        worker, method, given = self.calls.pop(token)
        self.asked[method] += 1
        if method == "begin":
            saved = given[2] if len(given) > 2 else None
            self.said.append(("begin", list(given[0]), given[1], saved and saved["slots"]))
        elif method == "epoch":
            self.said.append(("epoch", *given))
        if any(worker is actor.worker for actor in self.killed):
            raise RayActorError()
        self.before(method, self.asked[method])
        return getattr(worker, method)(*given)

    def kill(self, actor):
        self.killed.append(actor)

    def begun(self):
        return [said[1:] for said in self.said if said[0] == "begin"]


def dying(*calls):
    """`before` of workers that are gone when these calls, such as ("epoch", 3), are to be answered."""

    def before(method, n):
        if (method, n) in calls:
            raise RayActorError()

    return before


def real(payload):
    return StackWorker(payload, "cpu")


def told(loss, saves=lambda n: True):
    """Workers that have trained already. `saves(n)`: whether the stack is sent along with the n-th epoch of all."""
    counted = itertools.count(1)
    return lambda payload: Told(loss, lambda: saves(next(counted)))


def steady(*losses):
    """Told workers whose trials have the same loss at every epoch."""
    return told(lambda index, t: losses[index])


class Told:
    def __init__(self, loss, saves):
        self.loss, self.saves, self.slots, self.ages = loss, saves, [], {}

    def ready(self):
        return "cpu"

    def begin(self, trials, at_once, saved=None):
        if saved:
            self.slots = list(saved["slots"])
            self.ages = {i: age for i, age in zip(self.slots, saved["ages"], strict=True) if i is not None}
            return Epoch(slots=[*self.slots])
        self.slots = list(trials)[: at_once or None]
        return Epoch(slots=[*self.slots], back=list(trials)[len(self.slots) :])

    def epoch(self, changes, more):
        for slot, index in changes.items():
            self.slots[slot] = index
        lines = []
        for index in self.slots:
            if index is not None:
                self.ages[index] = self.ages.get(index, 0) + 1
                lines.append({"index": index, "t": self.ages[index], "loss": self.loss(index, self.ages[index])})
        state = stack_file(self.slots, [self.ages.get(i, 0) for i in self.slots])
        return Epoch(lines, [*self.slots], state=state if self.saves() else None)


def stack_file(slots, ages):
    return tensors_bytes({"w": torch.zeros(1)}, {"stack": {"slots": slots, "ages": ages}})
