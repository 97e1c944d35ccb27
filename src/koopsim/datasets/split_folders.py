"""Folders that say what they are for: DIR/train, DIR/valid (val, validation) and DIR/test, in capitals or not.

    {"Train": p, "val": q}  ->  {TRAIN: p, VALID: q};      {"cat": p, "dog": q}  ->  {}: these are classes
"""

from __future__ import annotations

import warnings
from pathlib import Path

from koopsim.datasets.row_splits import SPELLINGS, TRAIN, VALID
from koopsim.errors import KoopsimError


def folders_in(path: Path) -> dict[str, Path]:
    """The folders right below, by name, but those that programs keep for themselves."""
    return {p.name: p for p in sorted(path.iterdir()) if p.is_dir() and not p.name.startswith((".", "__"))}


def split_folders(path: Path) -> dict[int, Path]:
    """The parts that the folders below `path` are named after; none where they are something else."""
    inside = folders_in(path)
    marks = {name: SPELLINGS.get(name.lower()) for name in inside}
    found = {mark: inside[name] for name, mark in marks.items() if mark is not None}
    others = [name for name, mark in marks.items() if mark is None]
    if not found or (others and not (TRAIN in found and len(found) > 1)):
        return {}
    said = ", ".join(f"{folder.name}/" for folder in found.values())
    if others:
        raise KoopsimError(f"{path} has {said} but also {others[0]}/: move it away, or its classes into train/.")
    if len(found) < len(inside):
        twice = [name for name in inside if inside[name] not in found.values()]
        raise KoopsimError(f"{path} has {said} and {twice[0]}/, which means the same as one of them; make them one.")
    if TRAIN not in found:
        raise KoopsimError(f"{path} has {said} but no train/; put what is to be learnt from into {path}/train.")
    return found


def say_no_test(path: Path, parts: dict[int, Path]) -> None:
    """What is called valid is tested on where nothing is called test."""
    warnings.warn(
        f"{path} has no test/: {parts[VALID].name}/ is what is tested on, and a validation set is split off "
        f"{parts[TRAIN].name}/.",
        stacklevel=3,
    )
