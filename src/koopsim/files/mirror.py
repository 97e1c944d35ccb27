"""A folder kept at a URL too: what is saved here is there, for a machine that takes over.

    here --push-->  s3://bucket/run, gs://..., file:///mnt/run        whatever fsspec knows (it comes with torch)
    here <--fetch-- where the URL has the folder it is the truth: what lies here may be older

Files go one by one in the order they are named, each whole or not at all, and only when they changed. The last ones
are those that rely on the others. The first one marks the folder as ours: where the URL has others without it they are
somebody's, and nothing is replaced there or here. What is fetched is looked at before it takes anything's place, and on
a disk (file://) no link is followed, no pipe read, no device written.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError, printable
from koopsim.files.folders import inside
from koopsim.files.memory import require_memory
from koopsim.files.opened import MEBI, read_bytes
from koopsim.files.writing import sweep, write_atomically

MOST_BYTES = 64 * 1024 * MEBI


class Mirror:
    """The files `names` of a folder, at a URL."""

    def __init__(self, url: str, names: Sequence[str]):
        self.url, self.names = url, tuple(names)
        self.known: dict[str, tuple[int, int]] = {}  # what of each file is there: when it was changed, its size
        self.fs, self.root = self._opened()

    def _opened(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs  # pyright: ignore[reportMissingImports]

        kind, found, _ = self.url.partition("://")
        if not found or not kind:
            raise KoopsimError(f"The storage {self.url!r} is no URL; expected s3://BUCKET/RUN or file:///FOLDER.")
        try:
            return url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise KoopsimError(f"The storage {self.url} cannot be used: {_first(error)}.") from error

    def _at(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"

    def _disk(self, name: str) -> Path | None:
        """Where a file lies where the URL is a folder of this machine, links refused; None for another URL."""
        return inside(Path(self.root), name, "A file") if "file" in self.fs.protocol else None

    def holds(self, name: str) -> bool:
        """Whether this file is there."""
        return self._surely("look for", name, lambda: self._exists(name))

    def _exists(self, name: str) -> bool:
        disk = self._disk(name)
        return self.fs.exists(self._at(name)) if disk is None else os.path.lexists(disk)

    def there(self) -> list[str]:
        """Which of the files the URL has; somebody else's are refused."""
        self.fs.invalidate_cache()
        if self._disk(self.names[0]) is not None:
            sweep(Path(self.root))
        found = [name for name in self.names if self.holds(name)]
        if found and self.names[0] not in found:
            raise KoopsimError(
                f"{self.url} has a {found[0]} but no {self.names[0]}: koopsim did not write it. Give another --storage."
            )
        return found

    def push(self, folder: Path) -> None:
        """Bring what has changed to the URL."""
        for name in self.names:
            file = folder / name
            if not file.exists():
                continue
            found = file.stat().st_mtime_ns, file.stat().st_size
            if self.known.get(name) != found:
                data = file.read_bytes()
                self._surely("keep", name, lambda data=data, name=name: self._put(name, data))
                self.known[name] = found

    def _put(self, name: str, data: bytes) -> None:
        if not self.known:
            self.fs.makedirs(self.root, exist_ok=True)
        disk = self._disk(name)
        if disk is not None:
            return write_atomically(disk, data)  # fsspec's own move may follow a link, or be cut short
        with self.fs.transaction, self.fs.open(self._at(name), "wb") as file:  # there when all of it is
            file.write(data)

    def drop(self, names: Iterable[str]) -> None:
        """Take these away from the URL, those that rely on others first."""
        for name in sorted(names, key=self.names.index, reverse=True):
            if self.holds(name):
                self._surely("remove", name, lambda name=name: self.fs.rm_file(self._at(name)))

    def fetch(self, folder: Path, check: Callable[[Path], None] = lambda received: None) -> bool:
        """What the URL has, into `folder`, and nothing else of these names; False where it has nothing.

        `check` sees all of it first, in a folder of its own: what it refuses replaces nothing here.
        """
        there = self.there()
        if not there:
            return False
        with tempfile.TemporaryDirectory(prefix="koopsim-") as received:
            for name in there:
                (Path(received) / name).write_bytes(self._surely("fetch", name, lambda name=name: self._get(name)))
            try:
                check(Path(received))
            except KoopsimError as error:
                raise KoopsimError(str(error).replace(received, self.url.rstrip("/"))) from error
            for name in self.names:
                file = folder / name
                if name in there:
                    write_atomically(file, (Path(received) / name).read_bytes())
                    self.known[name] = file.stat().st_mtime_ns, file.stat().st_size
                else:
                    file.unlink(missing_ok=True)
        return True

    def _get(self, name: str) -> bytes:
        disk = self._disk(name)
        if disk is not None:
            return read_bytes(disk, MOST_BYTES, "file of a run")
        require_memory(2 * (self.fs.size(self._at(name)) or 0), f"{name} at {self.url} asks for")
        return self.fs.cat_file(self._at(name))

    def _surely(self, what: str, name: str, call: Any) -> Any:
        try:
            return call()
        except KoopsimError:
            raise
        except Exception as error:  # each file system has errors of its own
            raise KoopsimError(
                f"Cannot {what} {name} at {self.url}: {_first(error)}. What was saved before is whole; "
                "mend it and go on with --resume."
            ) from error


def _first(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0][:200].rstrip(".")
    return printable(text) or type(error).__name__
