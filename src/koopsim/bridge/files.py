"""A matrix or trajectories from someone's file, or one line that says why not.

.npy    (N, N) a matrix;  (time, dims) a trajectory;  (trajectories, time, dims) several
.csv    (time, dims), numbers between commas, with or without a line of names
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from koopsim.errors import KoopsimError
from koopsim.files.arrays import read_npy
from koopsim.files.memory import require_memory
from koopsim.files.opened import MEBI, read_bytes

Array = NDArray[Any]
Meaning = Literal["matrix", "trajectory"]
EXTREME = 40  # powers of two from 1
MOST_TEXT = 512 * MEBI


def read_numbers(path: Path) -> Array:
    """The array in a .npy or .csv file: numbers, finite, not empty."""
    if path.suffix not in (".npy", ".csv"):
        raise KoopsimError(f"{path} is neither a run directory nor a .npy or .csv file.")
    if not path.is_file():
        raise KoopsimError(f"There is no file {path}.")
    array = _read_csv(path) if path.suffix == ".csv" else read_npy(path)
    if array.dtype.kind not in "fciub":
        raise KoopsimError(f"{path} holds {array.dtype}; expected numbers.")
    if array.size == 0:
        raise KoopsimError(f"{path} is empty: its shape is {array.shape}.")
    wrong = int(np.sum(~np.isfinite(array)))
    if wrong:
        raise KoopsimError(f"{path} has {wrong} NaN or infinite values among {array.size}; remove them first.")
    return array


def meaning_of(array: Array, path: Path, told: Meaning | None) -> Meaning:
    """Whether an array is a matrix or trajectories; a square .npy is a matrix unless told otherwise."""
    square = array.ndim == 2 and array.shape[0] == array.shape[1]
    if told == "matrix" and not square:
        raise KoopsimError(f"{path} has shape {array.shape}; a matrix is square.")
    if array.ndim not in (1, 2, 3):
        raise KoopsimError(f"{path} has shape {array.shape}; expected a square matrix or (trajectories,) time, dims.")
    return told or ("matrix" if square and path.suffix == ".npy" and array.shape[0] > 1 else "trajectory")


def as_trajectories(array: Array, path: Path) -> list[Array]:
    """A list of (time, dims); a bare sequence has one dimension."""
    if np.iscomplexobj(array):
        raise KoopsimError(f"{path} holds complex numbers; a trajectory is real: give real and imaginary parts.")
    shaped = array[:, None] if array.ndim == 1 else array
    several = list(shaped) if shaped.ndim == 3 else [shaped]
    if several[0].shape[0] < 2:
        raise KoopsimError(f"{path} has shape {array.shape}; a trajectory needs at least two points in time.")
    if all((t == several[0][0]).all() for t in several):
        raise KoopsimError(
            f"{path} stays at one point all the time, which tells nothing of what happens around it: whether others "
            "come there, circle or flee. Give a trajectory that moves."
        )
    return in_good_units([t.astype(np.float64) for t in several])


def in_good_units(trajectories: list[Array]) -> list[Array]:
    """Coordinates whose squares would vanish or overflow, in units of a power of two: no verdict depends on units."""
    largest = np.max([np.abs(t).max(axis=0) for t in trajectories], axis=0)
    exponents = np.where(largest > 0, np.log2(np.where(largest > 0, largest, 1.0)), 0.0)
    extreme = np.abs(exponents) > EXTREME
    units = np.where(extreme, -np.round(exponents), 0).astype(int)
    return [np.ldexp(t, units) for t in trajectories] if extreme.any() else trajectories


def _read_csv(path: Path) -> Array:
    try:
        text = read_bytes(path, MOST_TEXT, "CSV file").decode("utf-8-sig")
        require_memory(20 * len(text), f"{path} asks for")
        reader = csv.reader(io.StringIO(text, newline=""))
        rows = [(reader.line_num, row) for row in reader if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise KoopsimError(f"{path} cannot be read as CSV: {error}.") from error
    if rows and not any(_number(cell) for cell in rows[0][1]):
        rows = rows[1:]  # a line of names
    if not rows:
        raise KoopsimError(f"{path} has no numbers in it.")
    width = len(rows[0][1])
    for line, row in rows:
        if len(row) != width:
            raise KoopsimError(f"{path}, line {line} has {len(row)} values; the lines before have {width}.")
        for cell in row:
            if not _number(cell):
                raise KoopsimError(f"{path}, line {line}: {cell.strip()[:60]!r} is not a number.")
    return np.array([[float(cell) for cell in row] for _, row in rows])


def _number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
