"""`--devices N`: the same command in N processes that find one another, watched until all have ended.

    parent: a store at a free port     child r: RANK=r WORLD_SIZE=N MASTER_ADDR MASTER_PORT, as torchrun would set them

A rank that dies takes the others with it, and one line says which it was. Ctrl-C goes to all: they save and stop.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from koopsim.errors import KoopsimError

GRACE = 15.0  # seconds that the others have to end by themselves, once one has failed
NOTICED = 3.0  # seconds in which the rank that began it is known
PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
STOPPED, LOST = 130, 3  # statuses of a verb


def launch(command: Sequence[str], devices: int) -> int:
    """Run `python -m koopsim COMMAND` in so many processes; the status of the first that failed, or of rank 0."""
    import torch.distributed as distributed

    if devices < 2:
        raise KoopsimError(f"--devices is {devices}; expected at least 2, or leave it out.")
    if not distributed.is_available():
        raise KoopsimError("This build of torch has no torch.distributed, which several processes need.")
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(devices)}
    place |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "KOOPSIM_LAUNCHED": "1"}  # the store is here already
    place |= {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, _cores() // devices))}
    with tempfile.TemporaryDirectory(prefix="koopsim-ranks-") as folder, contextlib.ExitStack() as files:
        ranks, said = [], [Path(folder) / f"{rank}" for rank in range(devices)]
        ask = _outlives_nobody()
        for rank in range(devices):  # what the others say is shown where one of them fails
            own = os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            err = files.enter_context(said[rank].open("wb")) if rank else None
            argv = [sys.executable, "-m", "koopsim", *command]
            ranks.append(subprocess.Popen(argv, env=own, start_new_session=True, stderr=err, preexec_fn=ask))
        with _passing_on(ranks):
            return _watched(ranks, said)


def _outlives_nobody() -> Callable[[], None] | None:
    """What a rank does first: ask to be killed when its parent is, who cannot say so then (Linux alone can)."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()  # looked up before the fork, after which little is safe

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died in between
            os._exit(LOST)

    return ask


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _watched(ranks: list[subprocess.Popen[bytes]], said: list[Path]) -> int:
    """Until all have ended; when one fails the others are ended too, and what it said is shown."""
    cause: int | None = None
    since = time.monotonic()
    while None in [rank.poll() for rank in ranks]:  # of every one: one that waits for a dead one does not end
        if all(rank.returncode in (None, 0) for rank in ranks):
            since = time.monotonic()
        waited = time.monotonic() - since
        if cause is None:
            cause = _cause(ranks, waited > NOTICED)
            if cause is not None and ranks[cause].returncode != STOPPED:
                _end(ranks, signal.SIGTERM)
        elif waited > GRACE:
            _end(ranks, signal.SIGKILL)
        time.sleep(0.02)
    cause = _cause(ranks, True) if cause is None else cause
    return 0 if cause is None else _shown(cause, ranks[cause].returncode, said[cause])


def _cause(ranks: list[subprocess.Popen[bytes]], anyone: bool) -> int | None:
    """The rank that failed first; one that only lost the others is not it, unless there is no other."""
    failed = [r for r, p in enumerate(ranks) if p.returncode not in (None, 0)]
    itself = [r for r in failed if ranks[r].returncode != LOST]
    return next(iter(itself or (failed if anyone else [])), None)


def _shown(rank: int, status: int, said: Path) -> int:
    """Say what became of a rank, where it has not said so itself; the status of all of it."""
    if status < 0:
        name = signal.Signals(-status).name
        print(f"koopsim: rank {rank} was killed by {name}; the others were ended.", file=sys.stderr)
    elif rank and status != STOPPED:
        print(said.read_text(errors="replace").strip() or f"koopsim: rank {rank} failed.", file=sys.stderr)
    return status if status >= 0 else 1


def _end(ranks: list[subprocess.Popen[bytes]], how: int) -> None:
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            if rank.poll() is None:
                rank.send_signal(how)


@contextlib.contextmanager
def _passing_on(ranks: list[subprocess.Popen[bytes]]):
    """Ctrl-C and SIGTERM are for all of them; each is in a session of its own, so that it hears of them once."""
    numbers = signal.SIGTERM, signal.SIGINT
    before = {number: signal.signal(number, lambda number, frame: _end(ranks, number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _end(ranks, signal.SIGKILL)
