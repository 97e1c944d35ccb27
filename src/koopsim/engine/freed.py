"""What a step frees stays with the process for the next one: on a CPU, under Linux.

glibc gives memory back to the system as soon as much of it is free at the end of its heap, and blocks of more than
32 MiB at once. The next step asks for the same again, and the system clears every page before it is touched: tens of
thousands of page faults, a fifth to a third of a VGG's step (docs/speed.md). On a GPU PyTorch keeps what was freed;
here glibc is asked to, and afterwards gives back all that is free. Whoever told glibc something else is left alone.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # malloc.h
NEVER, NONE = -1, 0
KEEPING = {MMAP_MAX: NONE, TRIM_THRESHOLD: NEVER}
# glibc's own, as they are after a block of 32 MiB was freed: they only grow, and end for good once they are set
AFTER = {MMAP_MAX: 65536, MMAP_THRESHOLD: 32 * 2**20, TRIM_THRESHOLD: 64 * 2**20}


@contextmanager
def freed_memory_kept(device: torch.device) -> Iterator[None]:
    """Until its end the process gives no memory back; where there is no glibc, nothing happens."""
    libc = _glibc() if device.type == "cpu" else None
    if libc is None:
        yield
        return
    _set(libc.mallopt, KEEPING)
    try:
        yield
    finally:
        _set(libc.mallopt, AFTER)
        libc.malloc_trim(0)


def _glibc() -> Any | None:
    told = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or told:
        return None
    libc = ctypes.CDLL(None)
    known = all(hasattr(libc, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim"))
    return libc if known else None


def _set(mallopt: Callable[[int, int], int], options: dict[int, int]) -> None:
    for option, value in options.items():
        mallopt(option, value)
