"""Kernels of a step are built together before it is taken; whatever goes wrong, their launches build them as ever.

Built for an H200 that is not here: Triton is told of one, whose launches are counted and do nothing.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from koopsim.engine import rehearsal
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.engine.world import World
from koopsim.presets import run_of
from koopsim.tasks import build_task
from koopsim.tasks.own import Learning, OwnTask

CPU = torch.device("cpu")
STAGE = """
import os, threading
from types import SimpleNamespace
import torch, triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from koopsim.engine import rehearsal
from koopsim.nn.kernels.bias_relu import _backward, _forward, bias_relu

class Hopper:
    stream, callers, launched = 0, [], []
    utils = SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": 227 * 1024},
        load_binary=lambda *binary: (1, 1, 32, 0, 1024),
    )
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: self.stream
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)
    def launcher_cls(self, source, metadata):
        self.callers.append(threading.current_thread().name)
        return lambda *arguments: self.launched.append(source.fn.fn.__name__)

gpu, builds, read = Hopper(), [], []
triton.runtime.driver.set_active(gpu)
def heard(cache_hit, **more):
    (read if cache_hit else builds).append(threading.current_thread().name)
knobs.compilation.listener = heard
x, b = torch.randn(8, 4, requires_grad=True), torch.zeros(4)
def step():
    bias_relu(x, b).sum().backward()
def by_threads():
    return [name for name in builds if name.startswith("koopsim-builds")]
"""

BUILT = """
assert rehearsal.build_kernels(step) == 2
assert len(by_threads()) == len(builds) == len(gpu.callers) == 2 and gpu.launched == []
assert sum(name.endswith(".cubin") for _, _, names in os.walk(os.environ["TRITON_CACHE_DIR"]) for name in names) == 2
assert threading.active_count() == 1 and knobs.runtime.jit_cache_hook is None
step()
assert len(builds) == 2 and gpu.launched == ["_forward", "_backward"]
assert rehearsal.build_kernels(step) == 0 and len(builds) == 2 and read == []
_forward.device_caches.clear()  # as another process that does not rehearse
_backward.device_caches.clear()
step()
assert len(builds) == 2 and read == ["MainThread"] * 2
"""

FAILED = """
_forward.preload = lambda what: 1 / 0
assert rehearsal.build_kernels(step) == 2 and len(by_threads()) == 1
step()
assert builds[1:] == ["MainThread"] and gpu.launched == ["_forward", "_backward"]
assert threading.active_count() == 1
"""

NO_CALLER = """
whole, gpu.launcher_cls = gpu.launcher_cls, lambda source, metadata: 1 / 0
assert rehearsal.build_kernels(step) == 2
gpu.launcher_cls = whole
step()
assert len(builds) == 2 and gpu.launched == ["_forward", "_backward"]
"""

ENDED_EARLY = """
def ends():
    bias_relu(x, b)
    raise RuntimeError
assert rehearsal.build_kernels(ends) == 1 and knobs.runtime.jit_cache_hook is None
step()
assert builds[1:] == ["MainThread"] and gpu.launched == ["_forward", "_backward"]
"""

BESIDE = """
def beside():
    gpu.stream = 1
    step()
    gpu.stream = 0
assert rehearsal.build_kernels(beside) == 0
assert builds == ["MainThread"] * 2 and gpu.launched == ["_forward", "_backward"]
inner = []
assert rehearsal.build_kernels(lambda: inner.append(rehearsal.build_kernels(step))) == 0 == inner[0]
"""

A_BATCH = """
from koopsim.nn.kernels.batch import batch_rows
rows, order, positions = torch.zeros(4, 2), torch.arange(4).view(1, 4), torch.zeros(1, dtype=torch.int64)
def whole():
    batch_rows(rows, rows, order, positions, 2, 0, 2)
    step()
assert rehearsal.build_kernels(whole) == 2  # without a batch numbers out of nowhere would be taken for places
assert gpu.launched == ["_copy"]
"""


SCENES = {"built": BUILT, "failed": FAILED, "no caller": NO_CALLER, "ended early": ENDED_EARLY, "beside": BESIDE}
SCENES |= {"a batch": A_BATCH}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_the_kernels_of_a_step(scene, tmp_path):
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", STAGE + scene], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_without_triton_nothing_is_rehearsed(monkeypatch):
    monkeypatch.setattr(rehearsal, "TRITON", False)
    assert rehearsal.build_kernels(lambda: pytest.fail("the step was run")) == 0


class Others(nn.Linear):
    """A layer of somebody's own, which may take its numbers for places."""


def test_only_steps_that_do_not_look_at_their_numbers():
    run = run_of("digits/sim-single", "smoke")
    task = build_task(run.task, CPU)
    assert rehearsal.indifferent(task, task.model(run))
    assert not rehearsal.indifferent(task, nn.Sequential(task.model(run), Others(10, 10)))
    assert not rehearsal.indifferent(task, task.model(run_of("digits/mondeq-single", "smoke")))
    own = OwnTask(nn.Linear(2, 1), (torch.zeros(4, 2), torch.zeros(4, 1)), Learning())
    assert not rehearsal.indifferent(own, own.prototype)


def test_who_rehearses(monkeypatch):
    """Alone, where each step is a process's own, and not through torch.compile, whose first step is another."""
    run = run_of("digits/sim-single", "smoke")
    task = build_task(run.task, CPU)
    monkeypatch.setattr(torch, "compile", lambda model, **more: model)

    def rehearses(**way: object) -> bool:
        return Stacked([run], task, CPU, 1, Way(**way)).part.rehearse

    assert rehearses()
    assert not rehearses(compile=True)
    assert not rehearses(world=World(0, 2))
    monkeypatch.setattr(rehearsal, "WANTED", False)  # KOOPSIM_REHEARSE=0
    assert not rehearses()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_rehearsed_run_is_the_same_run():
    """To the bit, where two runs without a rehearsal are: cuDNN has kernels that add in any order."""
    run, device = run_of("digits/sim-single", "smoke"), torch.device("cuda")
    task, found = build_task(run.task, device), []
    for rehearse in (False, True, False):
        part = Stacked([run], task, device, 1).part
        part.rehearse = rehearse
        part.begin_epoch()
        part.advance(0, min(4, part.epoch_steps))
        found.append({name: value.double() for name, value in part.state().items()})
    plain, rehearsed, again = found
    for name, value in plain.items():
        noise = float((value - again[name]).abs().max())
        torch.testing.assert_close(rehearsed[name], value, rtol=0, atol=3 * noise, msg=f"{name}, noise {noise:g}")
