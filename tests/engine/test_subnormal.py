"""Subnormal numbers are zero while a training runs on a CPU, in every thread, and not afterwards."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from koopsim.engine import subnormal
from koopsim.engine.drive import Course, drive
from koopsim.engine.subnormal import are_zero, subnormals_are_zero
from koopsim.searching import ray_worker

CPU = torch.device("cpu")
MANY = 2**20  # numbers, enough for two threads
LEFT = f"""
import sys, torch
from koopsim.engine.subnormal import subnormals_are_zero

torch.set_num_threads(2)
small = torch.full(({MANY},), 1e-39)

def left():
    return int((small * 0.5).view(torch.int32).count_nonzero())

before = left()  # the threads are there from now on
with subnormals_are_zero(torch.device("cpu")):
    within = left()
print(before, within, left())
with subnormals_are_zero(torch.device("cpu")):
    torch.set_num_threads(1)
torch.set_num_threads(2)
print(left())
torch.set_num_threads(1)
with subnormals_are_zero(torch.device("cpu")):
    torch.set_num_threads(3)
    left()  # the third begins here
print(left())
"""


@pytest.fixture(autouse=True)
def can():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps them")
    torch.set_flush_denormal(False)


def test_threads_that_are_there_already_are_told():
    said = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, check=True).stdout
    assert list(map(int, said.split())) == [MANY, 0, MANY, MANY, MANY], "at rest at the end, or begun within"


def half(number: float, dtype: torch.dtype) -> float:
    return float((torch.tensor(number, dtype=dtype) * 0.5).double())


def test_they_are_zero_inside_and_as_they_were_afterwards():
    for _ in range(2):
        assert not are_zero()
        with subnormals_are_zero(CPU):
            assert are_zero()
            assert half(2e-38, torch.float32) == 0.0
            assert half(2.5e-38, torch.float32) > 0  # the least that is normal is 1.18e-38
            with subnormals_are_zero(CPU):
                pass
            assert are_zero()  # the inner one found it so
    assert not are_zero()
    assert half(2e-38, torch.float32) > 0


def test_numpy_has_found_its_limits_before(monkeypatch):
    """NumPy 2.0 to 2.3 warns, once, where it is first asked with subnormal numbers at zero."""
    asked = []
    monkeypatch.setattr(subnormal.np, "finfo", lambda kind: asked.append((kind, are_zero())))
    with subnormals_are_zero(CPU):
        pass
    assert asked == [(np.float32, False), (np.float64, False)]


def test_an_error_ends_it_too():
    with pytest.raises(ZeroDivisionError), subnormals_are_zero(CPU):
        1 / 0  # noqa: B018
    assert not are_zero()


def test_other_devices_and_other_processors_are_left_alone(monkeypatch):
    with subnormals_are_zero(torch.device("meta")):
        assert not are_zero()
    monkeypatch.setattr(torch, "set_flush_denormal", lambda on: False)
    monkeypatch.setattr(subnormal, "_tell_threads", lambda count: pytest.fail("nothing was set"))
    with subnormals_are_zero(CPU):
        assert not are_zero()


def test_without_gccs_openmp_the_thread_itself_counts_so(monkeypatch):
    monkeypatch.setattr(subnormal.sys, "platform", "darwin")
    with subnormals_are_zero(CPU):
        assert are_zero()
    assert not are_zero()


class Looking(Course):
    """A course without steps, which looks how its process counts."""

    def __init__(self):
        self.device, self.seen = CPU, []

    def turn(self):
        self.seen.append(are_zero())

    def over(self, steps): ...

    def save(self): ...


def test_a_trial_on_ray_counts_so(monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(ray_worker, "_train", lambda index, payload, device: seen.append(are_zero()))
    ray_worker.train_trial({"index": 0}, '{"over": []}')
    assert seen == [True]
    assert not are_zero()


def test_a_course_counts_so():
    course = Looking()
    drive(course)
    assert course.seen == [True]
    assert not are_zero()
