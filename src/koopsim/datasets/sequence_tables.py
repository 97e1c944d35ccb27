"""Sequences in one table: a row a step, with --id and --time; or a row a sequence, its words as bytes, with --text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from koopsim.datasets.columns import Column, DataTable
from koopsim.datasets.sequences import Array, Sequences
from koopsim.errors import KoopsimError
from koopsim.files.memory import require_memory
from koopsim.kinds import OwnColumns

MOST_CLASSES = 1000
FEW = 20  # different whole numbers are taken for labels, unless told


def rows_of_text(table: DataTable, columns: OwnColumns) -> Sequences:
    """A row a sequence: the bytes of its text, and its label."""
    column = table[str(columns.text)]
    column.require_whole(table.path, "text")
    texts = column.texts()
    values = [np.frombuffer(str(text).encode(), np.uint8) for text in texts]
    found = Sequences(str(table.path), values, (str(columns.text),), tuple(map(str, range(len(texts)))))
    if not columns.target:
        return found
    codes, classes = _classes(table, columns)
    return replace(found, labels=codes, classes=classes)


def _classes(table: DataTable, columns: OwnColumns) -> tuple[Array, tuple[str, ...]]:
    """(the code of each row's label, what each code stands for)"""
    if len(columns.target) != 1:
        raise KoopsimError(f"{table.path}: give one --target for labels, not {len(columns.target)}.")
    column = table[columns.target[0]]
    column.require_whole(table.path, "label")
    codes, classes = column.codes()
    if len(classes) > MOST_CLASSES:
        raise KoopsimError(
            f"{table.path}: column {column.name!r} has {len(classes):,} different values; are these labels?"
        )
    return codes.astype(np.int64), classes


def long_table(table: DataTable, columns: OwnColumns) -> Sequences:
    """A row a step; the target is labels unless it is to be forecast."""
    table.require([n for n in (columns.id, columns.time, *columns.target, *columns.drop) if n is not None])
    labelled = columns.goal in ("classify", "tag") or (columns.goal is None and _are_labels(table, columns))
    states = _states(table, columns, labelled)
    require_memory(16 * len(table) * len(states), f"{table.path} asks for")
    owner, names = _owners(table, columns)
    time = table[columns.time].times(table.path) if columns.time else np.arange(len(table), dtype=float)
    order = np.lexsort((time, owner))
    owner, time = owner[order], time[order]
    twice = np.flatnonzero((np.diff(owner) == 0) & (np.diff(time) == 0))
    if len(twice):
        who = f" of {names[owner[twice[0]]]!r}" if columns.id else ""
        raise KoopsimError(f"{table.path}: two rows{who} have the same time {time[twice[0]]:g}; give each its own.")
    x = np.stack([c.values for c in states], axis=1)[order]
    cuts = np.flatnonzero(np.diff(owner)) + 1
    times = np.split(time, cuts) if columns.time else None
    found = Sequences(str(table.path), np.split(x, cuts), tuple(c.name for c in states), names, times=times)
    since = table[columns.time].since if columns.time else None
    found = found if since is None else replace(found, since=[since] * len(found))
    return _labelled(found, table, columns, order) if labelled else found


def _states(table: DataTable, columns: OwnColumns, labelled: bool) -> list[Column]:
    """The columns that are the sequence: numbers, all that are nothing else."""
    apart = [columns.id, columns.time, *columns.drop, *(columns.target if labelled else ())]
    states = [c for name, c in table.columns.items() if name not in apart]
    words = next((c for c in states if c.words is not None), None)
    if words is not None:
        raise KoopsimError(
            f"{table.path}: column {words.name!r} holds words such as {words.example!r}; a sequence is "
            f"numbers. Leave it out with --drop {words.name}, or name it --id, --time or --target."
        )
    if not states:
        raise KoopsimError(f"{table.path} has no columns left for the sequence itself.")
    return states


def _owners(table: DataTable, columns: OwnColumns) -> tuple[Array, tuple[str, ...]]:
    """(the sequence that each row belongs to, what each is called)"""
    if columns.id is None:
        return np.zeros(len(table), int), (Path(table.path).stem,)
    table[columns.id].require_whole(table.path, "name of a sequence")
    return table[columns.id].codes()


def _labelled(found: Sequences, table: DataTable, columns: OwnColumns, order: Array) -> Sequences:
    """With a label a sequence where it never changes in one, or a label a step."""
    codes, classes = _classes(table, columns)
    tags = np.split(codes[order], np.cumsum(found.lengths)[:-1])
    odd = next((n for n, own in zip(found.names, tags, strict=True) if (own != own[0]).any()), None)
    if columns.goal == "classify" and odd is not None:
        raise KoopsimError(
            f"{table.path}: {columns.target[0]!r} changes within the sequence {odd!r}; a label a step is --goal tag."
        )
    if columns.goal == "classify" or (columns.goal is None and odd is None and len(found) > 1):
        return replace(found, labels=np.array([own[0] for own in tags]), classes=classes)
    return replace(found, tags=tags, classes=classes)


def _are_labels(table: DataTable, columns: OwnColumns) -> bool:
    """Words, or few whole numbers: labels; else numbers to be forecast."""
    if len(columns.target) != 1 or columns.horizon is not None:
        return False
    column = table[columns.target[0]]
    values = column.values[~column.missing]
    return column.is_text or (len(np.unique(values)) <= FEW and bool((values == np.rint(values)).all()))
