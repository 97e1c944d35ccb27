"""Ray clusters of several nodes on this machine, as `ray start` makes them on several; nothing else is killed."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "RAY_DISABLE_IMPORT_WARNING": "1"}
# The cluster's door is locked with a key of its own: a Ray head listens to the whole network.
QUIET |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def family(pid):
    """A process and all that it started, youngest last."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(after_name[1]), []).append(int(stat.parent.name))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def kill_family(process):
    for pid in family(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def nodes_of_one_cpu(count: int) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """(address, processes): a head and others, a CPU each."""
    address, nodes = f"127.0.0.1:{free_port()}", []
    small = ["--num-cpus=1", "--object-store-memory=100000000", "--block", "--disable-usage-stats"]
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", *small]
    environment = dict(os.environ, **QUIET)
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    head = [*start, "--head", f"--port={address.partition(':')[2]}", "--include-dashboard=false"]
    try:
        nodes.append(subprocess.Popen(head, **quiet))
        time.sleep(8)
        for _ in range(count - 1):  # one after the other: two that start at once may choose the same port
            nodes.append(subprocess.Popen([*start, f"--address={address}"], **quiet))
            time.sleep(5)
        yield address, nodes
    finally:
        for node in nodes:
            kill_family(node)
