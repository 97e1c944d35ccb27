"""How many threads a step is worth: one where it is small, and one inside a thread of joblib's.

A step of a few hundred rows is over before a second thread has begun, and on a busy machine it then waits for it.
Workers of joblib are as many as there are cores already: processes get their share from joblib itself
(OMP_NUM_THREADS), threads of one process do not.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

MUCH = 2**26  # products of a step from which a second thread pays


class _Threads:
    """How much is at work with few threads, and how many torch had before the first of it."""

    lock, inside, before = threading.Lock(), 0, 1


@contextmanager
def few_threads(work: int = MUCH) -> Iterator[None]:
    """One thread of torch where a step is little `work`, or where this is one of many workers."""
    if work >= MUCH and not _is_worker():
        yield
        return
    with _Threads.lock:
        if _Threads.inside == 0:
            _Threads.before = torch.get_num_threads()
            torch.set_num_threads(1)
        _Threads.inside += 1
    try:
        yield
    finally:
        with _Threads.lock:
            _Threads.inside -= 1
            if _Threads.inside == 0:
                torch.set_num_threads(_Threads.before)


def _is_worker() -> bool:
    if "joblib" not in sys.modules:
        return False
    from joblib.parallel import get_active_backend

    backend: Any = get_active_backend()[0]
    return bool(backend.nesting_level)
