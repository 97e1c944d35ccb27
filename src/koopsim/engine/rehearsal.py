"""The Triton kernels of a step, built side by side before it is first taken.

    the step without them -> what each is to be built for -> a thread each -> their launches find them built

Triton builds a kernel when it is first launched, so the kernels of a step are built one after the other. Here the step
is rehearsed: Triton holds back our kernels that are not there yet, and says what it would have built. Four fifths of a
build or more are LLVM's, ptxas's and a C compiler's, which leave Python's lock to others. What a rehearsed step
computes is worthless, and the state it changes is to be given back. Whatever goes wrong in here is left to the
launches: they build what they do not find. KOOPSIM_REHEARSE=0 leaves it all to them.
"""

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import nn

from koopsim.implicit.base import SolverModel
from koopsim.nn.transforms import TRITON
from koopsim.tasks.base import Task

WANTED = os.environ.get("KOOPSIM_REHEARSE") != "0"
OURS = ("koopsim.", "torch.")
NEEDED = ("koopsim.nn.kernels.batch",)  # what it brings others take for places in memory: it must be there
Wanted = dict[tuple[Any, str], str]  # (kernel, Triton's key for it) -> what it is built for

log = logging.getLogger(__name__)
_stage = Lock()  # Triton has one place for whoever holds kernels back


def indifferent(task: Task, model: nn.Module) -> bool:
    """Whether a step does the same whatever its numbers are: no solver looks at them, and no code of others', which
    may take one for a place in memory."""
    parts = list(model.modules())
    ours = all(type(part).__module__.startswith(OURS) for part in (task, *parts)) and not task.checks_itself
    return ours and not any(isinstance(part, SolverModel) for part in parts)


def build_kernels(step: Callable[[], None]) -> int:
    """Build what `step` will launch; how many were to be built. The state it changes is the caller's to give back."""
    wanted: Wanted = {}
    if not TRITON or not _stage.acquire(blocking=False):
        return 0
    try:
        with held_back(wanted):
            step()
    except Exception as error:  # the step itself will fail again, and be heard
        log.debug("a rehearsal ended early: %r", error)
    finally:
        _stage.release()
    device = torch.cuda.current_device() if torch.cuda.is_available() else -1  # each thread has one of its own
    with ThreadPoolExecutor(thread_name_prefix="koopsim-builds") as threads:
        builds = [threads.submit(_built, kernel, what, device) for (kernel, _), what in wanted.items()]
    for error in filter(None, (build.exception() for build in builds)):
        log.debug("a kernel is left to its launch: %r", error)
    return len(builds)


@contextmanager
def held_back(wanted: Wanted) -> Iterator[None]:
    """Launches of our kernels on this stream that would have to be built are noted in `wanted`, and not made."""
    from triton import knobs

    here, before = _stream(), knobs.runtime.jit_cache_hook

    def note(*, fn: Any, compile: Any, **more: Any) -> bool:
        ours = fn.module.startswith(OURS[0]) and fn.module not in NEEDED
        held = ours and _stream() == here  # others' threads launch as ever
        if held:
            wanted[fn.jit_function, compile["key"]] = compile["specialization_data"]
        return held

    knobs.runtime.jit_cache_hook = note
    try:
        yield
    finally:
        knobs.runtime.jit_cache_hook = before


def _stream() -> tuple[int, int]:
    """Where a launch goes: autograd's threads launch where the forward pass did."""
    from triton.runtime import driver

    active: Any = driver.active
    device = active.get_current_device()
    return device, active.get_current_stream(device)


def _built(kernel: Any, what: str, device: int) -> None:
    """Put the kernel into this process and into the cache that all share, and there what calls it: older Tritons have a
    C compiler make that. The GPU is left to the launch."""
    from triton.runtime import driver

    active: Any = driver.active
    with torch.cuda.device(device):
        built = kernel.preload(what)
        active.launcher_cls(built.src, built.metadata)
