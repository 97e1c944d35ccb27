"""How the rows of a table become what a model sees, and what its answers are called: learnt once, saved with the run.

    number     (x - mean) / deviation; where it is missing the median, and a second input says so (0 or 1)
    category   an input for each word of the training rows (0 or 1), and one for "missing"; an unknown word is all zeros
    target     a class's number, or (y - mean) / deviation

All of it is found on the training rows alone. A run writes it down beside its weights (inputs.json), so that the folder
is enough to foretell a new table, whose columns may come in any order and may be more.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from koopsim.config import from_dict, to_dict
from koopsim.datasets.columns import Array, Column, DataTable, row_or_line
from koopsim.errors import KoopsimError
from koopsim.files.memory import require_memory
from koopsim.files.shapes import require_different, require_divisor, require_field

Meaning = Literal["classification", "regression"]
LARGEST = float(np.finfo(np.float32).max)


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
