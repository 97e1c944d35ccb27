"""A table in memory: columns of numbers or of words, by name, the same whatever file they came from (table.py).

Words are kept as codes, so that a category takes four bytes a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koopsim.datasets.delimited import Delimited, is_number
from koopsim.errors import KoopsimError, did_you_mean

Array = NDArray[Any]
WORDS = 1000  # of a column that are looked at for dates
EXACT = 1e15  # whole numbers below it are told digit by digit
DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d{1,2}:.*)?")


@dataclass(frozen=True)
class Column:
    """Numbers, float64 with NaN where one is missing; or words, int32 codes with -1 where one is."""

    name: str
    values: Array
    words: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_text(self) -> bool:
        return self.words is not None

    @property
    def missing(self) -> Array:
        """Which rows have nothing here."""
        return self.values < 0 if self.is_text else np.isnan(self.values)

    def take(self, rows: Any) -> Column:
        return Column(self.name, self.values[rows], self.words)

    def texts(self) -> list[str | None]:
        """Each row's word, a number in its shortest form; None where it is missing."""
        if self.words is not None:
            return [None if code < 0 else self.words[code] for code in self.values.tolist()]
        return [None if v != v else number_text(v) for v in self.values.tolist()]

    def codes(self) -> tuple[Array, tuple[str, ...]]:
        """(a code for each row, -1 where it is missing; what each stands for): only those that occur, in order."""
        if self.words is None:
            values, codes = np.unique(self.values, return_inverse=True)
            codes = np.where(np.isnan(self.values), -1, codes).astype(np.int32)
            return codes, tuple(number_text(v) for v in values[~np.isnan(values)].tolist())
        used = sorted({self.words[c] for c in np.unique(self.values).tolist() if c >= 0})
        place = {word: i for i, word in enumerate(used)}
        table = np.array([*(place.get(word, -1) for word in self.words), -1], np.int32)
        return table[self.values], tuple(used)

    @property
    def looks_like_dates(self) -> bool:
        """Whether it holds words and each is written as a date."""
        return bool(self.words) and all(DATE.fullmatch(word.strip()) for word in self.words[:WORDS])

    @property
    def example(self) -> str:
        """One of its words that is not written as a number, if there is one."""
        words = self.words or ("?",)
        return next((word for word in words if not is_number(word)), words[0])

    def require_whole(self, path: Path | str, what: str) -> None:
        """Refuse a row in which nothing is here."""
        gaps = np.flatnonzero(self.missing)
        if len(gaps):
            raise KoopsimError(
                f"{path}: {len(gaps):,} rows have no {what} in column {self.name!r}, the first is "
                f"{row_or_line(path, gaps[0])}; every row needs one."
            )

    def times(self, path: Path | str) -> Array:
        """Numbers as they are; dates as seconds from the earliest one; anything else is refused."""
        self.require_whole(path, "time")
        if self.words is None:
            return self.values
        try:
            moments = np.array(self.words, dtype="datetime64[ns]")
        except ValueError:
            raise KoopsimError(
                f"{path}: column {self.name!r} holds {self.example!r}, which is no time; expected numbers, or dates "
                "such as 2024-03-01 or 2024-03-01T12:30:00."
            ) from None
        return ((moments - moments.min()) / np.timedelta64(1, "s"))[self.values]

    @property
    def since(self) -> np.datetime64 | None:
        """The date that `times` counts from; None where they are numbers."""
        return None if self.words is None else np.array(self.words, dtype="datetime64[ns]").min()


def number_text(value: float) -> str:
    """A number as short as it can be told: 3, not 3.0."""
    return str(int(value)) if abs(value) < EXACT and value == int(value) else repr(value)


def row_or_line(path: Any, row: int) -> str:
    """Where a row, counted from 0, is found: the line of a text, or its number."""
    file = Path(str(path))
    if file.suffix.lower() in (".csv", ".tsv") and file.exists():
        return f"line {Delimited(file).line_of(int(row))}"
    return f"row {int(row) + 1}"


class DataTable:
    """Columns of equal length by name."""

    def __init__(self, path: Path | str, columns: Iterable[Column]):
        self.path, self.columns = path, {column.name: column for column in columns}
        self.rows = len(next(iter(self.columns.values()))) if self.columns else 0

    def __len__(self) -> int:
        return self.rows

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def __getitem__(self, name: str) -> Column:
        self.require([name])
        return self.columns[name]

    def require(self, names: Iterable[str]) -> None:
        """Refuse a table without one of these columns."""
        require_columns(self.path, self.names, names)

    def take(self, rows: Any) -> DataTable:
        return DataTable(self.path, [column.take(rows) for column in self.columns.values()])

    def without(self, names: Sequence[str]) -> DataTable:
        """The other columns; a name that there is not is refused."""
        self.require(names)
        return DataTable(self.path, [column for name, column in self.columns.items() if name not in names])


def require_columns(path: Path | str, there: Sequence[str], names: Iterable[str]) -> None:
    """Refuse what lacks one of these columns."""
    for name in names:
        if name not in there:
            raise KoopsimError(f"{path} has no column {name!r}." + did_you_mean(name, there))
