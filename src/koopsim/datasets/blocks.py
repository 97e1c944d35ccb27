"""Labelled pictures that stay where they are and are read a few rows at a time.

    source.read(rows)  ->  uint8 (len(rows), channels, height, width)        rows near one another are read together

    arrays    .npy files, an .npz as numpy.savez stores it, or an array in memory
    folder    DIR/class/name.png, decoded when asked for
    Arrow     Parquet, Arrow or Feather files with a column of encoded pictures and one of labels (arrow_blocks.py)

Labels are in memory: eight bytes a picture. A source is read by worker processes and holds no open file of theirs.
"""

from __future__ import annotations

import hashlib
import math
import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koopsim.datasets.folder import decode_files, listed_pictures
from koopsim.datasets.images import Images, stratified_split
from koopsim.datasets.npz import SHARE, numbered, oriented, require_two
from koopsim.errors import KoopsimError
from koopsim.registry import DATASETS

Rows = NDArray[np.int64]
Shape = tuple[int, int, int]
SPLITS = ("train", "test")
LOOKED_AT = 64  # pictures that an array is known by
MOST_HEADER = 10_000  # characters that say what an array is
NAME_LENGTH = 26  # where the lengths of a file's name and of what follows it stand in its header inside a zip


class Source(ABC):
    """Where pictures are read from."""

    labels: Rows  # (n,)
    shape: Shape  # channels, height, width

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def read(self, rows: Rows) -> NDArray[np.uint8]:
        """The pictures in these rows; one that cannot be read is named in an error."""

    def read_good(self, rows: Rows) -> tuple[NDArray[np.uint8], NDArray[np.bool_], list[tuple[int, str]]]:
        """(pictures, which of them are good, why the others are not, by row): what cannot be read is zero."""
        try:
            return self.read(rows), np.ones(len(rows), bool), []
        except KoopsimError:
            pass
        x, good, lost = np.zeros((len(rows), *self.shape), np.uint8), np.ones(len(rows), bool), []
        for i, row in enumerate(rows):
            try:
                x[i] = self.read(rows[i : i + 1])[0]
            except KoopsimError as error:
                good[i] = False
                lost.append((int(row), str(error)))
        return x, good, lost

    @abstractmethod
    def identity(self) -> str:
        """What tells it from other data without reading all of it."""

    @property
    def bytes(self) -> int:
        return len(self) * math.prod(self.shape)


@dataclass(frozen=True)
class FileArray:
    """An array as it lies in a file, read row by row: nothing is mapped, so no limit on memory is met."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, rows: Rows) -> NDArray[Any]:
        each = math.prod(self.shape[1:]) * self.dtype.itemsize
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        flat = found.reshape(len(rows), -1).view(np.uint8) if len(rows) else found
        with open(self.path, "rb", buffering=0) as file:
            for own, row in zip(flat, rows, strict=True):
                if os.preadv(file.fileno(), [own.data], self.offset + int(row) * each) != each:
                    raise KoopsimError(f"{self.path} ends before its row {int(row)} does; it was cut off or changed.")
        return found

    def whole(self) -> NDArray[Any]:
        """All of it, in memory."""
        return np.fromfile(self.path, self.dtype, math.prod(self.shape), offset=self.offset).reshape(self.shape)


class ArraySource(Source):
    """Rows of an array in memory or in a file, with the colour first or last."""

    def __init__(self, x: NDArray[np.uint8] | FileArray, labels: Rows, where: str):
        self.x, self.labels, self.where = x, labels, where
        self.last = oriented(tuple(x.shape), where)
        n, *rest = x.shape if len(x.shape) == 4 else (x.shape[0], 1, *x.shape[1:])
        self.shape = (rest[2], rest[0], rest[1]) if self.last else (rest[0], rest[1], rest[2])
        if n != len(labels):
            raise KoopsimError(f"{where} has {n} pictures and {len(labels)} labels; expected one for each.")

    def read(self, rows: Rows) -> NDArray[np.uint8]:
        found = self.x[rows]
        found = found[:, None] if found.ndim == 3 else found
        return np.ascontiguousarray(found.transpose(0, 3, 1, 2) if self.last else found)

    def identity(self) -> str:
        path = self.x.path if isinstance(self.x, FileArray) else None
        some = self.read(np.linspace(0, len(self) - 1, min(len(self), LOOKED_AT)).astype(np.int64))
        return f"{path and path.stat().st_size} {self.shape} {hashlib.sha256(some.tobytes()).hexdigest()}"


class FileSource(Source):
    """A file a picture, decoded when it is asked for."""

    def __init__(self, files: Sequence[Path], labels: Rows, shape: Shape):
        self.files, self.labels, self.shape = list(files), labels, shape

    def read(self, rows: Rows) -> NDArray[np.uint8]:
        return decode_files([self.files[int(row)] for row in rows], self.shape)

    def identity(self) -> str:
        named = hashlib.sha256("\0".join(f"{f.name} {f.stat().st_size}" for f in self.files).encode())
        return f"{len(self)} {self.shape} {named.hexdigest()}"


@dataclass(frozen=True)
class StreamedImages:
    """Training and test pictures where they are, and the names of their classes."""

    name: str
    train: Source
    test: Source
    classes: tuple[str, ...]
    loads: bool = True  # whether `load_images` could load it too
    lost: tuple[str, ...] = ()  # pictures, files and row groups that cannot be read and were left out, as was asked for

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise KoopsimError(f"{self.name} has {len(self.classes)} class; telling pictures apart needs at least two.")
        if self.train.shape != self.test.shape:
            shapes = f"training pictures are {self.train.shape} but test pictures {self.test.shape}"
            raise KoopsimError(f"{self.name}: {shapes}; both must have the same channels, height and width.")

    @property
    def bytes(self) -> int:
        """What all of it would take in memory."""
        return self.train.bytes + self.test.bytes


def stream_images(name: str, size: tuple[int, int] | None = None, skip: bool = False) -> StreamedImages:
    """What `load_images` loads, left where it is; and Parquet, Arrow and folders of .npy besides.

    `skip`: leave out shards, and pictures of a folder, that cannot be read.
    """
    path = Path(name).expanduser()
    if DATASETS.find(name) is not None:
        return in_memory(DATASETS[name].load(None).resized(size))
    if not path.exists():
        raise KoopsimError(f"There is no dataset, folder or file {name!r} to stream.")
    inside = sorted(path.iterdir()) if path.is_dir() else [path]
    if any(file.suffix.lower() in (".parquet", ".arrow", ".feather") for file in inside):
        from koopsim.datasets.arrow_blocks import stream_arrow

        return stream_arrow(path, size, skip)
    if {"x_train.npy", "y_train.npy"} <= {file.name for file in inside}:
        found = _arrays({file.stem: _npy(file) for file in inside if file.suffix == ".npy"}, path, size)
        return replace(found, loads=False)
    if path.is_dir():
        return _folder(path, size, skip)
    if path.suffix.lower() == ".npz":
        return _arrays(_npz(path), path, size)
    raise KoopsimError(f"{path} cannot be streamed; expected an .npz, a folder of .npy or of pictures, or Parquet.")


def streamable(name: str, size: tuple[int, int] | None = None, skip: bool = False) -> StreamedImages | None:
    """What is under this name, looked at and not loaded; None where it can only be loaded."""
    path = Path(name).expanduser()
    if not path.exists() or (path.suffix.lower() == ".npz" and not _stored(path)):
        return None
    return stream_images(name, size, skip)


def _stored(path: Path) -> bool:
    """Whether an .npz has train and test of pictures as bytes, and is not compressed."""
    try:
        return "x_train" in _npz(path) and _npz(path)["x_train"].dtype == np.uint8
    except (KoopsimError, OSError, zipfile.BadZipFile):
        return False


def in_memory(images: Images) -> StreamedImages:
    """Images of this process's own memory as a source."""
    train, test = (ArraySource(x, y, images.name) for x, y in (images.train, images.test))
    return StreamedImages(images.name, train, test, images.classes)


