"""The command's end: its status, what it printed, what registered itself; and the quick way, of a GPU, of a rank."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys, threading, time
from koopsim.cli import leaving
leaving.main = lambda: 3
atexit.register(lambda: print("registered", flush=False))
threading.Thread(target=lambda: (time.sleep(0.2), print("a thread"))).start()
class Ends:
    def __del__(self): print("taken apart")
kept = Ends()
class torch:
    class cuda:
        is_initialized = staticmethod(lambda: {cuda})
sys.modules["torch"] = torch
print("said", end="")
leaving.run_and_leave()
"""


@pytest.mark.parametrize(("cuda", "processes"), [(True, 1), (False, 1), (False, 2)])
def test_what_is_promised_is_done(cuda, processes):
    script = SCRIPT.replace("{cuda}", str(cuda))
    own = os.environ | {"WORLD_SIZE": str(processes)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=own)
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("saida thread\nregistered\n")
    assert ("taken apart" in done.stdout) is not (cuda or processes > 1)
