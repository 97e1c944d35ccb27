"""A folder kept at a URL too: what is saved here is there, for a machine that takes over.

    here --push-->  s3://bucket/run, gs://..., file:///mnt/run        whatever fsspec knows (it comes with torch)
    here <--fetch-- where the URL has the folder it is the truth: what lies here may be older

Files go one by one in the order they are named, each whole or not at all, and only when they changed. The last ones
are those that rely on the others. The first one marks the folder as ours: where the URL has others without it they are
somebody's, and nothing is replaced there or here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError, printable
from koopsim.files.writing import write_atomically


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

    def holds(self, name: str) -> bool:
        """Whether this file is there."""
        return self._surely("look for", name, lambda: self.fs.exists(self._at(name)))

    def there(self) -> list[str]:
        """Which of the files the URL has; somebody else's are refused."""
        self.fs.invalidate_cache()
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
        with self.fs.transaction, self.fs.open(self._at(name), "wb") as file:  # there when all of it is
            file.write(data)

    def fetch(self, folder: Path) -> bool:
        """What the URL has, into `folder`, and nothing else of these names; False where it has nothing."""
        there = self.there()
        for name in self.names if there else ():
            file = folder / name
            if name in there:
                write_atomically(file, self._surely("fetch", name, lambda name=name: self.fs.cat_file(self._at(name))))
                self.known[name] = file.stat().st_mtime_ns, file.stat().st_size
            else:
                file.unlink(missing_ok=True)
        return bool(there)

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
