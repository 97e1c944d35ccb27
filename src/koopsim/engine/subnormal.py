"""Numbers next to zero are zero while a training runs on a CPU.

    x  ->  0    where |x| < 2^-126 in float32, 2^-1022 in float64

Once a network has learnt its task its gradients fade, and many of them end down there, where a number has fewer digits
than others and Intel's processors need a hundred cycles and more for each product: a step of copy memory with trained
weights took 2.5 times as long (docs/speed.md). To a sum of gradients, and to Adam's eps, they are nothing.

The setting is a thread's own. PyTorch's threads have that of whoever began them; those that are there already are told
in a parallel region of their own, whose body is the C library's `fesetenv`.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

ENVIRONMENT = 256  # bytes for a fenv_t, which has 32 on x86-64 and 8 on aarch64


@contextmanager
def subnormals_are_zero(device: torch.device) -> Iterator[None]:
    """Until its end, where the processor can; whoever has it so already keeps it so."""
    if device.type != "cpu" or are_zero():
        yield
        return
    for kind in (np.float32, np.float64):  # older NumPys find their limits when first asked, and warn of such zeros
        np.finfo(kind)
    if not torch.set_flush_denormal(True):
        yield
        return
    threads = torch.get_num_threads()
    try:
        _tell_threads(threads)
        yield
    finally:
        torch.set_flush_denormal(False)
        _tell_threads(max(threads, torch.get_num_threads()))  # those that are at rest by now, too


def are_zero() -> bool:
    """Whether they are, in this thread."""
    return sys.float_info.min * 0.5 == 0.0


def _tell_threads(count: int) -> None:
    """So many threads that PyTorch computes with for this one count as this one does."""
    known = _openmp()
    if known is None or count == 1:
        return
    own = (ctypes.c_char * ENVIRONMENT)()
    known.fegetenv(own)
    body = ctypes.cast(known.fesetenv, ctypes.c_void_p)
    known.GOMP_parallel(body, own, ctypes.c_uint(count), ctypes.c_uint(0))


def _openmp() -> Any | None:
    """What PyTorch has brought along: GCC's OpenMP, which its Linux builds have, and the C library."""
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None)
    return found if all(hasattr(found, name) for name in ("GOMP_parallel", "fegetenv", "fesetenv")) else None
