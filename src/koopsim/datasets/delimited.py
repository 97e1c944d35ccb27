"""Rows of a delimited text file, a few thousand at a time: what is not kept of them is never in memory.

    "a,b\\n1,x\\n2,\\n"   ->   names (a, b), then chunks of rows, each as wide as the first

A file of any size may be begun; whoever keeps what is in it asks for the room first (`Chunk.bytes_a_row`).
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from koopsim.errors import KoopsimError
from koopsim.files.opened import plain_size
from koopsim.files.waiting import Waiting

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none"))
ROWS = 8192  # of a chunk
FIRST = 4096  # characters of a first line that tell what is between the cells


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING


def is_number(cell: str) -> bool:
    """Whether a cell holds a number, or a word for one that is missing; an empty one says nothing."""
    if is_missing(cell):
        return bool(cell.strip())
    try:
        float(cell)
    except ValueError:
        return False
    return True


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
            first = next(self._rows(file), None)
        if first is None:
            raise KoopsimError(f"{path} is empty: there are no numbers or words in it.")
        named = not any(is_number(cell) for cell in first[1])
        self.names = tuple(cell.strip() for cell in first[1]) if named else None
        self.width = len(first[1])
        if self.names and len(set(self.names)) < self.width:
            twice = next(n for n in self.names if self.names.count(n) > 1)
            raise KoopsimError(f"{path} has two columns called {twice!r}; give each a name of its own.")

    def chunks(self) -> Iterator[Chunk]:
        """All rows but the names, in order; empty lines are left out."""
        tell = Waiting(str(self.path), self.size)
        with self._opened() as file:
            rows, lines = [], []
            for number, (line, row) in enumerate(self._rows(file)):
                if number == 0 and self.names:
                    continue
                if len(row) != self.width:
                    raise KoopsimError(
                        f"{self.path}, line {line} has {len(row)} values; the lines before have {self.width}."
                    )
                rows.append(row)
                lines.append(line)
                if len(rows) == ROWS:
                    yield Chunk(rows, lines)
                    tell(file.buffer.tell())  # pyright: ignore[reportAttributeAccessIssue]
                    rows, lines = [], []
            if rows:
                yield Chunk(rows, lines)

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
            reader = csv.reader(file, delimiter=self._delimiter(file))
            for row in reader:
                if any(cell and not cell.isspace() for cell in row):
                    yield reader.line_num, row
        except (OSError, ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
            raise KoopsimError(f"{self.path} cannot be read as CSV: {str(error).rstrip('.')}.") from error

    def _delimiter(self, file: io.TextIOWrapper) -> str:
        """Tabs in a .tsv; semicolons where a first line without commas has some."""
        if self.path.suffix.lower() == ".tsv":
            return "\t"
        start = file.read(FIRST).partition("\n")[0]
        file.seek(0)
        return ";" if ";" in start and "," not in start else ","
