"""Sequences from the files people have: arrays, a folder, one long table; or one line that says why not.

.npz                 x (n, T, C), (n, T), or one series (T, C) or (T,); y (n,) or (n, T); lengths (n,); split (n,)
.csv .parquet ...    one long table: --id says which sequence a row belongs to, --time its place in it
.csv with --text     a row a sequence, its words as bytes
folder               CLASS/NAME.csv, .npy or .txt, or NAME.csv ... without classes: a file a sequence
.txt                 one text, as bytes

Lengths may differ: sequences are filled up on the right, which a causal model never looks at. A missing value is the
one before it, or the mean of its channel where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koopsim.datasets.row_splits import SPELLINGS
from koopsim.datasets.table import ENDINGS, Column, DataTable, read_table
from koopsim.errors import KoopsimError
from koopsim.files.arrays import read_npy, read_npz
from koopsim.files.memory import require_memory
from koopsim.files.opened import MEBI, read_bytes
from koopsim.kinds import OwnColumns

Array = NDArray[Any]
FILES = (".csv", ".tsv", ".npy", ".txt")  # of a folder, a sequence each
MOST_TEXT = 256 * MEBI
MOST_WORDS = 1000  # classes


@dataclass(frozen=True)
class Sequences:
    """Sequences in memory, the same whatever file they came from.

    values    of each sequence (T_i, C), float32 with NaN where a value is missing, or uint8 (T_i,) where they are bytes
    labels    one a sequence; tags: one a step, -1 where there is none; both are numbers of `classes`
    splits    of each sequence 0 train, 1 valid, 2 test; None: they are to be drawn
    plain     the values are symbols: whole numbers that are not to be scaled
    """

    path: str
    values: list[Array]
    channels: tuple[str, ...]
    names: tuple[str, ...]
    labels: Array | None = None
    tags: list[Array] | None = None
    classes: tuple[str, ...] = ()
    splits: Array | None = None
    times: list[Array] | None = None
    plain: bool = False

    def __post_init__(self) -> None:
        if not self.values or any(len(v) == 0 for v in self.values):
            empty = next((n for n, v in zip(self.names, self.values, strict=True) if len(v) == 0), None)
            what = "no sequences" if empty is None else f"the sequence {empty!r} without a single step"
            raise KoopsimError(f"{self.path} has {what}; expected some.")

    @property
    def bytes(self) -> bool:
        return self.values[0].dtype == np.uint8 and self.values[0].ndim == 1

    @property
    def lengths(self) -> Array:
        return np.array([len(v) for v in self.values])

    def __len__(self) -> int:
        return len(self.values)


def read_sequences(path: Path | str, columns: OwnColumns) -> Sequences:
    """The sequences of a file or folder."""
    path = Path(path)
    if path.is_dir():
        found = _read_folder(path, columns)
    elif path.suffix.lower() == ".npz":
        found = _read_arrays(path)
    elif path.suffix.lower() == ".txt":
        found = Sequences(str(path), [_text(path)], ("byte",), (path.stem,))
    elif path.suffix.lower() in ENDINGS:
        table = read_table(path)
        found = _rows_of_text(table, columns) if columns.text else _long_table(table, columns)
    else:
        endings = ", ".join((*ENDINGS, ".txt"))
        raise KoopsimError(f"{path} holds no sequences; expected a folder, or a file that ends in one of {endings}.")
    wrong = [n for n, v in zip(found.names, found.values, strict=True) if np.isinf(v.astype(np.float64)).any()]
    if wrong:
        raise KoopsimError(f"{path}: the sequence {wrong[0]!r} has infinite values; expected numbers, or nothing.")
    return found


def carried_forward(values: Sequence[Array], mean: Array) -> list[Array]:
    """Each missing value as the one before it, or the channel's mean where there is none."""
    found = []
    for own in values:
        if own.dtype == np.uint8 or not np.isnan(own).any():
            found.append(own)
            continue
        place = np.where(np.isnan(own), -1, np.arange(len(own))[:, None])
        place = np.maximum.accumulate(place, axis=0)
        carried = np.take_along_axis(own, np.maximum(place, 0), axis=0)
        found.append(np.where(place < 0, mean, carried).astype(np.float32))
    return found


# ---------------------------------------------------------------- arrays


