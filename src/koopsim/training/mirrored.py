"""A run directory's files at a URL, for machines that do not share a file system (files/mirror.py)."""

from __future__ import annotations

from pathlib import Path

from koopsim.engine.checkpoint import read_checkpoint
from koopsim.errors import KoopsimError
from koopsim.files.mirror import Mirror
from koopsim.runs import LOOKS, RUN_FILES, RunDirectory


def mirror_of(url: str | None) -> Mirror | None:
    """A run directory's files at a URL; what relies on others comes last."""
    last = ("checkpoint.safetensors", "result.json")
    names = [name for name in (*RUN_FILES, LOOKS) if name not in last]
    return None if url is None else Mirror(url, (*names, *last))


def fetched(out: Path, mirror: Mirror) -> None:
    """The run at a URL, into `out`; what is damaged there, or another run than the one here, replaces nothing."""

    def check(received: Path) -> None:
        there, here = RunDirectory(received), RunDirectory(out)
        asked = there.read_config()
        if here.config_file.exists() and here.read_config() != asked:
            raise KoopsimError(f"{out} holds another run than {mirror.url}; give another folder to go on in.")
        if there.checkpoint_file.exists():
            read_checkpoint(there.checkpoint_file)
        if there.result_file.exists():
            there.read_result()

    with RunDirectory(out).held():
        mirror.fetch(out, check)
