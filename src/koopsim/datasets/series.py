"""Trajectories, or a matrix, from the files people have; or one line that says why not.

.csv .tsv      a line of names or none; empty cells, NA and nan are missing samples
.npy           (N, N) a matrix;  (time, dims) a trajectory;  (trajectories, time, dims) several
.npz           one array as in .npy, or arrays of as many rows as there are times: each a variable
.parquet       a table (extra `data`)
.nc .h5        variables along a common first dimension (extra `data`, through xarray)

A column `t` or `time`, with a unit or without, is time and no state; a column `trajectory` says which one a row
belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from koopsim.datasets.columns import row_or_line
from koopsim.datasets.delimited import Delimited, comma_number, is_missing
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.files.arrays import read_npy, read_npz
from koopsim.files.arrow import arrow_table
from koopsim.files.memory import require_memory
from koopsim.files.netcdf import is_time, read_netcdf
from koopsim.files.opened import MEBI, require_plain

Array = NDArray[Any]
Meaning = Literal["matrix", "trajectory"]
SHOWN = 6  # arrays that a refusal lists
MOST_TEXT = 4096 * MEBI


@dataclass(frozen=True)
class Series:
    """Tables of samples, a row a time. `times` is None where the file does not say; NaN is a missing sample."""

    path: Path
    tables: list[Array]
    names: tuple[str, ...]
    times: list[Array] | None = None
    square: bool = False  # one bare array that may be a matrix

    def meaning(self, told: Meaning | None) -> Meaning:
        """A square .npy or .npz is a matrix unless told otherwise."""
        shape = self.tables[0].shape
        alone = len(self.tables) == 1 and shape[0] == shape[1]
        if told == "matrix" and not alone:
            raise KoopsimError(f"{self.path} has shape {shape}; a matrix is square.")
        return told or ("matrix" if alone and self.square else "trajectory")

    def matrix(self) -> Array:
        """The one table, without gaps."""
        wrong = int(np.sum(~np.isfinite(self.tables[0])))
        if wrong:
            size = self.tables[0].size
            raise KoopsimError(f"{self.path} has {wrong} NaN or infinite values among {size}; remove them first.")
        return self.tables[0]

    def take_out(self, names: tuple[str, ...]) -> tuple[Series, list[Array]]:
        """Without the columns named, and those: `u` also stands for u0, u1, ... of an array u."""
        chosen: list[int] = []
        for name in names:
            hits = [i for i, n in enumerate(self.names) if n == name or n.rstrip("0123456789") == name]
            if not hits:
                raise KoopsimError(f"{self.path} has no column {name!r}." + did_you_mean(name, self.names))
            chosen += hits
        rest = [i for i in range(len(self.names)) if i not in chosen]
        if not rest:
            raise KoopsimError(f"{self.path} has only the columns {', '.join(self.names)}; none is left for the state.")
        states = replace(self, tables=[t[:, rest] for t in self.tables], names=tuple(self.names[i] for i in rest))
        return states, [t[:, chosen] for t in self.tables]


def read_series(path: Path) -> Series:
    """What is in a file: numbers, not empty, at least two samples of one variable, or a matrix."""
    found = _read(path)
    short = next((t for t in found.tables if t.shape[0] < 2 and not (found.square and t.shape == (1, 1))), None)
    if short is not None:
        raise KoopsimError(f"{path} has shape {short.shape}; a trajectory needs at least two points in time.")
    return found


def read_numbers(path: Path) -> Array:
    """One table of finite numbers, (rows, columns)."""
    return _read(path).matrix()


def _read(path: Path) -> Series:
    readers: dict[str, Callable[[Path], Series]] = {
        ".csv": _read_text, ".tsv": _read_text, ".npy": _read_npy, ".npz": _read_npz, ".parquet": _read_parquet,
        ".nc": _read_netcdf, ".nc4": _read_netcdf, ".cdf": _read_netcdf, ".h5": _read_netcdf, ".hdf5": _read_netcdf,
    }  # fmt: skip
    if path.suffix.lower() not in readers:
        raise KoopsimError(f"{path} is neither a run directory nor one of {', '.join(readers)}.")
    if not path.exists():
        raise KoopsimError(f"There is no file {path}.")
    require_plain(path)
    found = readers[path.suffix.lower()](path)
    if not found.tables or found.tables[0].size == 0:
        shape = found.tables[0].shape if found.tables else (0,)
        raise KoopsimError(f"{path} is empty: its shape is {shape}.")
    return found


def _numbers(array: Array, where: str) -> Array:
    if array.dtype.kind not in "fciub":
        raise KoopsimError(f"{where} holds {array.dtype}; expected numbers.")
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64, copy=False)


def _default_names(width: int) -> tuple[str, ...]:
    return tuple(f"z{j}" for j in range(width))


def _read_npy(path: Path) -> Series:
    return _bare(read_npy(path), path)


def _bare(array: Array, path: Path) -> Series:
    """One array without names."""
    if array.size == 0:
        raise KoopsimError(f"{path} is empty: its shape is {array.shape}.")
    if array.ndim not in (1, 2, 3):
        raise KoopsimError(f"{path} has shape {array.shape}; expected a square matrix or (trajectories,) time, dims.")
    kept = array if array.dtype.kind in "fc" and array.ndim == 2 else _numbers(array, str(path))
    kept = kept[:, None] if kept.ndim == 1 else kept
    tables = list(kept) if kept.ndim == 3 else [kept]
    return Series(path, tables, _default_names(tables[0].shape[1]), square=array.ndim == 2)


def _read_npz(path: Path) -> Series:
    arrays = read_npz(path)
    numbers = {name: a for name, a in arrays.items() if a.dtype.kind in "fciub"}
    if len(numbers) == 1:
        return _bare(next(iter(numbers.values())), path)
    return _variables(numbers, path)


def _variables(arrays: dict[str, Array], path: Path) -> Series:
    """Arrays with a row a time, side by side."""
    along, rows = _along_time(arrays, path)
    time = next((n for n in along if is_time(n) and along[n].ndim == 1), None)
    columns = {n: _columns(_numbers(a, f"{path}, {n}"), rows) for n, a in along.items() if n != time}
    names = [f"{n}{j}" if a.shape[1] > 1 else n for n, a in columns.items() for j in range(a.shape[1])]
    if not columns:
        raise KoopsimError(f"{path} has times and nothing else; expected at least one variable along them.")
    times = None if time is None else [_seconds(along[time], path)]
    return Series(path, [np.hstack(list(columns.values()))], tuple(names), times)


def _along_time(arrays: dict[str, Array], path: Path) -> tuple[dict[str, Array], int]:
    """The arrays, all with a row a time, and how many rows; a control may have one less."""
    usable = {name: a for name, a in arrays.items() if a.ndim in (1, 2)}
    if not usable:
        raise KoopsimError(f"{path} has no variable with one or two dimensions, time first; it has: {_shapes(arrays)}.")
    rows = max(a.shape[0] for a in usable.values())
    along = {n: a for n, a in usable.items() if a.shape[0] == rows or (a.shape[0] == rows - 1 and a.ndim == 2)}
    if len(along) < len(arrays):
        raise KoopsimError(f"{path} has variables of different lengths: {_shapes(arrays)}; keep those along time.")
    return along, rows


def _columns(a: Array, rows: int) -> Array:
    """(rows, columns); a control acts between samples: the last one has none, and is given the one before."""
    a = a[:, None] if a.ndim == 1 else a
    return np.vstack([a, a[-1:]]) if a.shape[0] < rows else a


def _shapes(arrays: dict[str, Array]) -> str:
    return ", ".join(f"{name} {a.shape}" for name, a in list(arrays.items())[:SHOWN]) or "nothing"


def _seconds(values: Array, path: Path) -> Array:
    """Times as float64; dates become seconds from the first one."""
    dates = values.dtype.kind == "M"
    found = values if dates else _numbers(values, f"{path}, its times")
    gaps = np.flatnonzero(np.isnat(found) if dates else ~np.isfinite(found))
    if len(gaps):
        raise KoopsimError(
            f"{path} has {len(gaps):,} missing times, the first in {row_or_line(path, gaps[0])}; every row needs one."
        )
    return (found - found[0]) / np.timedelta64(1, "s") if dates else found.astype(np.float64)


def _read_text(path: Path) -> Series:
    file = Delimited(path)
    if file.size > MOST_TEXT:
        raise KoopsimError(f"{path} has {file.size:,} bytes; a trajectory as text has {MOST_TEXT:,} at most.")
    chunks = list(file.chunks())
    rows, lines = [row for c in chunks for row in c.rows], [line for c in chunks for line in c.lines]
    if not rows:
        raise KoopsimError(f"{path} has no numbers in it.")
    require_memory(8 * file.width * len(rows), f"{path} asks for")
    columns = {
        name: _column([row[j] for row in rows], lines, file, name)
        for j, name in enumerate(file.names or _default_names(file.width))
    }
    return _table(columns, path)


def _column(cells: list[str], lines: list[int], file: Delimited, name: str) -> Array:
    for number in (float, comma_number) if file.delimiter == ";" else (float,):
        try:
            return np.array([np.nan if is_missing(c) else number(c) for c in cells])
        except ValueError:
            pass
    if is_time(name):
        try:
            return np.array(["NaT" if is_missing(c) else c for c in cells], dtype="datetime64[ns]")
        except ValueError:
            pass
    odd = [i for i, c in enumerate(cells) if not is_missing(c) and not file.is_number(c)]
    if not odd:
        raise KoopsimError(f"{file.path}: column {name!r} has numbers with a point and some with a comma; use one.")
    raise KoopsimError(f"{file.path}, line {lines[odd[0]]}: {cells[odd[0]].strip()!r} is not a number.")


def _table(columns: dict[str, Array], path: Path) -> Series:
    """Columns by name: which are times, which say the trajectory, which are states."""
    which = next((n for n in columns if n.lower() == "trajectory"), None)
    labels = columns.pop(which) if which else None
    whole = _variables(columns, path)
    if labels is None:
        return whole
    order = [labels == value for value in dict.fromkeys(labels.tolist())]
    times = None if whole.times is None else [whole.times[0][rows] for rows in order]
    return replace(whole, tables=[whole.tables[0][rows] for rows in order], times=times)


def _read_parquet(path: Path) -> Series:
    with arrow_table(path, 16) as table:
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
    return _table(columns, path)


def _read_netcdf(path: Path) -> Series:
    return _variables(read_netcdf(path), path)
