"""Watching ranks: one that dies is noticed while the others wait for it, and is the one that is named."""

import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest

from koopsim.cli.launching import _watched

WAITS = "import time; time.sleep(60)"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
LOSES = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); print(flush=True); signal.pause()"
REFUSES = "import sys; print('koopsim: rank 1: no', file=sys.stderr); sys.exit(2)"
FAILURES = [
    (KILLED, "koopsim: rank 1 was killed by SIGKILL; the others were ended.", 1),
    (REFUSES, "koopsim: rank 1: no", 2),
]


@contextmanager
def ranks(folder, *scripts):
    """(processes that do these, the files of what they say)."""
    with ExitStack() as ends:
        found, said = [], [folder / str(rank) for rank in range(len(scripts))]
        for script, file in zip(scripts, said, strict=True):
            err = ends.enter_context(file.open("wb"))
            argv = [sys.executable, "-c", script]
            found.append(ends.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=err)))
            ends.callback(found[-1].kill)
            if script == LOSES:
                assert found[-1].stdout.readline()  # it listens by now
        yield found, said


@pytest.mark.parametrize("waiting", [WAITS, LOSES], ids=["waits", "loses the others"])
@pytest.mark.parametrize(("fails", "says", "status"), FAILURES, ids=["killed", "refuses"])
def test_a_rank_that_fails_ends_those_that_wait_for_it(waiting, fails, says, status, tmp_path, capsys):
    with ranks(tmp_path, waiting, fails, waiting) as (found, said):
        assert _watched(found, said) == status
        assert all(process.returncode for process in found)
    assert capsys.readouterr().err == says + "\n"


def test_ranks_that_end_well(tmp_path, capsys):
    with ranks(tmp_path, "pass", "pass") as (found, said):
        assert _watched(found, said) == 0
    assert capsys.readouterr().err == ""