def _folder(path: Path, size: tuple[int, int] | None, skip: bool) -> StreamedImages:
    found = listed_pictures(path, size, skip)
    labels = np.array(found.labels, np.int64)
    if found.cut is None:
        require_two(str(path), labels, found.classes)
        train, test = stratified_split(labels, round(SHARE * len(labels)), seed=0)
    else:
        train, test = np.arange(found.cut), np.arange(found.cut, len(labels))
    parts = [FileSource([found.files[i] for i in rows], labels[rows], found.shape) for rows in (train, test)]
    return StreamedImages(str(path), parts[0], parts[1], found.classes, lost=found.lost)


def _npy(path: Path) -> FileArray:
    with path.open("rb") as file:
        return _header(file, path)


def _npz(path: Path) -> dict[str, FileArray]:
    """The arrays of an .npz where they lie in it: stored, not compressed."""
    found = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise KoopsimError(
                    f"{path} is compressed, and what is compressed cannot be read from its middle; save it with "
                    "numpy.savez, or as x_train.npy, y_train.npy, x_test.npy and y_test.npy in a folder."
                )
            file.seek(member.header_offset + NAME_LENGTH)
            name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
            file.seek(name + extra, os.SEEK_CUR)
            found[member.filename.removesuffix(".npy")] = _header(file, path)
    return found


def _header(file: Any, path: Path) -> FileArray:
    try:
        version = np.lib.format.read_magic(file)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(file, max_header_size=MOST_HEADER)
    except Exception as error:  # NumPy reads the header as Python text, and raises whatever that can
        raise KoopsimError(f"{path} is not an array that can be streamed: {error}.") from error
    if fortran or dtype.kind not in "biu" or dtype.fields is not None:
        raise KoopsimError(f"{path} holds {dtype}{' in Fortran order' if fortran else ''}; expected rows of uint8.")
    if file.tell() + math.prod(shape) * dtype.itemsize > path.stat().st_size:
        raise KoopsimError(f"{path} claims the shape {shape} and ends before it does.")
    return FileArray(path, file.tell(), tuple(shape), dtype)


def _arrays(found: dict[str, FileArray], path: Path, size: tuple[int, int] | None) -> StreamedImages:
    missing = [f"{kind}_{split}" for split in SPLITS for kind in "xy" if f"{kind}_{split}" not in found]
    if missing:
        raise KoopsimError(f"{path} has no {', '.join(missing)}; to be streamed it needs x and y of train and of test.")
    labels = {split: found[f"y_{split}"].whole() for split in SPLITS}
    values, *codes = numbered(path, *(labels[split].ravel() for split in SPLITS))
    parts = []
    for split, y in zip(SPLITS, codes, strict=True):
        x = found[f"x_{split}"]
        if x.dtype != np.uint8:
            raise KoopsimError(f"{path}, x_{split} is {x.dtype}; expected uint8 from 0 to 255.")
        parts.append(ArraySource(x, y, f"{path}, x_{split}"))
    if size is not None and size != (parts[0].shape[2], parts[0].shape[1]):
        raise KoopsimError(f"{path} holds arrays of {parts[0].shape[1:]} pixels; scale them before they are streamed.")
    return StreamedImages(str(path), parts[0], parts[1], tuple(str(value) for value in values))
