"""Sequences from the files people have; or one line that says why not.

.npz                 arrays (sequence_arrays.py)
.csv .parquet ...    one long table, or a text a row (sequence_tables.py)
folder               CLASS/NAME.csv, .npy or .txt, or NAME.csv ... without classes: a file a sequence
.txt                 one text, as bytes
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from koopsim.datasets.sequence_arrays import read_sequence_arrays
from koopsim.datasets.sequence_tables import long_table, rows_of_text
from koopsim.datasets.sequences import Array, Sequences
from koopsim.datasets.table import ENDINGS, read_table
from koopsim.errors import KoopsimError
from koopsim.files.arrays import read_npy
from koopsim.files.opened import MEBI, read_bytes
from koopsim.kinds import OwnColumns

FILES = (".csv", ".tsv", ".npy", ".txt")  # of a folder, a sequence each
MOST_TEXT = 256 * MEBI


def read_sequences(path: Path | str, columns: OwnColumns) -> Sequences:
    """The sequences of a file or folder."""
    path = Path(path)
    if path.is_dir():
        found = _read_folder(path, columns)
    elif path.suffix.lower() == ".npz":
        found = read_sequence_arrays(path)
    elif path.suffix.lower() == ".txt":
        found = Sequences(str(path), [_text(path)], ("byte",), (path.stem,))
    elif path.suffix.lower() in ENDINGS:
        table = read_table(path)
        found = rows_of_text(table, columns) if columns.text else long_table(table, columns)
    else:
        endings = ", ".join((*ENDINGS, ".txt"))
        raise KoopsimError(f"{path} holds no sequences; expected a folder, or a file that ends in one of {endings}.")
    wrong = [n for n, v in zip(found.names, found.values, strict=True) if np.isinf(v.astype(np.float64)).any()]
    if wrong:
        raise KoopsimError(f"{path}: the sequence {wrong[0]!r} has infinite values; expected numbers, or nothing.")
    return found


def _text(path: Path) -> Array:
    data = np.frombuffer(read_bytes(path, MOST_TEXT, "text"), np.uint8)
    if not len(data):
        raise KoopsimError(f"{path} is empty.")
    return data


def _read_folder(path: Path, columns: OwnColumns) -> Sequences:
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    groups = {p.name: _files(p) for p in folders} or {"": _files(path)}
    files = [file for own in groups.values() for file in own]
    own = _own_columns(columns, bool(folders))
    parts = [_file(file, own) for file in files]
    _require_alike(parts)
    names = tuple(str(file.relative_to(path).with_suffix("")) for file in files)
    found = replace(parts[0], path=str(path), values=[p.values[0] for p in parts], names=names)
    if found.times is not None:
        found = replace(found, times=[time for p in parts for time in p.times or []])
    if found.tags is not None:
        return _joined_tags(found, parts)
    if not folders:
        return found
    labels = np.repeat(np.arange(len(groups)), [len(own) for own in groups.values()])
    return replace(found, labels=labels, classes=tuple(groups))


def _own_columns(columns: OwnColumns, labelled: bool) -> OwnColumns:
    """Of one file: where the label is its folder's name and no column is the target, it has no label to look for."""
    return replace(columns, goal=None) if labelled and not columns.target else columns


def _require_alike(parts: list[Sequences]) -> None:
    """The files of a folder have the same columns, or are all texts."""
    first = parts[0]
    for part in parts:
        if part.channels != first.channels or part.bytes != first.bytes:
            raise KoopsimError(
                f"{part.path} has the columns {', '.join(part.channels)} where {first.path} has "
                f"{', '.join(first.channels)}; expected the same."
            )


def _joined_tags(found: Sequences, parts: list[Sequences]) -> Sequences:
    classes = tuple(sorted({c for p in parts for c in p.classes}))
    tags = []
    for part in parts:
        place = np.array([classes.index(c) for c in part.classes] + [-1])
        tags += [place[own] for own in part.tags or []]
    return replace(found, tags=tags, classes=classes)


def _files(folder: Path) -> list[Path]:
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in FILES and not p.name.startswith("."))
    if not found:
        raise KoopsimError(f"{folder} has no sequences; expected some of {', '.join(FILES)}.")
    return found


def _file(file: Path, columns: OwnColumns) -> Sequences:
    if file.suffix.lower() == ".txt":
        return Sequences(str(file), [_text(file)], ("byte",), (file.stem,))
    if file.suffix.lower() == ".npy":
        x = read_npy(file)
        if x.dtype.kind not in "fiub" or x.ndim not in (1, 2) or not x.size:
            raise KoopsimError(f"{file} is {x.dtype} of shape {x.shape}; expected numbers (T,) or (T, C).")
        x = (x[:, None] if x.ndim == 1 else x).astype(np.float32)
        return Sequences(str(file), [x], tuple(f"x{j}" for j in range(x.shape[1])), (file.stem,))
    return long_table(read_table(file), replace(columns, id=None))
