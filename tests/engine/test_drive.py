"""When a checkpoint is due, by a clock that the test turns; and what a rank says of the others without any."""

import re
from types import SimpleNamespace

import pytest
import torch

from koopsim.engine import drive
from koopsim.engine.world import ALONE, LOST, World, _same_versions, _surely, device_of_rank
from koopsim.errors import KoopsimError, LostOthers


class Course:
    together, must_save, world = False, False, ALONE

    def __init__(self, now):
        self.saves, self.now, self.takes = 0, now, 0.0

    def save(self):
        self.saves += 1
        self.now[0] += self.takes


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(drive, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0]))
    course = Course(now)
    return now, course, drive._Clock(course)


def test_a_checkpoint_is_written_when_its_time_has_come(clock):
    now, course, own = clock
    own.save_when_due(False)
    now[0] += drive.SAVE_SECONDS
    own.save_when_due(False)
    assert course.saves == 0  # not longer than that
    now[0] += 0.01
    own.save_when_due(False)
    own.save_when_due(False)
    assert course.saves == 1
    course.must_save = True
    own.save_when_due(False)
    assert (course.saves, course.must_save) == (2, False)


def test_at_the_end_of_an_epoch_where_it_costs_little_of_the_time_since(clock):
    now, course, own = clock
    course.takes = 2.0
    own.save_when_due(False, at_end=True)  # the first costs nothing as far as is known
    assert (course.saves, own.cost) == (1, 2.0)
    now[0] += 0.99 * 2.0 / drive.SAVE_SHARE
    if 0.99 * 2.0 / drive.SAVE_SHARE < drive.SAVE_SECONDS:
        own.save_when_due(False, at_end=True)
        assert course.saves == 1
    now[0] += 0.02 * 2.0 / drive.SAVE_SHARE
    own.save_when_due(False, at_end=True)
    assert course.saves == 2


def test_who_is_asked_to_stop_saves_first(clock):
    _, course, own = clock
    with pytest.raises(drive.Stopped):
        own.save_when_due(True)
    assert course.saves == 1


def test_several_save_by_the_first_ones_clock(clock):
    _, course, own = clock
    course.together = True
    course.world = SimpleNamespace(agreed=lambda chunk, stop: (1, stop))
    own.save_when_due(False)
    assert course.saves == 1
    course.world = SimpleNamespace(agreed=lambda chunk, stop: (0, stop))
    with pytest.raises(drive.Stopped):
        own.save_when_due(True)
    assert course.saves == 1


def test_that_the_others_are_gone_is_said_as_that():
    def gone(*arguments, **options):
        raise RuntimeError("  Connection closed by peer [127.0.0.1]\nand more")

    with pytest.raises(LostOthers, match=r"cannot be reached\. \(Connection closed by peer \[127\.0\.0\.1\]\)$"):
        _surely(gone)
    with pytest.raises(LostOthers, match="gloo says no"), World(0, 2).reached():
        raise RuntimeError("gloo says no")
    for world, said in ((World(0, 2), "shapes differ"), (ALONE, "gloo says no")):
        with pytest.raises(RuntimeError, match=said) as error, world.reached():
            raise RuntimeError(said)
        assert not isinstance(error.value, LostOthers)
    assert LOST in str(LostOthers(LOST))


def test_a_rank_of_another_version_is_named():
    class Told(World):
        def gathered(self, value):
            return [value, dict(value), value | {"torch": "0.1"}]

    own = re.escape(torch.__version__)
    with pytest.raises(KoopsimError, match=rf"^Rank 2 has torch 0\.1 where rank 0 has {own}; use the same"):
        _same_versions(Told(1, 3))
    _same_versions(ALONE)


@pytest.mark.parametrize(
    ("size", "local", "name", "gpus", "device"),
    [
        ("1", "0", "cuda", 2, "cuda"), ("2", "1", "cuda", 2, "cuda:1"), ("2", "0", "auto", 2, "cuda:0"),
        ("2", "1", "cpu", 2, "cpu"), ("2", "1", "auto", 0, "auto"), ("3", "2", "cuda", 2, None),
    ],
)  # fmt: skip
def test_each_process_of_a_machine_has_a_gpu_of_its_own(size, local, name, gpus, device, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if device is None:
        with pytest.raises(KoopsimError, match="Process 2 of this machine has no GPU of its own: there are 2"):
            device_of_rank(name)
    else:
        assert device_of_rank(name) == device
