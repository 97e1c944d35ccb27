"""Works in processes of their own: they run when they are told, inside their context, and their failures are heard."""

import os
import time
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from koopsim.bench.apart import apart
from koopsim.bench.timing import measure
from koopsim.errors import KoopsimError

CPU = torch.device("cpu")


def writing(file):
    """A work that says who it is, with how many threads."""

    def work():
        with file.open("a") as out:
            out.write(f"{os.getpid()} {torch.get_num_threads()}\n")

    return work


@contextmanager
def noted(file):
    file.write_text("began\n")
    try:
        yield
    finally:
        with file.open("a") as out:
            out.write("over\n")


def failing():
    def work():
        raise ValueError("no")

    return work


def dying():
    os._exit(1)


def lines_of(file, enough):
    """What is in the file, once there is enough of it."""
    until = time.monotonic() + 30
    while len(file.read_text().splitlines()) < enough and time.monotonic() < until:
        time.sleep(0.01)
    return file.read_text().splitlines()


def test_it_runs_elsewhere_as_often_as_it_is_told_and_leaves_its_context(tmp_path):
    file = tmp_path / "said"
    work = apart(partial(writing, file), partial(noted, file))()
    work()
    work()
    began, *ran = file.read_text().splitlines()
    assert began == "began"
    assert len(ran) == 2
    assert len(set(ran)) == 1
    process, threads = map(int, ran[0].split())
    assert process != os.getpid()
    assert threads == torch.get_num_threads()
    del work  # nobody is left to tell it
    assert lines_of(file, 4)[-1] == "over"


def test_two_are_measured_in_turns(tmp_path):
    makers = {name: apart(partial(writing, tmp_path / name)) for name in ("one", "two")}
    found = measure(makers, CPU, turns=3)
    assert all(timing.seconds > 0 and timing.turns == 3 for timing in found.values())
    said = [set((tmp_path / name).read_text().splitlines()) for name in makers]
    assert all(len(own) == 1 for own in said)
    assert said[0] != said[1]


def test_what_fails_there_is_said_here():
    with pytest.raises(KoopsimError, match="ValueError: no"):
        apart(failing)()()
    with pytest.raises(KoopsimError, match="without a word"):
        apart(dying)()
