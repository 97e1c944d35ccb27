"""A work in a process of its own, told when to run: its memory is its own, as when nothing else is measured.

    timings = measure({"ours": apart(make), "theirs": apart(make_theirs)}, device)          in turns, as ever

Within one process the sides share what either has freed, and what one asks of the allocator holds for the other.
"""

import multiprocessing
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection

import torch

from koopsim.bench.timing import Maker, Work
from koopsim.errors import KoopsimError


def apart(make: Maker, inside: Callable[[], AbstractContextManager] = nullcontext) -> Maker:
    """Builds the work in a new process, where it runs inside a context. Both travel there: they can be pickled."""

    def begin() -> Work:
        here, there = multiprocessing.Pipe()
        given = there, torch.get_num_threads(), make, inside
        multiprocessing.get_context("spawn").Process(target=_serve, args=given, daemon=True).start()
        there.close()
        _hear(here)

        def work() -> None:
            here.send(None)
            _hear(here)

        return work

    return begin


def _hear(here: Connection) -> None:
    """Until the other process is ready, or has failed."""
    try:
        failure = here.recv()
    except EOFError:
        failure = "it ended without a word"
    if failure is not None:
        raise KoopsimError(f"A process that was to be measured failed: {failure}.")


def _serve(there: Connection, threads: int, make: Maker, inside: Callable[[], AbstractContextManager]) -> None:
    """In the new process: whenever it is told, until nobody is left to tell it."""
    torch.set_num_threads(threads)
    try:
        with warnings.catch_warnings(action="ignore"), inside():
            work = make()
            while True:
                there.send(None)
                there.recv()
                work()
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        there.send(f"{type(error).__name__}: {error}")
