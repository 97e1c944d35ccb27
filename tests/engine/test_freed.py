"""Memory that was freed stays with the process while it trains, and is given back afterwards."""

import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from koopsim.engine import freed
from koopsim.engine.drive import Course, drive
from koopsim.engine.freed import freed_memory_kept

CPU = torch.device("cpu")
GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is asked")
COUNTED = """
import resource, torch
from koopsim.engine.freed import freed_memory_kept

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for size in (5, 10, 15):  # of 2^20 numbers: 20, 40 and 60 MB
        torch.ones(size * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1])

faults()
empty = resident()
without = faults()
with freed_memory_kept(torch.device("cpu")):
    for _ in range(8):  # small blocks lie between at first
        within = faults()
    held = resident()
print(without, within, held - empty, resident() - empty)
"""


@GLIBC
def test_a_second_step_finds_the_pages_of_the_first():
    said = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True).stdout
    without, within, held, after = map(int, said.split())
    pages = 60 * 2**20 // 4096  # of the largest block alone
    assert without > 20 * max(within, 1)  # pages may be huge ones: then a few dozen are all there are
    assert held > pages // 2 > 5 * after


class Asked:
    """A libc that writes down what it is asked."""

    def __init__(self, said):
        self.said = said

    def gnu_get_libc_version(self): ...

    def mallopt(self, option, value):
        self.said.append((option, value))

    def malloc_trim(self, pad):
        self.said.append(pad)


@pytest.fixture
def said(monkeypatch):
    said = []
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(freed, "ctypes", SimpleNamespace(CDLL=lambda name: Asked(said)))
    return said


def test_it_asks_and_takes_back_though_the_run_fails(said):
    with pytest.raises(ZeroDivisionError), freed_memory_kept(CPU):
        assert said == list(freed.KEEPING.items())
        raise ZeroDivisionError
    assert said == [*freed.KEEPING.items(), *freed.AFTER.items(), 0]


def test_whatever_is_driven_is_driven_so(said):
    class Done(Course):
        device = CPU

        def turn(self):
            assert said == list(freed.KEEPING.items())

        def over(self, steps): ...

        def save(self): ...

    drive(Done())
    assert said[-1] == 0


@pytest.mark.parametrize("where", ["another system", "another libc", "a GPU", "told", "tuned"])
def test_elsewhere_nothing_happens(where, said, monkeypatch):
    if where == "another system":
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(freed, "ctypes", SimpleNamespace(CDLL=lambda name: pytest.fail("it is not looked for")))
    elif where == "another libc":
        monkeypatch.delattr(Asked, "gnu_get_libc_version")
    elif where == "told":
        monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    elif where == "tuned":
        monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=128")
    with freed_memory_kept(torch.device("cuda" if where == "a GPU" else "cpu")):
        pass
    assert said == []
