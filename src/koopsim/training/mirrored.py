"""A run directory's files at a URL, for machines that do not share a file system (files/mirror.py)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from koopsim.files.mirror import Mirror
from koopsim.runs import LOOKS, RUN_FILES, RunDirectory


def mirror_of(url: str | None) -> Mirror | None:
    """A run directory's files at a URL; what relies on others comes last."""
    last = ("checkpoint.safetensors", "result.json")
    names = [name for name in (*RUN_FILES, LOOKS) if name not in last]
    return None if url is None else Mirror(url, (*names, *last))


def fetched(out: Path, mirror: Mirror) -> None:
    """The run at a URL, into `out`; what is no run replaces nothing."""
    with RunDirectory(out).held():
        with tempfile.TemporaryDirectory(prefix="koopsim-") as folder:
            if Mirror(mirror.url, mirror.names[:1]).fetch(Path(folder)):
                RunDirectory(folder).read_config()
        mirror.fetch(out)