def _read_arrays(path: Path) -> Sequences:
    arrays = read_npz(path)
    if "x" not in arrays:
        raise KoopsimError(f"{path} holds {', '.join(arrays) or 'nothing'}; expected x, and y where there are labels.")
    x = arrays["x"]
    if x.dtype.kind not in "fiub" or x.ndim not in (1, 2, 3) or x.size == 0:
        raise KoopsimError(f"{path}: x is {x.dtype} of shape {x.shape}; expected numbers (n, T, C), (n, T) or (T,).")
    alone = x.ndim == 1 or (x.ndim == 2 and "y" not in arrays and "lengths" not in arrays)
    x = (x[:, None] if x.ndim == 1 else x)[None] if alone else x
    plain = x.dtype.kind in "iub"
    x = x[..., None] if x.ndim == 2 else x
    n, T, C = x.shape
    lengths = arrays.get("lengths", np.full(n, T))
    if lengths.shape != (n,) or lengths.dtype.kind not in "iu" or lengths.min() < 1 or lengths.max() > T:
        raise KoopsimError(f"{path}: lengths are {lengths.dtype} {lengths.shape}; expected ({n},) from 1 to {T}.")
    values = [own[:length].astype(np.float32) for own, length in zip(x, lengths.tolist(), strict=True)]
    names = tuple(f"x{j}" for j in range(C))
    found = Sequences(str(path), values, names, tuple(map(str, range(n))), plain=plain)
    if "split" in arrays:
        found = replace(found, splits=_marks(arrays["split"], n, path))
    if "y" not in arrays:
        return found
    y = arrays["y"]
    if y.dtype.kind not in "iuUb" or y.shape not in ((n,), (n, T)):
        raise KoopsimError(
            f"{path}: y is {y.dtype} of shape {y.shape}; expected a label a sequence ({n},) or a step ({n}, {T}), "
            "whole numbers or words."
        )
    words, codes = np.unique(y, return_inverse=True)
    codes, classes = codes.reshape(y.shape), tuple(str(word) for word in words.tolist())
    if y.ndim == 1:
        return replace(found, labels=codes.astype(np.int64), classes=classes)
    tags = [own[:length].astype(np.int64) for own, length in zip(codes, lengths.tolist(), strict=True)]
    return replace(found, tags=tags, classes=classes)


def _marks(said: Array, n: int, path: Path) -> Array:
    marks = [SPELLINGS.get(str(word).lower()) for word in said.ravel().tolist()]
    if said.shape != (n,) or None in marks:
        raise KoopsimError(f"{path}: split is {said.shape}; expected train, valid or test for each of {n} sequences.")
    return np.array(marks, np.int8)


# ---------------------------------------------------------------- folders


def _text(path: Path) -> Array:
    data = np.frombuffer(read_bytes(path, MOST_TEXT, "text"), np.uint8)
    if not len(data):
        raise KoopsimError(f"{path} is empty.")
    return data


def _read_folder(path: Path, columns: OwnColumns) -> Sequences:
    inside = sorted(p for p in path.iterdir() if not p.name.startswith("."))
    folders = [p for p in inside if p.is_dir()]
    groups = {p.name: _files(p) for p in folders} if folders else {"": _files(path)}
    files = [(label, file) for label, own in groups.items() for file in own]
    if len({file.suffix.lower() == ".txt" for _, file in files}) > 1:
        raise KoopsimError(f"{path} has texts and tables; expected one kind of file.")
    parts = [_file(file, columns) for _, file in files]
    first = parts[0]
    for part in parts:
        if part.channels != first.channels:
            raise KoopsimError(
                f"{part.path} has the columns {', '.join(part.channels)} where {first.path} has "
                f"{', '.join(first.channels)}; expected the same."
            )
    found = replace(
        first,
        path=str(path),
        values=[p.values[0] for p in parts],
        names=tuple(str(file.relative_to(path).with_suffix("")) for _, file in files),
        times=None if first.times is None else [t for p in parts for t in p.times or []],
    )
    if first.tags is not None:
        return _joined_tags(found, parts)
    if not folders:
        return found
    classes = tuple(groups)
    return replace(found, labels=np.array([classes.index(label) for label, _ in files]), classes=classes)


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
    return _long_table(read_table(file), replace(columns, id=None))


# ---------------------------------------------------------------- tables


