"""What may be allocated: a file or a configuration that asks for more than there is, is refused before it gets it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from koopsim.errors import KoopsimError

UNKNOWN = 8 * 2**30  # where the system does not say
SHARE = 0.8  # of what is free


def free_memory() -> int:
    """Bytes this process may still take: what the machine has, what its control group and its own limits leave."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")))
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        found.append(max(0, limit - used))
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            found.append(max(0, limit - pages * os.sysconf("SC_PAGE_SIZE")))
    return min(found, default=UNKNOWN)


def require_memory(needed: int, what: str) -> None:
    """Refuse what needs more than is there; `what` ends the sentence's first part: "x.npz asks for"."""
    if needed < 2**24:  # nobody runs out of so little, and asking costs time
        return
    free = int(SHARE * free_memory())
    if needed > free:
        raise KoopsimError(f"{what} {_size(needed)} to be in memory, and {_size(free)} are free; make it smaller.")


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
