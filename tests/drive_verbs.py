"""Drives verbs in one process, as a person would one after the other, and keeps what they said.

python drive_verbs.py COMMANDS.json SAID.json

A command is a list of arguments; one that begins with "interrupt" is stopped by Ctrl-C after its first epoch.
"""

import contextlib
import io
import json
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

from koopsim.cli import main


def interrupt_after_first_epoch(folder: Path) -> None:
    """Ctrl-C once the run in `folder` has written a line of metrics."""

    def watch() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if (folder / "metrics.jsonl").read_text():
                    os.kill(os.getpid(), signal.SIGINT)
                    return
            time.sleep(0.001)

    threading.Thread(target=watch, daemon=True).start()


def said(arguments: list[str]) -> dict:
    out, err = io.StringIO(), io.StringIO()
    if arguments[0] == "interrupt":
        arguments = arguments[1:]
        interrupt_after_first_epoch(Path(arguments[arguments.index("--out") + 1]))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


if __name__ == "__main__":
    warnings.simplefilter("error")
    commands, report = map(Path, sys.argv[1:])
    found = [said(arguments) for arguments in json.loads(commands.read_text())]
    found.append({"modules": sorted(name for name in sys.modules if name.startswith("koopsim"))})
    report.write_text(json.dumps(found))
