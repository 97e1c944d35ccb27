"""A verb in a fork of a process that has imported everything: milliseconds instead of seconds."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CRASHED = 99


@dataclass(frozen=True)
class Ended:
    """How a verb ended: its status (negative: the signal), what it wrote, and whether it had to be killed."""

    status: int
    out: str
    err: str
    hung: bool
    seconds: float

    @property
    def crashed(self) -> bool:
        """A traceback, or a death that nobody ordered."""
        return (
            self.status == CRASHED
            or "Traceback (most recent call last)" in self.err
            or (self.status < 0 and not self.hung)
        )


def warm_up() -> None:
    """Import what the verbs import, with one thread: threads do not survive a fork."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import matplotlib
    import torch

    matplotlib.use("Agg")
    torch.set_num_threads(1)
    import PIL.Image
    import tyro  # noqa: F401

    import koopsim.cli.evaluate
    import koopsim.cli.export
    import koopsim.cli.fit
    import koopsim.cli.forecast
    import koopsim.cli.predict
    import koopsim.cli.render
    import koopsim.cli.report
    import koopsim.cli.spectrum
    import koopsim.cli.train
    import koopsim.cli.tune
    import koopsim.fitting
    import koopsim.report
    import koopsim.searching.carrying_out
    import koopsim.searching.plots
    import koopsim.sklearn
    import koopsim.spectral
    import koopsim.zoo  # noqa: F401

    PIL.Image.init()
    extras = ("pandas", "pyarrow.parquet", "xarray", "h5netcdf", "scipy.io.wavfile", "fsspec.implementations.local")
    for extra in extras:
        with contextlib.suppress(ImportError):
            importlib.import_module(extra)


def begin(argv: Sequence[str], where: Path, log: Path, prepare: Callable[[], None] | None = None) -> int:
    """Fork; the child is `koopsim ARGV` in the folder `where` (HERE in an argument), once it is prepared. Its process
    id."""
    argv = [argument.replace("HERE", str(where)) for argument in argv]
    pid = os.fork()
    if pid:
        return pid
    status = CRASHED
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        for name, number in (("out", 1), ("err", 2)):
            handle = os.open(log.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(handle, number)
        import sys

        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        os.chdir(where)
        import doors

        from koopsim.cli import main

        if prepare:
            prepare()
        try:
            status = (doors.enter if argv[0].startswith("@") else main)(list(argv))
        except SystemExit as stop:  # tyro's own answer to a bad option
            status = stop.code if isinstance(stop.code, int) else 2 if stop.code else 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def wait(pid: int, log: Path, limit: float) -> Ended:
    """Until the child ends, or `limit` seconds: then it is killed and counts as hung.

    Seconds in which this process did not run either (a machine that sleeps, a stopped job) are not counted.
    """
    began, hung, waited = time.monotonic(), False, 0.0
    pause, mark = 0.002, time.monotonic()
    while True:
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        now = time.monotonic()
        waited, mark = waited + min(now - mark, 1.0), now
        if waited > limit:
            hung = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _, code = os.waitpid(pid, 0)
            break
        time.sleep(pause)
        pause = min(0.05, 1.3 * pause)
    out, err = (log.with_suffix(f".{name}").read_text(errors="replace") for name in ("out", "err"))
    return Ended(os.waitstatus_to_exitcode(code), out, err, hung, time.monotonic() - began)


def run(
    argv: Sequence[str], where: Path, log: Path, limit: float = 30.0, prepare: Callable[[], None] | None = None
) -> Ended:
    return wait(begin(argv, where, log, prepare), log, limit)
