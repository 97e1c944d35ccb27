"""Sequences from the files people have; or one line that says why not.

.npz                 arrays (sequence_arrays.py)
.csv .parquet ...    one long table, or a text a row (sequence_tables.py)
folder               CLASS/NAME.csv, .npy or .txt, or NAME.csv ... without classes: a file a sequence;
                     either below train/, valid/ and test/, too; of several kinds of files the one that most are
.txt                 one text, as bytes
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from koopsim.datasets.row_splits import TEST, TRAIN, VALID
from koopsim.datasets.sequence_arrays import read_sequence_arrays
from koopsim.datasets.sequence_tables import long_table, rows_of_text
from koopsim.datasets.sequences import Array, Sequences, rounded
from koopsim.datasets.split_folders import folders_in, say_no_test, split_folders
from koopsim.datasets.table import ENDINGS, read_table
from koopsim.errors import KoopsimError
from koopsim.files.arrays import read_npy
from koopsim.files.opened import MEBI, read_bytes
from koopsim.kinds import OwnColumns

FILES = (".csv", ".tsv", ".npy", ".txt")  # of a folder, a sequence each
KINDS = {".tsv": ".csv"}  # tables both
EVEN = 1.5  # times the usual distance between two rows: where they are further apart, something is left out
MOST_TEXT = 256 * MEBI
LARGEST = float(np.finfo(np.float32).max)


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
    for name, v in zip(found.names, found.values, strict=True):
        if (np.abs(v.astype(np.float64)) > LARGEST).any():
            raise KoopsimError(
                f"{path}: the sequence {name!r} has infinite values, or some above {LARGEST:.1e}; expected smaller "
                "numbers, or nothing where none was measured."
            )
    if found.labels is None and found.tags is None:
        _say_uneven(found)
    return rounded(found)


def _say_uneven(found: Sequences) -> None:
    """Warn of the first sequence in which a row is not one step after the one before: a forecast counts rows."""
    for name, times in zip(found.names, found.times or [], strict=False):
        steps = np.diff(times)
        wide = steps[steps > EVEN * np.median(steps)] if len(steps) else steps
        if len(wide):
            warnings.warn(
                f"{found.path}: the times of {name!r} are uneven: {len(wide):,} of {len(steps):,} steps are longer "
                f"than {EVEN} times the usual {np.median(steps):g}, such as {wide[0]:g}, and a forecast takes each row "
                "as one step; put the rows on an even grid, with an empty cell where nothing was measured.",
                stacklevel=2,
            )
            return


def _text(path: Path) -> Array:
    data = np.frombuffer(read_bytes(path, MOST_TEXT, "text"), np.uint8)
    if not len(data):
        raise KoopsimError(f"{path} is empty.")
    return data


def _read_folder(path: Path, columns: OwnColumns) -> Sequences:
    split = split_folders(path)
    groups = {mark: _groups(folder) for mark, folder in (split or {TRAIN: path}).items()}
    classes = _classes(path, groups)
    listed = _listed(path, groups)
    own = _own_columns(columns, bool(classes))
    parts = [_file(file, own) for file, _, _ in listed]
    _require_alike(parts)
    names = tuple(str(file.relative_to(path).with_suffix("")) for file, _, _ in listed)
    times, since = _times(parts)
    values = [p.values[0] for p in parts]
    found = replace(parts[0], path=str(path), values=values, names=names, times=times, since=since)
    if len(split) > 1:
        found = replace(found, splits=_marks(path, split, [mark for _, mark, _ in listed]))
    if found.tags is not None:
        return _joined_tags(found, parts)
    if not classes:
        return found
    labels = np.array([classes.index(name) for _, _, name in listed])
    return replace(found, labels=labels, classes=classes)


def _times(parts: list[Sequences]) -> tuple[list[Array] | None, list[np.datetime64] | None]:
    """(the times of every file, the dates they count from); None where there are none, or not of every file."""
    times = [time for p in parts for time in p.times or []]
    since = [date for p in parts for date in p.since or []]
    return (times if len(times) == len(parts) else None), (since if len(since) == len(parts) else None)


def _groups(folder: Path) -> dict[str, list[Path]]:
    """The files of each class; of no class those of a folder without folders."""
    return {name: _files(inside) for name, inside in folders_in(folder).items()} or {"": _files(folder)}


def _classes(path: Path, groups: dict[int, dict[str, list[Path]]]) -> tuple[str, ...]:
    """The names of the classes, which are the same for testing as for training; () where there are none."""
    learnt = groups[TRAIN]
    for own in groups.values():
        strange = sorted(own.keys() - learnt.keys())
        if strange and (strange == [""] or "" in learnt):
            raise KoopsimError(f"{path} has folders of classes in one of its parts and none in another; make them one.")
        if strange:
            raise KoopsimError(f"{path} has the class {strange[0]!r}, but none in train/; training needs it too.")
    return () if "" in learnt else tuple(sorted(learnt))


def _listed(path: Path, groups: dict[int, dict[str, list[Path]]]) -> list[tuple[Path, int, str]]:
    """(file, mark, class) of every sequence: of the kind of file that most are."""
    every = [(files, mark, name) for mark, own in groups.items() for name, files in own.items()]
    kind = _kind(path, [file for files, _, _ in every for file in files])
    return [(file, mark, name) for files, mark, name in every for file in _of_kind(files, kind)]


def _kind(path: Path, files: list[Path]) -> str:
    """The kind of file that most are; a warning names one of the others, which are left out."""
    kinds = [KINDS.get(file.suffix.lower(), file.suffix.lower()) for file in files]
    kind, count = Counter(kinds).most_common(1)[0]
    others = [file for file, own in zip(files, kinds, strict=True) if own != kind]
    if others:
        warnings.warn(
            f"{path}: {count} files are {kind} and {len(others)} are not, such as {others[0].relative_to(path)}; these "
            "are left out.",
            stacklevel=2,
        )
    return kind


def _of_kind(files: list[Path], kind: str) -> list[Path]:
    found = [file for file in files if KINDS.get(file.suffix.lower(), file.suffix.lower()) == kind]
    if not found:
        raise KoopsimError(f"{files[0].parent} has no {kind} files, which the other sequences are; expected some.")
    return found


def _marks(path: Path, split: dict[int, Path], marks: list[int]) -> Array:
    """The mark of each sequence; what is called valid is tested on where nothing is called test."""
    found = np.array(marks, np.int8)
    if TEST not in split:
        say_no_test(path, split)
        found[found == VALID] = TEST
    return found


def _own_columns(columns: OwnColumns, labelled: bool) -> OwnColumns:
    """Of one file: where the label is its folder's name and no column is the target, it has no label to look for."""
    return replace(columns, goal=None) if labelled and not columns.target else columns


def _require_alike(parts: list[Sequences]) -> None:
    """The files of a folder, all of one kind, have the same columns."""
    first = parts[0]
    for part in parts:
        if part.channels != first.channels:
            raise KoopsimError(
                f"{part.path} has the columns {', '.join(part.channels)} where {first.path} has "
                f"{', '.join(first.channels)}; expected the same."
            )


def _joined_tags(found: Sequences, parts: list[Sequences]) -> Sequences:
    classes = tuple(sorted({c for p in parts for c in p.classes}))
    tags = []
    for part in parts:
        place = np.array([classes.index(c) for c in part.classes])
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
        x = (x[:, None] if x.ndim == 1 else x).astype(np.float64)
        return Sequences(str(file), [x], tuple(f"x{j}" for j in range(x.shape[1])), (file.stem,))
    return long_table(read_table(file), replace(columns, id=None))
