"""How the command begins and ends.

What it imports is never looked through for garbage (registry.py). Where a GPU was used it ends without taking PyTorch
and the driver apart piece by piece: that takes a second, and nothing comes of it, for the system takes back what a
process had. So does one of several processes: a thread of gloo's that reports an exchange which failed asks for an
interpreter that is ending, and the whole process would be aborted. What Python promises to do before its end is done:
threads are waited for, what registered itself is called, what was printed is there.
"""

import atexit
import os
import signal
import sys
import threading

from koopsim.cli import main
from koopsim.registry import Process


def run_and_leave() -> None:
    """The command: a verb, and the end of the process, which no further Ctrl-C disturbs."""
    Process.own = True
    status = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leave(status)


def leave(status: int) -> None:
    """End with `status`."""
    torch = sys.modules.get("torch")
    if torch is not None and (torch.cuda.is_initialized() or os.environ.get("WORLD_SIZE", "1") != "1"):
        at_once(status)
    sys.exit(status)


def at_once(status: int) -> None:
    """End now; the rest of the interpreter's own end is left out."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(status)
