"""Whose folder it is, who works in it now, and which of its files are ours to replace.

    FOLDER/.koopsim     our marker: what kind of folder this is, and the names of the files we wrote into it

The rules. A file is ours if its folder's marker names it, or if it is one of a run's or a search's in a folder from
before there were markers. Anything else is somebody's: it is replaced only where --overwrite says so, one file at a
time. A folder inside ours that we did not make is never entered; one that we did is removed whole only where it
carries a marker of its own, and a link never leads us out. Whoever writes holds the marker's lock: a second process is
refused in one line, and the lock of one that died is free at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError
from koopsim.files.json import json_text, parse_json
from koopsim.files.writing import sweep, try_lock

MARKER = ".koopsim"
MOST_NAMES = 10_000
_held: dict[Path, tuple[int, int, int]] = {}  # resolved folder -> (file, thread, how many times)

Legacy = Callable[[Path], Iterable[str]]  # the names that are ours in a folder without a marker
_legacy: list[Legacy] = []


def known_before_markers(names: Legacy) -> Legacy:
    """Register how folders written before there were markers are known."""
    _legacy.append(names)
    return names


def plain_name(name: object, what: str) -> str:
    """`name` where it can be a file or folder of its own inside another; else one line."""
    if not isinstance(name, str) or name in ("", ".", "..") or len(name.encode(errors="surrogatepass")) > 200:
        raise KoopsimError(f"{what} is called {name!r}, which no folder inside another can be; rename it.")
    if any(c in "/\\\0" for c in name) or not name.isprintable():
        raise KoopsimError(
            f"{what} is called {name!r}: a name holds neither / nor \\ nor control characters; rename it."
        )
    return name


def inside(folder: Path, name: str, what: str = "A folder") -> Path:
    """`folder / name`, which must not lead anywhere else: a plain name, and no link."""
    path = folder / plain_name(name, what)
    if path.is_symlink():
        raise KoopsimError(f"{path} is a link to somewhere else and will not be followed; remove it first.")
    return path


def marker(folder: Path) -> dict[str, Any] | None:
    """What the marker says; None without one, and nothing where it was cut short or edited."""
    path = folder / MARKER
    if path.is_symlink() or not path.is_file():
        return None
    try:
        found = parse_json(path.read_bytes()[: 2**20] or b"{}", str(path))
    except (OSError, KoopsimError):
        found = {}
    return found if isinstance(found, dict) else {}


def our_names(folder: Path) -> set[str]:
    """The names in `folder` that are ours."""
    listed = listed_names(folder)
    return {name for known in _legacy for name in known(folder)} if listed is None else listed


def listed_names(folder: Path) -> set[str] | None:
    """The names that the marker lists, but for what somebody wrote into it that can be none; None without a list."""
    listed = (marker(folder) or {}).get("files")
    if not isinstance(listed, list):
        return None
    return {name for name in listed if isinstance(name, str) and name.isprintable() and "/" not in name}


def is_ours(folder: Path) -> bool:
    """Whether a real folder, not a link, is one that we wrote into."""
    return folder.is_dir() and not folder.is_symlink() and bool(our_names(folder))


def is_free(path: Path) -> bool:
    """Whether there is nothing at `path`, or an empty folder."""
    return not os.path.lexists(path) or (path.is_dir() and not path.is_symlink() and not any(path.iterdir()))


@contextlib.contextmanager
def held(folder: Path | str) -> Iterator[Path]:
    """Hold `folder`, made where there is none, so that nobody else writes into it; what was left half-written goes.

    A second process, or another thread, is refused. The same thread may hold it again. Where nothing was
    written in the meantime nothing is left behind.
    """
    folder = Path(folder)
    made = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    make_folder(folder)
    key = folder.resolve()
    before = _held.get(key)
    if before:
        if before[1] != threading.get_ident():
            raise _busy(folder)
        _held[key] = (before[0], before[1], before[2] + 1)
    else:
        _held[key] = (_locked_marker(folder), threading.get_ident(), 1)
        sweep(folder)
    try:
        yield folder
    finally:
        handle, thread, times = _held.pop(key)
        if times > 1:
            _held[key] = (handle, thread, times - 1)
        else:
            _let_go(folder, handle, made)


def make_folder(folder: Path | str) -> Path:
    """The folder, made where there is none; what stands in the way is named."""
    folder = Path(folder)
    try:
        os.fsencode(folder).decode()
    except UnicodeError:
        raise KoopsimError(f"The folder {str(folder)!r} is not UTF-8; give a name that is.") from None
    if "\0" in str(folder):
        raise KoopsimError(f"The folder {str(folder)!r} cannot be: its name holds a NUL.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KoopsimError(f"Cannot make the folder {folder}: {error.strerror}.") from error
    return folder


def claim(folder: Path, kind: str, names: Iterable[str], overwrite: bool = False) -> None:
    """Say that `names` in `folder`, which is held, are ours from now on: they may be written, replaced, removed.

    A name that is there already and is not ours is refused, unless `overwrite` says that it may go.
    """
    names = list(names)
    ours = our_names(folder)
    for name in names:
        path = inside(folder, name, "A file") if not overwrite else folder / plain_name(name, "A file")
        if not os.path.lexists(path) or name in ours:
            continue
        if stat.S_ISDIR(path.lstat().st_mode) or path.is_symlink():
            raise KoopsimError(f"{path} is not ours and stands where a file of koopsim would; give another --out.")
        if not overwrite:
            raise KoopsimError(
                f"{path} is there already and koopsim did not write it; give another --out, "
                "or add --overwrite to replace it."
            )
    note(folder, kind=kind, files=sorted(ours | set(names))[:MOST_NAMES])


def note(folder: Path, **said: Any) -> None:
    """Change what the marker of a held folder says; a value of None takes its entry away."""
    handle = _held[folder.resolve()][0]
    whole = {k: v for k, v in ((marker(folder) or {}) | {"koopsim": 1} | said).items() if v is not None}
    data = (json_text(whole) + "\n").encode()
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, data)  # in place, since the lock is on this very file
    os.ftruncate(handle, len(data))


@contextlib.contextmanager
def replacing(folder: Path, asked: bool) -> Iterator[None]:
    """While something new is about to take the place of what is in a held folder: killed here, the old is no longer
    taken for the new (`refuse_replaced`); an error that ends it leaves the old as it was."""
    if asked:
        note(folder, replacing=True)
    try:
        yield
    finally:  # a kill does not come here
        if asked:
            note(folder, replacing=None)


def refuse_replaced(folder: Path, verb: str) -> None:
    """Going on with what was about to be replaced when its process was killed is refused."""
    if (marker(folder) or {}).get("replacing"):
        raise KoopsimError(
            f"{folder} was to be started again with --overwrite, which was killed before it began: what is in it is "
            f"older. Give that 'koopsim {verb}' command again."
        )


def make_inside(folder: Path, name: str) -> Path:
    """A folder of ours inside a folder of ours, made with a marker, so that it may be removed whole again."""
    path = inside(folder, name)
    if not path.exists():
        path.mkdir()
        (path / MARKER).write_text(json_text({"koopsim": 1, "kind": name}) + "\n", encoding="utf-8")
    return path


def remove_inside(folder: Path, name: str) -> None:
    """Remove a folder that `make_inside` made; one that is somebody's is left, and said."""
    path = inside(folder, name)
    if not os.path.lexists(path):
        return
    if not path.is_dir() or (marker(path) or {}).get("kind") != name:
        raise KoopsimError(f"{path} was not made by koopsim and is not removed; move it away, or give another --out.")
    shutil.rmtree(path, ignore_errors=True)


def _locked_marker(folder: Path) -> int:
    path = folder / MARKER
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    while True:
        try:
            handle = os.open(path, flags, 0o644)
        except OSError as error:
            raise KoopsimError(f"Cannot write into {folder}: {error.strerror}.") from error
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise KoopsimError(f"{path} is not a plain file; remove it first.")
            if not try_lock(handle):
                raise _busy(folder)
            if os.path.lexists(path) and os.path.samestat(found, path.lstat()):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # whoever held it has just taken the marker away: once more


def _let_go(folder: Path, handle: int, made: list[Path]) -> None:
    """A marker that names nothing that is there goes, and so does a folder that was made for nothing."""
    with contextlib.suppress(OSError):
        if not any(os.path.lexists(folder / name) for name in listed_names(folder) or ()):
            (folder / MARKER).unlink()
            for path in made:
                path.rmdir()
    os.close(handle)


def _busy(folder: Path) -> KoopsimError:
    return KoopsimError(f"{folder} is in use by another koopsim process; wait until it ends, or give another --out.")
