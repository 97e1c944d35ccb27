"""The host's loop by hand: whose turn it is, chunks by a clock that the test turns, Ctrl-C, and devices."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch

from koopsim.engine import drive
from koopsim.engine.drive import CHUNK_SECONDS, Course, Stopped, pick_device, stop_requests
from koopsim.engine.world import World
from koopsim.errors import KoopsimError


class Steps:
    def __init__(self, epoch_steps, now, seconds=0.0):
        self.epoch_steps, self.now, self.seconds, self.said = epoch_steps, now, seconds, []

    def begin_epoch(self):
        self.said.append("begin")

    def advance(self, first, last):
        self.now[0] += self.seconds * (last - first)
        self.said.append((first, last))

    def finish_epoch(self):
        self.said.append("finish")


class Turns(Course):
    device = torch.device("cpu")

    def __init__(self, *turns):
        self.turns, self.saves, self.overs, self.chunks, self.stop_at = list(turns), 0, 0, [], None

    def turn(self):
        return self.turns[0] if self.turns else None

    def over(self, steps):
        self.overs += 1
        self.turns.pop(0)

    def save(self):
        self.saves += 1

    def before(self, steps, first, last):
        if self.stop_at == first:
            os.kill(os.getpid(), signal.SIGINT)

    def after(self, steps, first, last, seconds):
        self.chunks.append((first, last, seconds))


@pytest.fixture
def now(monkeypatch):
    now = [50.0]
    monkeypatch.setattr(drive, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0]))
    return now


def test_all_turns_are_taken_in_chunks_that_double_where_the_clock_stands_still(now):
    first, second = Steps(10, now), Steps(2, now)
    course = Turns(first, second)
    drive.drive(course)
    assert first.said == ["begin", (0, 1), (1, 3), (3, 7), (7, 10), "finish"]
    assert second.said == ["begin", (0, 2), "finish"]
    assert (course.overs, course.position) == (2, 0)
    assert {seconds for *_, seconds in course.chunks} == {drive.SHORTEST}


def test_chunks_take_as_long_as_the_host_may_look_away(now):
    steps = Steps(40, now, CHUNK_SECONDS / 5)
    course = Turns(steps)
    drive.drive(course)
    fives = ((i, min(i + 5, 40)) for i in range(7, 40, 5))
    assert [chunk[:2] for chunk in course.chunks] == [(0, 1), (1, 3), (3, 7), *fives]
    slow = Turns(Steps(3, now, 3 * CHUNK_SECONDS))
    drive.drive(slow)
    assert [chunk[:2] for chunk in slow.chunks] == [(0, 1), (1, 2), (2, 3)]  # never none
    assert slow.chunks[0][2] == pytest.approx(3 * CHUNK_SECONDS)


def test_an_epoch_goes_on_in_its_middle(now):
    steps = Steps(5, now)
    course = Turns(steps)
    course.position = 3
    drive.drive(course)
    assert steps.said == [(3, 4), (4, 5), "finish"]


@pytest.mark.parametrize("at", [0, 1])
def test_who_presses_the_keys_is_saved_after_the_chunk(now, at):
    before = signal.getsignal(signal.SIGINT)
    steps = Steps(9, now)
    course = Turns(steps)
    course.stop_at = at
    with pytest.raises(Stopped):
        drive.drive(course)
    assert (course.saves, course.overs, steps.said[-1]) == (1, 0, (0, 1) if at == 0 else (1, 3))
    assert signal.getsignal(signal.SIGINT) is before


def test_several_stop_when_all_know_of_it(now):
    """In a world of several the first chunk after a key goes on: only what all agreed on counts."""

    class Two(World):
        def agreed(self, chunk, stop):
            return chunk, stop

    steps = Steps(9, now)
    course = Turns(steps)
    course.stop_at, course.world = 0, Two(0, 2)
    with pytest.raises(Stopped):
        drive.drive(course)
    assert steps.said == ["begin", (0, 1), (1, 3)]
    assert course.saves == 1


def test_a_second_key_ends_it_at_once():
    with stop_requests() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    found = []

    def elsewhere():
        with stop_requests() as asked:
            found.append(asked)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [[]]


def test_devices_that_hold_numbers(monkeypatch):
    assert pick_device("cpu") == pick_device(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(KoopsimError, match=r"^The device 'meta' cannot be used here: expected one of cpu, cuda, xpu"):
        pick_device("meta")
    with pytest.raises(KoopsimError, match=r"^The device 'nowhere' cannot be used here: [^.]*\.$"):
        pick_device("nowhere")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device() == torch.device("cpu")
