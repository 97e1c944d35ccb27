"""How the rows of a table become what a model sees, and what its answers are called: learnt once, saved with the run.

    number     (x - mean) / deviation; where it is missing the median, and a second input says so (0 or 1)
    category   an input for each word of the training rows (0 or 1), and one for "missing"; an unknown word is all zeros
    target     a class's number, or (y - mean) / deviation

All of it is found on the training rows alone. A run writes it down beside its weights (inputs.json), so that the folder
is enough to foretell a new table, whose columns may come in any order and may be more.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from koopsim.config import from_dict, to_dict
from koopsim.datasets.table import Column, DataTable, row_or_line
from koopsim.errors import KoopsimError
from koopsim.files.memory import require_memory
from koopsim.files.shapes import require_different, require_divisor, require_field

Array = NDArray[Any]
Meaning = Literal["classification", "regression"]
MOST_WORDS = 1000  # of a category
MOST_CLASSES = 20  # that whole numbers are taken for, unless told
ROWS_A_CLASS = 10  # at least, for whole numbers to be taken for classes
LARGEST = float(np.finfo(np.float32).max)
STILL = 1e-12  # of the largest value: so small a deviation is of what never changes


@dataclass(frozen=True)
class NumberInput:
    """A column of numbers."""

    name: str
    fill: float  # where one is missing: the median
    mean: float
    deviation: float
    flagged: bool  # some training rows lacked it, so an input says which

    @property
    def width(self) -> int:
        return 1 + self.flagged

    def encode(self, column: Column, path: object, out: Array) -> None:
        if column.words is not None:
            raise KoopsimError(
                f"{path}: column {self.name!r} holds words such as {column.example!r}; the model was trained on "
                "numbers there."
            )
        refuse_infinite(column, path)
        out[:, 0] = (np.where(column.missing, self.fill, column.values) - self.mean) / self.deviation
        if self.flagged:
            out[:, 1] = column.missing
        elif column.missing.any():
            warnings.warn(
                f"{path}: {int(column.missing.sum())} rows have no {self.name!r}, which none lacked in training; "
                f"the median {self.fill:g} is taken.",
                stacklevel=2,
            )


@dataclass(frozen=True)
class CategoryInput:
    """A column of words."""

    name: str
    words: tuple[str, ...]
    flagged: bool

    @property
    def width(self) -> int:
        return len(self.words) + self.flagged

    def encode(self, column: Column, path: object, out: Array) -> None:
        codes, words = column.codes()
        place = {word: i for i, word in enumerate(self.words)}
        missing = len(self.words) if self.flagged else -1
        places = np.array([*(place.get(word, -1) for word in words), missing], np.int64)[codes]
        known = np.flatnonzero(places >= 0)
        out[known, places[known]] = 1
        strange = [word for word in words if word not in place]
        if strange:
            warnings.warn(
                f"{path}: column {self.name!r} has {len(strange)} words that were not in training, the first is "
                f"{strange[0]!r}; they count as none of those.",
                stacklevel=2,
            )


@dataclass(frozen=True)
class Target:
    """What is foretold: one of some classes, or a number."""

    name: str
    classes: tuple[str, ...] | None = None
    mean: float = 0.0
    deviation: float = 1.0

    def encode(self, column: Column, path: object) -> Array:
        """(rows,): class numbers, or scaled numbers; a class that is new is refused."""
        refuse_gaps(column, path)
        if self.classes is None:
            if column.is_text:
                raise KoopsimError(f"{path}: the target {self.name!r} holds words; the model foretells a number there.")
            refuse_infinite(column, path)
            return (column.values - self.mean) / self.deviation
        codes, words = column.codes()
        place = {word: i for i, word in enumerate(self.classes)}
        strange = [word for word in words if word not in place]
        if strange:
            raise KoopsimError(f"{path}: the target {self.name!r} says {strange[0]!r}, which was no class in training.")
        return np.array([place[word] for word in words], np.int64)[codes]


@dataclass(frozen=True)
class TableInputs:
    """What a model takes of a table and what it answers."""

    FIELDS: ClassVar = ("columns", "targets")  # what decides how wide inputs are, and how many answers there are
    columns: tuple[NumberInput | CategoryInput, ...]
    targets: tuple[Target, ...]

    @property
    def width(self) -> int:
        """How many numbers a model sees of a row."""
        return sum(column.width for column in self.columns)

    @property
    def blocks(self) -> dict[str, slice]:
        """Where each column's inputs lie."""
        found, start = {}, 0
        for column in self.columns:
            found[column.name] = slice(start, start + column.width)
            start += column.width
        return found

    @property
    def meaning(self) -> Meaning:
        return "regression" if self.targets[0].classes is None else "classification"

    @property
    def outputs(self) -> int:
        return len(self.targets) if self.targets[0].classes is None else len(self.targets[0].classes)

    def encode(self, table: DataTable) -> Array:
        """(rows, width) float32; a table that lacks a column is refused, one that has more is not."""
        lost = [column.name for column in self.columns if column.name not in table.columns]
        if lost:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            raise KoopsimError(
                f"{table.path} has no column {lost[0]!r}{more}, which the model was trained on; it has: "
                f"{', '.join(table.names[:8])}{', ...' if len(table.names) > 8 else ''}."
            )
        require_memory(8 * len(table) * self.width, f"{table.path} asks for")
        x = np.zeros((len(table), self.width), np.float32)
        for column, place in zip(self.columns, self.blocks.values(), strict=True):
            column.encode(table[column.name], table.path, x[:, place])
        return x

    def encode_targets(self, table: DataTable) -> Array:
        """(rows,) classes, or (rows, targets) float32."""
        found = [target.encode(table[target.name], table.path) for target in self.targets]
        return found[0] if self.meaning == "classification" else np.stack(found, axis=1).astype(np.float32)

    def missing(self) -> dict[str, str]:
        """What stands for a missing value in each column that lacked some in training, in words."""
        return {
            c.name: f"median {c.fill:g}, and a flag" if isinstance(c, NumberInput) else "a category of its own"
            for c in self.columns
            if c.flagged
        }

    def as_dict(self) -> dict[str, Any]:
        return to_dict(self)

    def sample(self) -> Array:
        """One row as the model sees it, of zeros."""
        return np.zeros((1, self.width), np.float32)

    @classmethod
    def from_dict(cls, data: Any, where: str) -> TableInputs:
        """What a file says, if it can be: nobody else's names, a scale that can be divided by, one kind of target."""
        found = from_dict(cls, data, where)
        require_field(bool(found.columns), where, "columns", "names no columns")
        require_field(bool(found.targets), where, "targets", "names no target")
        for field, own in (("columns", found.columns), ("targets", found.targets)):
            require_different([one.name for one in own], where, field)
        scaled = [column for column in found.columns if isinstance(column, NumberInput)]
        for one in (*scaled, *found.targets):
            require_divisor(one.deviation, where, f"deviation of {one.name[:40]}")
        for column in found.columns:
            require_different(column.words if isinstance(column, CategoryInput) else (), where, "words")
        classes = [target.classes for target in found.targets if target.classes is not None]
        alone = not classes or (len(found.targets) == 1 and len(classes[0]) > 1)
        require_field(alone, where, "classes", "belongs to one target alone, which has at least two")
        require_different(classes[0] if classes else (), where, "classes")
        return found


# ---------------------------------------------------------------- from the training rows


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
            f"{words[0]!r}: names or free text, not categories; leave it out: --drop."
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


def refuse_gaps(column: Column, path: object) -> None:
    """A target is there in every row."""
    gaps = np.flatnonzero(column.missing)
    if len(gaps):
        raise KoopsimError(
            f"{path}: {len(gaps):,} of {len(column):,} rows have no {column.name!r}, the target; the first is "
            f"{row_or_line(path, gaps[0])}. Remove these rows: there is nothing to learn from them."
        )


def refuse_infinite(column: Column, path: object) -> None:
    """A number is finite, and one that float32 holds."""
    wrong = np.flatnonzero(np.abs(column.values) > LARGEST)
    if len(wrong):
        what = "infinite" if np.isinf(column.values[wrong[0]]) else f"beyond {LARGEST:.1e}"
        place = row_or_line(path, wrong[0])
        raise KoopsimError(f"{path}: column {column.name!r} is {what} in {place}; correct or remove it.")
