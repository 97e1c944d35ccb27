"""One thread where a step is small, as many as before where it is not; and how many members fit."""

import sys
from types import SimpleNamespace

import pytest
import torch

from koopsim.engine import memory, threads
from koopsim.engine.memory import cut, device_memory, fitting, fitting_groups
from koopsim.engine.threads import MUCH, few_threads

CPU = torch.device("cpu")


@pytest.fixture
def three(monkeypatch):
    monkeypatch.setattr(threads._Threads, "before", threads._Threads.before)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def worker(monkeypatch):
    """Inside a thread of joblib's, or not."""
    level = SimpleNamespace(nesting_level=0)
    module = SimpleNamespace(get_active_backend=lambda: (level, 1))
    monkeypatch.setitem(sys.modules, "joblib", SimpleNamespace(parallel=module))
    monkeypatch.setitem(sys.modules, "joblib.parallel", module)
    return level


def test_a_small_step_has_one_thread_and_gives_them_back(three, worker):
    with few_threads(MUCH - 1):
        assert torch.get_num_threads() == 1
        with few_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1  # the outer one is still at work
    assert torch.get_num_threads() == 3
    for work in (MUCH, MUCH + 1):
        with few_threads(work):
            assert torch.get_num_threads() == 3
    with few_threads():
        assert torch.get_num_threads() == 3
    with pytest.raises(ZeroDivisionError), few_threads(0):
        raise ZeroDivisionError
    assert (torch.get_num_threads(), threads._Threads.inside) == (3, 0)


def test_one_of_many_workers_has_one_thread(three, worker, monkeypatch):
    assert not threads._is_worker()
    worker.nesting_level = 1
    assert threads._is_worker()
    with few_threads(MUCH):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    monkeypatch.delitem(sys.modules, "joblib")
    assert not threads._is_worker()


def test_how_many_fit(monkeypatch):
    monkeypatch.setattr(memory, "device_memory", lambda device: 100)
    share = int(memory.SHARE * 100)
    assert [fitting(each, CPU) for each in (1, 0, 8, share, share + 1, 1000)] == [share, share, share // 8, 1, 1, 1]
    assert fitting_groups(20, 8, CPU) == [range(10), range(10, 20)]
    assert fitting_groups(21, 8, CPU) == [range(7), range(7, 14), range(14, 21)]
    assert fitting_groups(5, 8, CPU, 2) == [range(1), range(1, 3), range(3, 5)]
    assert cut(7, 2) == [range(3), range(3, 7)]


def test_half_of_what_is_free_on_a_cpu(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 101)
    assert device_memory(CPU) == 50
