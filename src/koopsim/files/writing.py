"""A file is written whole or not at all: into a temporary file beside it, then renamed into its place.

Temporary files are called .NAME.xxxxxxxx.koopsim-part and are locked while they are written, so that those of a
process that was killed can be told from those of one that is at work, and swept away.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from koopsim.errors import KoopsimError, printable
from koopsim.files.json import json_text

PART = ".koopsim-part"
LONGEST_SIDE = 60.0  # of a figure, in inches


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """An error of the system about this file says so: a full disk by itself names nothing."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into, which takes the place of `path` when all went well.

    What is there may be a plain file or a link, which is replaced itself; never a device, a pipe or a folder. What a
    killed process left of an earlier attempt at it is swept away.
    """
    refuse_special(path)
    start = f".{path.name[:80]}."
    sweep(path.parent, start)
    with named(path):
        handle, temporary = _locked(path.parent, start)
    try:
        with named(path), os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(handle)
            if sys.platform != "win32":
                os.fchmod(handle, 0o644)
                os.replace(temporary, path)
        if sys.platform == "win32":
            os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _locked(folder: Path, start: str) -> tuple[int, str]:
    """A new temporary file and its lock; one that another's sweep took in between is made again."""
    while True:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=start, suffix=PART)
        if try_lock(handle) and os.fstat(handle).st_nlink:
            return handle, temporary
        os.close(handle)
        Path(temporary).unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part."""
    with whole_file(path) as file:
        file.write(data)


def write_figure(path: Path, figure: Any, **options: Any) -> None:
    """Draw a matplotlib figure into `path`, atomically; what it is drawn as is the path's suffix.

    No figure is a monster: one of many rows is drawn smaller, and text far outside its axes does not make it grow.
    """
    file, settings = io.BytesIO(), {"dpi": 150} | options
    sides = figure.get_size_inches()
    if max(sides) > LONGEST_SIDE:
        figure.set_size_inches(*(min(side, LONGEST_SIDE) for side in sides))
    if settings.get("bbox_inches") == "tight":
        tight = figure.get_tightbbox()
        if not (tight.width < 2 * sides[0] + 1 and tight.height < 2 * sides[1] + 1):
            del settings["bbox_inches"]
    figure.savefig(file, format=path.suffix.removeprefix("."), **settings)
    write_atomically(path, file.getvalue())


def write_png_and_svg(folder: Path, name: str, figure: Any, **options: Any) -> list[Path]:
    """Draw a figure into `folder` in both forms; the files."""
    files = [folder / f"{name}.{form}" for form in ("png", "svg")]
    for file in files:
        write_figure(file, figure, **options)
    return files


def figure_text(text: str, most: int = 60) -> str:
    """Somebody's name as it may stand in a figure: never read as a formula, on one line, of a bounded length."""
    plain = printable(text).replace("$", r"\$")
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinity are refused by name."""
    write_atomically(path, (json_text(value, str(path)) + "\n").encode())


def append_line(path: Path, line: str) -> None:
    """Add a line to a plain file of ours, and see it to the disk; a link is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    refuse_special(path)
    with named(path), os.fdopen(os.open(path, flags, 0o644), "ab") as file:
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def refuse_special(path: Path) -> None:
    """A device, pipe, socket or folder is never replaced by a file."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
        raise KoopsimError(f"{path} is {kind} and will not be replaced by a file; give another name.")


def sweep(folder: Path, start: str = ".") -> None:
    """Remove what a killed process left in `folder` of files called `start`...; one being written is left alone."""
    with contextlib.suppress(OSError):
        for part in folder.glob(f"{glob.escape(start)}*{PART}"):
            if part.is_symlink() or not part.is_file():
                continue
            with contextlib.suppress(OSError), part.open("rb") as file:
                if try_lock(file.fileno()):
                    part.unlink()


if sys.platform == "win32":
    import msvcrt

    def try_lock(handle: int) -> bool:
        """Whether the open file is now locked for this process alone; closing it lets go."""
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def try_lock(handle: int) -> bool:
        """Whether the open file is now locked for this process alone; closing it lets go."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks: better unlocked than unused
            return True
        return True
