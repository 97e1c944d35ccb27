"""The first step of every reader: the bytes of a plain file, of a bounded size.

A pipe would wait for ever, a device would never end: both are refused before a byte is read.
"""

import os
import stat
from pathlib import Path

from koopsim.errors import KoopsimError

MEBI = 2**20


def read_bytes(path: Path | str, most: int, what: str = "file") -> bytes:
    """The content of a plain file of at most `most` bytes; FileNotFoundError where there is none."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        size = plain_size(os.fstat(handle), path)
    except KoopsimError:
        os.close(handle)
        raise
    with os.fdopen(handle, "rb") as file:
        if size > most:
            raise KoopsimError(f"{path} has {size:,} bytes; a {what} has {most:,} at most.")
        return file.read(min(most, size + MEBI))  # Python sets as much aside as is asked for; it may still grow


def plain_size(status: os.stat_result, path: Path | str) -> int:
    """The size of a plain file; a folder, pipe or device is refused."""
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, a socket or a device"
        raise KoopsimError(f"{path} is {kind}; expected a plain file.")
    return status.st_size


def require_plain(path: Path | str) -> int:
    """The size of the plain file at `path`, links followed; FileNotFoundError where there is none."""
    return plain_size(os.stat(path), path)
