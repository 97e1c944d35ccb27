"""A table: columns of numbers or of words, from the files people have; or one line that says why not.

.csv .tsv                 a line of names; empty cells, NA, nan, null and none are missing
.parquet .arrow .feather  the same, typed (extra `data`)
.npz                      arrays of as many rows each; (rows, d) becomes d columns, x0, x1, ...

A column is numbers where every cell of it is one; between semicolons with decimal commas, if they all fit these. Words
are kept as codes, so that a category takes four bytes a row. A few words among many numbers are warned of.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koopsim.datasets.delimited import Chunk, Delimited, comma_number, is_missing, is_number
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.files.arrays import read_npz
from koopsim.files.memory import require_memory
from koopsim.files.opened import require_plain

Array = NDArray[Any]
ENDINGS = (".csv", ".tsv", ".parquet", ".arrow", ".feather", ".npz")
COPIES = 3  # of a table of numbers while it is used: as it was read, as a model sees it, a batch of it
WORDS = 1000  # of a column that are looked at for dates
WORD_BYTES = 60  # of a short text in Python, besides its letters
EXACT = 1e15  # whole numbers below it are told digit by digit
NEARLY, MANY = 0.95, 20  # that share of a column's cells and at least so many numbers: the others are worth a word
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
        _require(self.path, self.names, names)

    def take(self, rows: Any) -> DataTable:
        return DataTable(self.path, [column.take(rows) for column in self.columns.values()])

    def without(self, names: Sequence[str]) -> DataTable:
        """The other columns; a name that there is not is refused."""
        self.require(names)
        return DataTable(self.path, [column for name, column in self.columns.items() if name not in names])


def _require(path: Path | str, there: Sequence[str], names: Iterable[str]) -> None:
    for name in names:
        if name not in there:
            raise KoopsimError(f"{path} has no column {name!r}." + did_you_mean(name, there))


def read_table(path: Path | str, needed: Sequence[str] = ()) -> DataTable:
    """What is in a file; at least one row of at least one column. Of text the first line says if `needed` are there."""
    path = Path(path)
    text = partial(_read_text, needed=needed)
    readers: dict[str, Callable[[Path], DataTable]] = {".csv": text, ".tsv": text, ".npz": _read_npz}
    readers |= dict.fromkeys((".parquet", ".arrow", ".feather"), _read_arrow)
    if path.suffix.lower() not in readers:
        raise KoopsimError(f"{path} is no table; expected a file that ends in one of {', '.join(readers)}.")
    try:
        require_plain(path)
    except FileNotFoundError:
        raise KoopsimError(f"There is no file {path}.") from None
    table = readers[path.suffix.lower()](path)
    if not table.names or not len(table):
        raise KoopsimError(f"{path} has {len(table.names)} columns and {len(table)} rows; expected some of both.")
    return table


# ---------------------------------------------------------------- text


class _Otherwise(Exception):
    """Columns that were read as what they are not: the file is read again, with them as what comes next."""

    def __init__(self, columns: list[int]):
        self.columns = columns


def _read_text(path: Path, needed: Sequence[str]) -> DataTable:
    file = Delimited(path)
    names = file.names or tuple(f"x{j}" for j in range(file.width))
    _require(path, names, needed)
    ways = (float, comma_number) if file.delimiter == ";" else (float,)
    tried = [0] * len(names)  # of the ways to read numbers; one that has tried all of them is words
    while True:
        try:
            found = _columns(file, names, [(*ways, None)[way] for way in tried])
        except _Otherwise as wrong:
            for j in wrong.columns:
                tried[j] += 1
            continue
        for column in found:
            _say_odd_cells(file, column)
        return DataTable(path, found)


def _columns(file: Delimited, names: tuple[str, ...], ways: Sequence[Callable[[str], float] | None]) -> list[Column]:
    """The columns, as codes where they are no numbers by any way, a chunk of rows at a time."""
    parts: list[list[Array]] = [[] for _ in names]
    known: list[dict[str, int]] = [{} for _ in names]
    for number, chunk in enumerate(file.chunks()):
        wrong = []
        for j, (cells, way) in enumerate(zip(zip(*chunk.rows, strict=True), ways, strict=True)):
            if way is None:
                parts[j].append(_codes(cells, known[j]))
            elif (values := _numbers(cells, way)) is not None:
                parts[j].append(values)
            else:
                wrong.append(j)
        if wrong:
            raise _Otherwise(wrong)
        if number == 0:
            _require_room(file, chunk, known)
    found = []
    for j, (name, way) in enumerate(zip(names, ways, strict=True)):
        values = np.concatenate(parts[j]) if parts[j] else np.empty(0)
        parts[j] = []
        found.append(Column(name, values, tuple(known[j]) if way is None else None))
    return found


def _say_odd_cells(file: Delimited, column: Column) -> None:
    """Warn of words where nearly all cells are numbers: a slip of the hand makes categories of them all."""
    if not column.words:
        return
    counts = np.bincount(column.values[column.values >= 0], minlength=len(column.words))
    odd = np.array([not file.is_number(word) for word in column.words])
    numbers, others = int(counts[~odd].sum()), int(counts[odd].sum())
    if not others:
        warnings.warn(
            f"{file.path}: column {column.name!r} has numbers with a point and some with a comma, so that all of it is "
            "taken as words; use one.",
            stacklevel=2,
        )
        return
    if numbers < max(MANY, NEARLY * (numbers + others)):
        return
    first = int(np.argmax(odd))  # words are numbered as they come
    line = file.line_of(int(np.argmax(column.values == first)))
    warnings.warn(
        f"{file.path}, line {line}: {column.words[first]!r} is no number, as {numbers:,} of the {numbers + others:,} "
        f"cells of column {column.name!r} are, so that all of it is taken as words; correct it, or leave the cell "
        "empty where a value is missing.",
        stacklevel=2,
    )


def _require_room(file: Delimited, chunk: Chunk, known: list[dict[str, int]]) -> None:
    """Refuse a file that the columns will not fit into memory of, by what its first rows take."""
    rows = file.size / chunk.bytes_a_row
    own = sum(len(words) * WORD_BYTES + sum(map(len, words)) for words in known) / len(chunk.rows)
    require_memory(int(rows * (8 * COPIES * file.width + own)), f"{file.path} asks for")


def _numbers(cells: Sequence[str], way: Callable[[str], float]) -> Array | None:
    """The cells as numbers; None where one is a word."""
    try:
        if way is float:
            return np.array(cells, dtype=np.float64)
    except ValueError:
        pass
    try:
        return np.array([np.nan if is_missing(cell) else way(cell) for cell in cells])
    except ValueError:
        return None


def _codes(cells: Sequence[str], known: dict[str, int]) -> Array:
    return np.array(
        [-1 if is_missing(cell) else known.setdefault(cell.strip(), len(known)) for cell in cells], np.int32
    )


# ---------------------------------------------------------------- arrays


def _read_npz(path: Path) -> DataTable:
    columns = []
    for name, a in read_npz(path).items():
        if a.ndim not in (1, 2) or a.dtype.kind == "c":
            raise KoopsimError(
                f"{path}: {name!r} is {a.dtype} of shape {a.shape}; a table has arrays (rows,) or (rows, columns)."
            )
        wide = a if a.ndim == 2 else a[:, None]
        names = [name] if a.ndim == 1 else [f"{name}{j}" for j in range(a.shape[1])]
        columns += [_of_array(own, wide[:, j]) for j, own in enumerate(names)]
    lengths = {len(column): column.name for column in columns}
    if len(lengths) > 1:
        told = ", ".join(f"{name} {length}" for length, name in lengths.items())
        raise KoopsimError(f"{path} has arrays of different lengths ({told} rows); the rows of a table are one each.")
    if len({column.name for column in columns}) < len(columns):
        raise KoopsimError(f"{path} has two columns of one name: an array and a column of another; rename one.")
    return DataTable(path, columns)


def _of_array(name: str, values: Array) -> Column:
    if values.dtype.kind == "U":
        known: dict[str, int] = {}
        codes = _codes(values.tolist(), known)
        return Column(name, codes, tuple(known))
    return Column(name, values.astype(np.float64))


def _read_arrow(path: Path) -> DataTable:
    try:
        import pyarrow
        from pyarrow import feather, parquet
    except ImportError:
        raise KoopsimError(f"{path} needs pyarrow: pip install 'koopsim[data]'.") from None
    try:
        if path.suffix.lower() == ".parquet":
            described = parquet.ParquetFile(path).metadata
            require_memory(8 * COPIES * described.num_rows * described.num_columns, f"{path} asks for")
            table = parquet.read_table(path)
        else:
            require_memory(COPIES * require_plain(path), f"{path} asks for")
            table = feather.read_table(path, memory_map=False)
        if len(set(table.column_names)) < table.num_columns:
            raise KoopsimError(f"{path} has two columns of one name; give each its own.")
        columns = [_of_arrow(pyarrow, path, name, table.column(name)) for name in table.column_names]
    except KoopsimError:
        raise
    except Exception as error:  # what a damaged file makes of a C++ library is not one kind of error
        first = (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__
        raise KoopsimError(f"{path} cannot be read as {path.suffix[1:].capitalize()}: {first}.") from error
    return DataTable(path, columns)


def _of_arrow(pyarrow: Any, path: Path, name: str, values: Any) -> Column:
    """Numbers and truth values as numbers; text, dates and categories as words."""
    types, kind = pyarrow.types, values.type
    inner = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_boolean(inner) or types.is_integer(inner) or types.is_floating(inner) or types.is_decimal(inner):
        plain = values.cast(inner)  # out of a dictionary
        plain = plain.cast(pyarrow.uint8()) if types.is_boolean(inner) else plain
        return Column(name, plain.cast(pyarrow.float64(), safe=False).to_numpy().astype(np.float64))
    if types.is_null(inner):
        return Column(name, np.full(len(values), np.nan))
    if not (types.is_string(inner) or types.is_large_string(inner) or types.is_temporal(inner)):
        raise KoopsimError(f"{path}: column {name!r} holds {kind}; expected numbers, words or dates. Leave it out.")
    coded = values.cast(pyarrow.string()).combine_chunks().dictionary_encode()
    coded = coded.chunk(0) if isinstance(coded, pyarrow.ChunkedArray) else coded
    known: dict[str, int] = {}
    words = _codes([word or "" for word in coded.dictionary.to_pylist()], known)
    codes = coded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
    return Column(name, np.append(words, np.int32(-1))[codes], tuple(known))
