"""A table (columns.py) from the files people have; or one line that says why not.

.csv .tsv                 a line of names; empty cells, NA, nan, null and none are missing
.parquet .arrow .feather  the same, typed (extra `data`)
.npz                      arrays of as many rows each; (rows, d) becomes d columns, x0, x1, ...

A column is numbers where every cell of it is one; between semicolons with decimal commas, if they all fit these. A few
words among many numbers are warned of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from koopsim.datasets.columns import Array, Column, DataTable, require_columns
from koopsim.datasets.delimited import Chunk, Delimited, comma_number, is_missing, number
from koopsim.errors import KoopsimError
from koopsim.files.arrays import read_npz
from koopsim.files.arrow import arrow_table
from koopsim.files.memory import require_memory
from koopsim.files.opened import require_plain

ENDINGS = (".csv", ".tsv", ".parquet", ".arrow", ".feather", ".npz")
COPIES = 3  # of a table of numbers while it is used: as it was read, as a model sees it, a batch of it
WORD_BYTES = 60  # of a short text in Python, besides its letters
NEARLY, MANY = 0.95, 20  # that share of a column's cells and at least so many numbers: the others are worth a word


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
    require_columns(path, names, needed)
    ways = (number, comma_number) if file.delimiter == ";" else (number,)
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
    for count, chunk in enumerate(file.chunks()):
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
        if count == 0:
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
        if way is number and "_" not in "".join(cells):
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
    with arrow_table(path, 8 * COPIES) as table:
        if len(set(table.column_names)) < table.num_columns:
            raise KoopsimError(f"{path} has two columns of one name; give each its own.")
        return DataTable(path, [_of_arrow(path, name, table.column(name)) for name in table.column_names])


def _of_arrow(path: Path, name: str, values: Any) -> Column:
    """Numbers and truth values as numbers; text, dates and categories as words."""
    import pyarrow

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
