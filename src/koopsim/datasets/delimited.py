"""Rows of a delimited text file, a few thousand at a time: what is not kept of them is never in memory.

    "a,b\\n1,x\\n2,\\n"   ->   names (a, b), then chunks of rows, each as wide as the first

The first row is names where it has words and no numbers, or words and below one of them a number: a year may be a name.
Columns at the end that are empty in every row, of lines that end in a comma, are none. Between semicolons 1,5 is 1.5.

A file of any size may be begun; whoever keeps what is in it asks for the room first (`Chunk.bytes_a_row`).
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from koopsim.errors import KoopsimError
from koopsim.files.opened import plain_size
from koopsim.files.waiting import Waiting

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none"))
ROWS = 8192  # of a chunk
FIRST = 4096  # characters of a first line that tell what is between the cells
LOOKED_AT = 20  # rows below the first one that tell whether it holds names
QUOTED = re.compile(r'"[^"]*"')
BLOCK = 2**20  # bytes that are looked at for the place of what is not UTF-8


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING


def is_number(cell: str) -> bool:
    """Whether a cell holds a number, or a word for one that is missing; an empty one says nothing."""
    if is_missing(cell):
        return bool(cell.strip())
    try:
        number(cell)
    except ValueError:
        return False
    return True


def number(cell: str) -> float:
    """As Python reads it, but for 1_2, which is 12 in its programs and a word in everybody's files."""
    if "_" in cell:
        raise ValueError(f"{cell!r} is a word")
    return float(cell)


def comma_number(cell: str) -> float:
    """The number that a cell holds with a decimal comma, 1,5; NaN where it is missing, else a ValueError."""
    if is_missing(cell):
        return float("nan")
    if "." in cell:
        raise ValueError(f"{cell!r} has a point")
    return number(_pointed(cell))


def _pointed(cell: str) -> str:
    return cell.replace(",", ".")


@dataclass(frozen=True)
class Chunk:
    """Some rows, and the line of the file that each ends at."""

    rows: list[list[str]]
    lines: list[int]

    @property
    def bytes_a_row(self) -> float:
        """About how many bytes of the file a row takes."""
        return sum(len(cell) + 1 for row in self.rows for cell in row) / len(self.rows)


class Delimited:
    """A .csv (commas or semicolons) or .tsv (tabs): its size, its names where its first line has some, its rows."""

    def __init__(self, path: Path):
        self.path = path
        with self._opened() as file:
            self.size = os.fstat(file.fileno()).st_size
            start = file.buffer.peek(FIRST)[:FIRST]  # pyright: ignore[reportAttributeAccessIssue]
            if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in start:
                raise KoopsimError(f"{path}, line 1 is no UTF-8: the file is UTF-16, or no text. Save it as UTF-8.")
            self.delimiter = self._delimiter(start.decode("utf-8-sig", "replace").partition("\n")[0])
            first = [row for _, row in islice(self._rows(file), 1 + LOOKED_AT)]
        if not first:
            raise KoopsimError(f"{path} is empty: there are no numbers or words in it.")
        self.empty = self._empty_columns(first)
        self.width = len(first[0]) - self.empty
        names = tuple(cell.strip() for cell in first[0][: self.width])
        self.names = names if self._are_names(names, first[1:]) else None
        if self.names and len(set(self.names)) < self.width:
            twice = next(n for n in self.names if self.names.count(n) > 1)
            raise KoopsimError(f"{path} has two columns called {twice!r}; give each a name of its own.")

    def is_number(self, cell: str) -> bool:
        """As `is_number`, and between semicolons with a decimal comma too."""
        return is_number(cell) or (self.delimiter == ";" and is_number(_pointed(cell)))

    def line_of(self, row: int) -> int:
        """The line of the file that a row ends at; rows are counted from 0, without the names."""
        for chunk in self.chunks():
            if row < len(chunk.lines):
                return chunk.lines[row]
            row -= len(chunk.lines)
        raise IndexError(row)

    def chunks(self) -> Iterator[Chunk]:
        """All rows but the names, in order; empty lines are left out."""
        tell = Waiting(str(self.path), self.size)
        whole = self.width + self.empty
        with self._opened() as file:
            rows, lines = [], []
            for number, (line, row) in enumerate(self._rows(file)):
                if number == 0 and self.names:
                    continue
                if len(row) != whole:
                    raise KoopsimError(
                        f"{self.path}, line {line} has {len(row)} values; the lines before have {whole}."
                    )
                del row[self.width :]
                rows.append(row)
                lines.append(line)
                if len(rows) == ROWS:
                    yield Chunk(rows, lines)
                    tell(file.buffer.tell())  # pyright: ignore[reportAttributeAccessIssue]
                    rows, lines = [], []
            if rows:
                yield Chunk(rows, lines)

    def _are_names(self, first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
        """Whether the first row is names: some are words, and where others are numbers, below a word is a number."""
        words = [j for j, cell in enumerate(first) if not is_missing(cell) and not self.is_number(cell)]
        if all(j in words or is_missing(cell) for j, cell in enumerate(first)):
            return bool(words)
        beside = (next((row[j] for row in below if j < len(row) and not is_missing(row[j])), "") for j in words)
        return any(map(self.is_number, beside))

    def _empty_columns(self, first: Sequence[Sequence[str]]) -> int:
        """How many columns at the end are empty in every row; all are read only where the first ones have some."""
        if min(map(_empty_end, first)) == 0:
            return 0
        with self._opened() as file:
            return min(_empty_end(row) for _, row in self._rows(file))

    def _opened(self) -> io.TextIOWrapper:
        """Never a pipe or a device, which might not end."""
        handle = os.open(self.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            plain_size(os.fstat(handle), self.path)
        except KoopsimError:
            os.close(handle)
            raise
        return io.TextIOWrapper(os.fdopen(handle, "rb"), encoding="utf-8-sig", newline="")

    def _rows(self, file: io.TextIOWrapper) -> Iterator[tuple[int, list[str]]]:
        try:
            reader = csv.reader(file, delimiter=self.delimiter)
            for row in reader:
                if any(cell and not cell.isspace() for cell in row):
                    yield reader.line_num, row
        except UnicodeDecodeError as error:
            wrong = error.object[error.start]
            raise KoopsimError(
                f"{self.path}, line {self._line_of_other_text()} is no UTF-8 (byte {wrong:#x}); save it as UTF-8."
            ) from error
        except (OSError, ValueError, csv.Error) as error:
            raise KoopsimError(f"{self.path} cannot be read as CSV: {str(error).rstrip('.')}.") from error

    def _line_of_other_text(self) -> int:
        """The first line that cannot be read as UTF-8."""
        line, decoder = 1, codecs.getincrementaldecoder("utf-8")()
        with self._opened() as file:
            while block := file.buffer.read(BLOCK):
                try:
                    line += decoder.decode(block).count("\n")
                except UnicodeDecodeError as error:
                    return line + error.object[: error.start].count(b"\n")
        return line

    def _delimiter(self, line: str) -> str:
        """Tabs in a .tsv; semicolons where the first line has some, and no commas but those of numbers."""
        if self.path.suffix.lower() == ".tsv":
            return "\t"
        line = QUOTED.sub("", line)  # there both are text
        numbers = all(is_number(_pointed(cell)) for cell in line.split(";") if "," in cell)
        return ";" if ";" in line and numbers else ","


def _empty_end(row: Sequence[str]) -> int:
    """How many cells at the end of a row are empty."""
    return next(n for n, cell in enumerate(reversed(row)) if cell.strip())
