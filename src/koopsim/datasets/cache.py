"""Where data lives: one folder, with a folder a dataset inside.

$KOOPSIM_DATA, or ~/.cache/koopsim on Linux, ~/Library/Caches/koopsim on macOS, %LOCALAPPDATA%\\koopsim on Windows
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError
from koopsim.files.writing import try_lock

LOOK = 0.1  # seconds between looks at a lock that another holds
DownloadListener = Callable[[dict[str, Any]], None]  # hears of downloads as they go; the room itself prints nothing


def silence(event: dict[str, Any]) -> None:
    """The listener who does not care."""


def data_folder(root: Path | str | None = None) -> Path:
    """`root` where given, else the folder the environment and the platform agree on."""
    chosen = root or os.environ.get("KOOPSIM_DATA")
    if chosen:
        return Path(chosen).expanduser()
    try:
        home = Path.home()
    except RuntimeError:
        raise KoopsimError("This user has no home folder to keep data in: set KOOPSIM_DATA, or give --root.") from None
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        cache = home / "Library" / "Caches"
    else:
        given = Path(os.environ.get("XDG_CACHE_HOME") or "")
        cache = given if given.is_absolute() else home / ".cache"  # the XDG standard ignores relative paths
    return cache / "koopsim"


@contextmanager
def only_one(folder: Path, listen: DownloadListener = silence) -> Iterator[None]:
    """Hold `folder` alone: a second process waits. The lock of a process that died is free at once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("a+b") as file:
            if not try_lock(file.fileno()):
                listen({"event": "waiting", "folder": str(folder)})
                while not try_lock(file.fileno()):
                    time.sleep(LOOK)
            yield  # closing the file lets go of the lock
    except OSError as error:
        raise KoopsimError(
            f"Cannot write into {error.filename or folder}: {error.strerror or error}. "
            "Choose another data folder: --root DIR, or set KOOPSIM_DATA."
        ) from error
