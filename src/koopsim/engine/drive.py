"""The host's loop: whatever is trained goes through it.

    turn -> begin the epoch -> chunks of steps -> finish it -> judge -> the next turn      until nobody has one

Between two chunks the host looks up: progress, a loss that is not a number, Ctrl-C, a checkpoint that is due. Training
has one part and takes all turns; a set of pictures too large for the device has a few, one after the other; the groups
of a search take turns, an epoch each.
"""

import contextlib
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol

import torch

from koopsim.engine.freed import freed_memory_kept
from koopsim.engine.subnormal import subnormals_are_zero
from koopsim.engine.world import ALONE, World
from koopsim.errors import KoopsimError

CHUNK_SECONDS = 0.25  # how often the host looks up
DEVICES = ("cpu", "cuda", "xpu")  # those that hold numbers, float64 among them: losses are judged in it
SAVE_SECONDS = 30.0  # between checkpoints inside an epoch
SHORTEST = 1e-6  # seconds of a chunk, for a clock that has not moved
SAVE_SHARE = 0.05  # of the time, that checkpoints at the end of epochs may take


class Stopped(Exception):
    """It was asked to stop and has saved itself."""


class Steps(Protocol):
    """What takes a turn: engine/part.py, engine/slots.py."""

    @property
    def epoch_steps(self) -> int: ...
    def begin_epoch(self) -> None: ...
    def advance(self, first: int, last: int) -> None: ...
    def finish_epoch(self) -> None: ...


class Course(ABC):
    """What is to be driven: whose turn it is, what comes of it, where it stands."""

    device: torch.device
    world: World = ALONE
    position: int = 0  # steps into the epoch of whoever has the turn
    must_save: bool = False  # a file says more than the last checkpoint knows
    together: bool = False  # all processes take part when it is saved

    @abstractmethod
    def turn(self) -> Steps | None:
        """Who goes on with the epoch at `position`; None: all is done."""

    @abstractmethod
    def over(self, steps: Steps) -> None:
        """An epoch is finished: judge it."""

    @abstractmethod
    def save(self) -> None:
        """Where it stands, as one file."""

    def before(self, steps: Steps, first: int, last: int) -> None:
        """These steps of the epoch are about to be taken."""
        return

    def after(self, steps: Steps, first: int, last: int, seconds: float) -> None:
        """They were: tell how far it is, and refuse what is not a number."""
        return


def drive(course: Course) -> None:
    """Bring a course to its end; Ctrl-C or SIGTERM saves it and raises `Stopped`."""
    clock = _Clock(course)
    with stop_requests() as stop, course.world.reached(), as_it_trains(course.device):
        while (steps := course.turn()) is not None:
            if course.position == 0:
                steps.begin_epoch()
            while course.position < steps.epoch_steps:
                chunk, stopping = course.world.agreed(clock.chunk, bool(stop))
                first, last = course.position, min(course.position + chunk, steps.epoch_steps)
                course.before(steps, first, last)
                spent = _timed(steps, first, last, course.device)
                course.position = last
                course.after(steps, first, last, spent)
                taken = last - first  # an epoch may have been shorter than the chunk
                clock.chunk = max(1, min(2 * taken, round(taken * CHUNK_SECONDS / spent)))
                clock.save_when_due(stopping or (course.world.alone and bool(stop)))
            steps.finish_epoch()
            course.position = 0
            course.over(steps)
            clock.save_when_due(course.world.agreed(0, bool(stop))[1], at_end=True)


@contextlib.contextmanager
def as_it_trains(device: torch.device) -> Iterator[None]:
    """How a process trains on a CPU: with the memory it has had before, and numbers next to zero as zero."""
    with freed_memory_kept(device), subnormals_are_zero(device):
        yield


class _Clock:
    """When the next checkpoint is due, and how many steps the host lets pass at a time."""

    def __init__(self, course: Course):
        self.course, self.chunk = course, 1
        self.saved, self.cost = time.monotonic(), 0.0

    def save_when_due(self, stop: bool, at_end: bool = False) -> None:
        waited = time.monotonic() - self.saved
        cheap = at_end and waited * SAVE_SHARE >= self.cost
        due = stop or waited > SAVE_SECONDS or cheap or self.course.must_save
        if self.course.together:  # by the first one's clock
            due = bool(self.course.world.agreed(int(due), False)[0])
        if due:
            began = time.monotonic()
            self.course.save()
            self.course.must_save = False
            self.saved = time.monotonic()
            self.cost = self.saved - began
        if stop:
            raise Stopped


def _timed(steps: Steps, first: int, last: int, device: torch.device) -> float:
    began = time.perf_counter()
    steps.advance(first, last)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return max(time.perf_counter() - began, SHORTEST)


@contextlib.contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Collects Ctrl-C and SIGTERM so that a course can save itself first; a second Ctrl-C stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    try:
        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: nobody can press Ctrl-C here
        before = {}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """'auto' is CUDA where there is one; a device that is not there is refused."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type not in DEVICES:
            raise RuntimeError(f"expected one of {', '.join(DEVICES)}, which know float64.")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0].split(". ")[0].rstrip(".")  # torch goes on with a list of its backends
        raise KoopsimError(f"The device {name!r} cannot be used here: {first}.") from error
    return device
