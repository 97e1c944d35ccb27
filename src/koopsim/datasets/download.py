"""One file from the first mirror that gives it whole: resumed, checked, then renamed into place.

target.part  grows by Range requests, over retries, mirrors and restarts
target       appears only when the md5 or sha256 of target.part is the published one
"""

import hashlib
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import urlsplit

from koopsim.datasets.cache import DownloadListener, silence
from koopsim.errors import KoopsimError

_CHUNK = 2**16
_TEMPORARY = {408, 425, 429}  # and every 5xx


@dataclass(frozen=True)
class Patience:
    """When to give up on a mirror."""

    timeout: float = 20.0  # seconds without a byte
    attempts: int = 4  # rounds over the mirrors in which nothing new arrived
    pause: float = 1.0  # seconds after a round that brought something; twice as long after each that did not


class DownloadFailed(KoopsimError):
    """No mirror gave the file."""


class _Problem(Exception):
    def __init__(self, why: str, again: bool):
        super().__init__(why)
        self.again = again  # whether asking the same mirror again may help


def download(
    urls: Sequence[str],
    target: Path,
    checksum: str,
    size: int,
    listen: DownloadListener = silence,
    patience: Patience | None = None,
) -> None:
    """Bring `target`, whose md5 or sha256 is known, from the first of `urls` that works. `size` need not be exact."""
    patience = patience or Patience()
    part = target.with_name(target.name + ".part")
    problems: dict[str, str] = {}
    lies = dict.fromkeys(urls, 0)
    fruitless = 0
    while fruitless < patience.attempts:
        before, again = _size(part), False
        for url in urls:
            if lies[url] == 2:  # once may be the fault of an old .part, or of another mirror's bytes in it
                continue
            try:
                _fetch(url, part, 2 * size, patience.timeout, listen)
                if checksum_of(part, checksum) == checksum:
                    os.replace(part, target)
                    return
                part.unlink()
                lies[url] += 1
                raise _Problem("sent other bytes than the published checksum says", again=lies[url] < 2)
            except _Problem as problem:
                problems[url] = str(problem)
                again = again or problem.again
                listen({"event": "problem", "file": target.name, "from": _host(url), "why": str(problem)})
        if not again:
            break
        fruitless = 0 if _size(part) > before else fruitless + 1
        if fruitless < patience.attempts:
            time.sleep(patience.pause * 2**fruitless)
    reasons = "; ".join(dict.fromkeys(f"{_host(url)} {why}" for url, why in problems.items()))  # a host once
    raise DownloadFailed(f"Cannot download {target.name}: {reasons}.")


def md5_of(path: Path) -> str:
    """The md5 of a file, as a checksum against accidents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def checksum_of(path: Path, like: str) -> str:
    """The checksum of a file, of the kind that the published one is: 64 digits are a sha256, 32 an md5."""
    if len(like) != 64:
        return md5_of(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(url: str, part: Path, limit: int, timeout: float, listen: DownloadListener) -> None:
    """Go on with `part` where it ends; returns when the server has nothing more to send."""
    answer = _ask(url, _size(part), timeout)
    if answer is None:
        return
    with answer:
        begin = _begin(answer, part)
        length = answer.headers.get("Content-Length", "")
        total = begin + int(length) if length.isdigit() else None
        done = begin
        with _opened_part(part, begin > 0) as file:
            for chunk in _chunks(answer, begin, file):
                file.write(chunk)
                done += len(chunk)
                if done > limit:
                    break
                listen({"event": "download", "file": part.stem, "from": _host(url), "done": done, "total": total})
    if total is not None and done < total:
        raise _Problem(f"cut the connection after {done:,} of {total:,} bytes", again=True)


def _ask(url: str, start: int, timeout: float) -> HTTPResponse | None:
    """The server's answer, from byte `start` on; None where it says that nothing lies beyond."""
    headers = {"User-Agent": "koopsim"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            return None  # all of it is here already, or too much: the checksum decides
        raise _Problem(f"answered {error.code}", error.code in _TEMPORARY or error.code >= 500) from error
    except urllib.error.URLError as error:
        raise _Problem(f"cannot be reached ({error.reason})", again=False) from error
    except (OSError, HTTPException) as error:
        raise _Problem(f"did not answer ({error or type(error).__name__})", again=True) from error


def _begin(answer: HTTPResponse, part: Path) -> int:
    """The byte that the answer begins with: where `part` ends, or 0 from a server that ignores Range."""
    start = _size(part)
    if answer.status != 206:
        return 0
    if not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        part.unlink(missing_ok=True)
        raise _Problem("sent another part of the file than was asked for", again=True)
    return start


def _chunks(answer: HTTPResponse, done: int, file: BinaryIO) -> Iterator[bytes]:
    """What arrives, piece by piece; the last bytes before a cut are written to `file`, for they are good."""
    while True:
        try:
            chunk = answer.read(_CHUNK)
        except IncompleteRead as error:
            file.write(error.partial)
            raise _Problem(f"cut the connection after {done + len(error.partial):,} bytes", again=True) from error
        except (OSError, HTTPException) as error:
            raise _Problem(f"went silent after {done:,} bytes ({error})", again=True) from error
        if not chunk:
            return
        done += len(chunk)
        yield chunk


def _opened_part(part: Path, resumed: bool) -> BinaryIO:
    """The .part to write into; a link there would lead to somebody's file and is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | (os.O_APPEND if resumed else os.O_TRUNC)
    try:
        return cast(BinaryIO, os.fdopen(os.open(part, flags, 0o644), "ab" if resumed else "wb"))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(part)) from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _host(url: str) -> str:
    return urlsplit(url).netloc
