"""The GPU's context is begun before PyTorch is imported, where it will be used; where there is none nobody minds."""

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

from koopsim.cli import train, waking


@pytest.mark.parametrize("refuses", ["", "cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"])
def test_the_first_device_is_woken_unless_the_driver_refuses(refuses, monkeypatch):
    calls = []

    def call(name):
        return lambda *arguments: calls.append((name, arguments)) or (100 if name == refuses else 0)

    names = ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    driver = SimpleNamespace(**{name: call(name) for name in names})
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver if name == "libcuda.so.1" else pytest.fail(name))
    assert waking._first_context() is (refuses == "")
    assert [name for name, _ in calls] == names[: names.index(refuses) + 1 if refuses else None]
    assert calls[0][1] == (0,)


def test_a_machine_without_a_driver_is_left_alone(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert waking._first_context() is False


def test_it_happens_beside_the_rest_and_lazily(monkeypatch):
    threads = []
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    monkeypatch.setattr(waking, "_first_context", lambda: threads.append(waking.os.environ["CUDA_MODULE_LOADING"]))
    monkeypatch.setattr(waking, "Thread", lambda target, **more: SimpleNamespace(start=target))
    waking.wake_gpu()
    assert threads == ["LAZY"]


@pytest.mark.parametrize(
    ("words", "read", "woken"),
    [
        ("", True, True),
        ("--device cuda:0", True, True),
        ("--scale smoke", False, True),
        ("--data photos", False, True),
        ("--device cpu", True, False),
        ("--device=cuda:1", True, False),
        ("--devices 2", True, False),
        ("--backend ray", True, False),
        ("--help", False, False),
    ],
)
def test_only_what_will_be_used_is_begun(words, read, woken, monkeypatch):
    begun = []
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(train, "read_ahead", begun.append)
    monkeypatch.setattr(train, "wake_gpu", lambda: begun.append("gpu"))
    train._begin("cifar10/sim-single", words.split())
    assert begun == ["cifar10"] * read + ["gpu"] * woken


def test_one_of_several_processes_wakes_none(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(train, "read_ahead", lambda name: None)
    monkeypatch.setattr(train, "wake_gpu", lambda: pytest.fail("its GPU may be another one"))
    train._begin("cifar10/sim-single", [])


def test_waking_imports_no_torch():
    script = "import sys, koopsim.cli.waking as w; w.wake_gpu(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
