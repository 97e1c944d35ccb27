"""What the training rows of a table say of its columns: which are numbers and which categories, and what the target is.

TableInputs (table_inputs.py)  <-  learn_inputs(table, learn_targets(table, names, meaning, rows), rows)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from koopsim.datasets.columns import Array, Column, DataTable
from koopsim.datasets.table_inputs import (
    CategoryInput,
    Meaning,
    NumberInput,
    TableInputs,
    Target,
    refuse_gaps,
    refuse_infinite,
)
from koopsim.errors import KoopsimError

MOST_WORDS = 1000  # of a category
MOST_CLASSES = 20  # that whole numbers are taken for, unless told
ROWS_A_CLASS = 10  # at least, for whole numbers to be taken for classes
STILL = 1e-12  # of the largest value: so small a deviation is of what never changes


def learn_inputs(table: DataTable, targets: Sequence[Target], rows: Array) -> TableInputs:
    """What the training rows of a table, all of whose columns but the targets are inputs, say about it."""
    names = [name for name in table.names if name not in {target.name for target in targets}]
    if not names:
        raise KoopsimError(f"{table.path} has no column besides the target; there is nothing to foretell it from.")
    return TableInputs(tuple(_learn(table[name], table.path, rows) for name in names), tuple(targets))


def _learn(column: Column, path: object, rows: Array) -> NumberInput | CategoryInput:
    here = column.take(rows)
    flagged = bool(here.missing.any())
    if here.missing.all():
        raise KoopsimError(f"{path}: column {column.name!r} is empty in all training rows; leave it out: --drop.")
    if column.words is None:
        refuse_infinite(column, path)
        known = here.values[~here.missing]
        fill = float(np.median(known))
        filled = np.where(here.missing, fill, here.values)
        return NumberInput(column.name, fill, float(filled.mean()), deviation_of(filled), flagged)
    if column.looks_like_dates:
        raise KoopsimError(
            f"{path}: column {column.name!r} holds dates such as {column.words[0]!r}, which are neither numbers nor "
            "categories; make numbers of them (year, weekday, days since), or leave the column out: --drop."
        )
    words = here.codes()[1]
    if len(words) > MOST_WORDS or (len(words) > MOST_CLASSES and 2 * len(words) > len(here)):
        raise KoopsimError(
            f"{path}: column {column.name!r} has {len(words):,} different words in {len(here):,} rows, such as "
            f"{column.example!r}: no numbers, and too many for categories; write numbers plainly (1234.5), leave cells "
            "empty that are missing, or leave the column out: --drop."
        )
    return CategoryInput(column.name, words, flagged)


def learn_targets(table: DataTable, names: Sequence[str], meaning: Meaning | None, rows: Array) -> tuple[Target, ...]:
    """The targets: found out to be classes or numbers unless told. Classes are those of all rows."""
    table.require(names)
    for name in names:
        refuse_gaps(table[name], table.path)
    first = table[names[0]]
    meaning = meaning or meaning_of(first)
    if meaning == "classification":
        if len(names) > 1:
            raise KoopsimError(f"There are {len(names)} targets; a classifier has one. Several are for regression.")
        return (_learn_classes(first, table.path, rows),)
    for name in names:
        if table[name].words is not None:
            raise KoopsimError(f"{table.path}: the target {name!r} holds words; regression foretells numbers.")
        refuse_infinite(table[name], table.path)
    found = ((name, table[name].values[rows]) for name in names)
    return tuple(Target(name, None, float(y.mean()), deviation_of(y)) for name, y in found)


def _learn_classes(column: Column, path: object, rows: Array) -> Target:
    if column.looks_like_dates:
        raise KoopsimError(
            f"{path}: the target {column.name!r} holds dates such as {column.texts()[0]!r}; make numbers of them first."
        )
    codes, words = column.codes()
    if len(words) < 2:
        raise KoopsimError(
            f"{path}: the target {column.name!r} is {column.texts()[0]!r} in every row; expected two classes."
        )
    if len(words) > MOST_WORDS or 2 * len(words) > len(column):
        raise KoopsimError(
            f"{path}: the target {column.name!r} has {len(words):,} classes in {len(column):,} rows; expected at least "
            "two rows of each on average. Numbers are foretold by --goal regress."
        )
    counts, learnt = (np.bincount(own[own >= 0], minlength=len(words)) for own in (codes, codes[rows]))
    rare = np.flatnonzero((counts < 2) | (learnt == 0))
    if len(rare):
        first = rare[0]
        warnings.warn(
            f"{path}: the class {words[first]!r} of {column.name!r} has {counts[first]} of {len(column):,} rows, "
            f"{learnt[first]} of them to learn from, so that it is not both learnt and tested"
            f"{f' (as {len(rare) - 1} more)' if len(rare) > 1 else ''}; give more of it, or leave it out.",
            stacklevel=2,
        )
    return Target(column.name, words)


def meaning_of(column: Column) -> Meaning:
    """Words are classes, and so are a few whole numbers; all else is a number."""
    if column.is_text:
        return "classification"
    different = np.unique(column.values)
    few = len(different) <= min(MOST_CLASSES, max(2, len(column) // ROWS_A_CLASS))
    return "classification" if few and bool((different == np.round(different)).all()) else "regression"


def deviation_of(values: Array) -> float:
    """The standard deviation; 1 of what never changes."""
    deviation = float(values.std())
    return deviation if deviation > STILL * float(np.abs(values).max()) else 1.0