def _rows_of_text(table: DataTable, columns: OwnColumns) -> Sequences:
    """A row a sequence: the bytes of its text, and its label."""
    texts = table[str(columns.text)].texts()
    missing = sum(not text for text in texts)
    if missing:
        raise KoopsimError(f"{table.path}: {missing} rows have no text in column {columns.text!r}; leave them out.")
    values = [np.frombuffer(str(text).encode(), np.uint8) for text in texts]
    names = tuple(map(str, range(len(texts))))
    found = Sequences(str(table.path), values, (str(columns.text),), names)
    if not columns.target:
        return found
    codes, classes = _classes(table[_one(columns, table)], table.path)
    return replace(found, labels=codes.astype(np.int64), classes=classes)


def _one(columns: OwnColumns, table: DataTable) -> str:
    if len(columns.target) != 1:
        raise KoopsimError(f"{table.path}: give one --target for labels, not {len(columns.target)}.")
    return columns.target[0]


def _classes(column: Column, path: object) -> tuple[Array, tuple[str, ...]]:
    if column.missing.any():
        raise KoopsimError(f"{path}: {int(column.missing.sum())} rows have no {column.name!r}; labels must be there.")
    codes, classes = column.codes()
    if len(classes) > MOST_WORDS:
        raise KoopsimError(f"{path}: column {column.name!r} has {len(classes):,} different values; are these labels?")
    return codes, classes


def _long_table(table: DataTable, columns: OwnColumns) -> Sequences:
    """Rows by sequence and time; the target is labels unless it is to be forecast."""
    named = [name for name in (columns.id, columns.time) if name is not None]
    table.require([*named, *columns.target, *columns.drop])
    labelled = columns.goal in ("classify", "tag") or (columns.goal is None and _are_labels(table, columns))
    apart = [*named, *columns.drop, *(columns.target if labelled else ())]
    states = [c for name, c in table.columns.items() if name not in apart]
    words = next((c for c in states if c.words is not None), None)
    if words is not None:
        raise KoopsimError(
            f"{table.path}: column {words.name!r} holds words such as {(words.words or ('?',))[0]!r}; a sequence is "
            f"numbers. Leave it out with --drop {words.name}, or name it --id, --time or --target."
        )
    if not states:
        raise KoopsimError(f"{table.path} has no columns left for the sequence besides {', '.join(apart)}.")
    require_memory(12 * len(table) * len(states), f"{table.path} asks for")
    x = np.stack([c.values for c in states], axis=1).astype(np.float32)
    owner, names = table[columns.id].codes() if columns.id else (np.zeros(len(table), int), (Path(table.path).stem,))
    if (owner < 0).any():
        raise KoopsimError(f"{table.path}: {int((owner < 0).sum())} rows have no {columns.id!r}; every row needs one.")
    time = table[columns.time].times(table.path) if columns.time else np.arange(len(table), dtype=float)
    order = np.lexsort((time, owner))
    owner, time, x = owner[order], time[order], x[order]
    twice = np.flatnonzero((np.diff(owner) == 0) & (np.diff(time) == 0))
    if len(twice) and columns.time:
        who = f" of {names[owner[twice[0]]]!r}" if columns.id else ""
        raise KoopsimError(f"{table.path}: two rows{who} have the same time {time[twice[0]]:g}; give each its own.")
    cuts = np.flatnonzero(np.diff(owner)) + 1
    found = Sequences(
        str(table.path), np.split(x, cuts), tuple(c.name for c in states), names,
        times=np.split(time, cuts) if columns.time else None,
    )  # fmt: skip
    if not labelled:
        return found
    codes, classes = _classes(table[_one(columns, table)], table.path)
    tags = np.split(codes[order].astype(np.int64), cuts)
    constant = all((own == own[0]).all() for own in tags)
    if columns.goal == "classify" and not constant:
        odd = next(n for n, own in zip(names, tags, strict=True) if (own != own[0]).any())
        raise KoopsimError(
            f"{table.path}: {columns.target[0]!r} changes within the sequence {odd!r}; a label a step is --goal tag."
        )
    if columns.goal == "classify" or (columns.goal is None and constant and len(names) > 1):
        return replace(found, labels=np.array([own[0] for own in tags]), classes=classes)
    return replace(found, tags=tags, classes=classes)


def _are_labels(table: DataTable, columns: OwnColumns) -> bool:
    """Words, or few whole numbers: labels; else numbers to be forecast."""
    if len(columns.target) != 1 or columns.horizon is not None:
        return False
    column = table[columns.target[0]]
    values = column.values[~column.missing]
    return column.is_text or (len(np.unique(values)) <= 20 and bool((values == np.rint(values)).all()))
