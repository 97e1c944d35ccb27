"""Pictures in Parquet, Arrow or Feather files, a row group or record batch at a time (pyarrow, extra `data`).

    image: bytes of a PNG, JPEG, ..., or a struct that has them under "bytes"     label: a whole number

as Hugging Face's datasets are published; the names of classes are in their schema. Files whose name has "test" in it
are for testing, all others for training; where there are none, every fifth row group or batch is.
"""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from koopsim.datasets.blocks import Rows, Shape, Source, StreamedImages
from koopsim.datasets.folder import decoded
from koopsim.errors import KoopsimError
from koopsim.files.json import parse_json

IMAGES, LABELS = ("image", "img", "picture", "pixels"), ("label", "labels", "fine_label", "class", "target", "y")
OPEN = 64  # files that a process keeps open
KEPT = 24  # row groups that a process keeps, as they are in the file: those of a shuffling buffer
T = TypeVar("T")
TEST_SHARE = 5  # where no file is for testing, every so-many-th group is


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file, or a record batch of an Arrow file."""

    path: Path
    number: int
    rows: int


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise KoopsimError("Parquet and Arrow files need pyarrow: pip install 'koopsim[data]'.") from None
    return pyarrow


@functools.lru_cache(maxsize=OPEN)
def _reader(path: Path) -> Any:
    pyarrow = _arrow()
    try:
        if path.suffix.lower() == ".parquet":
            return pyarrow.parquet.ParquetFile(path)
        return pyarrow.ipc.open_file(str(path))
    except (OSError, pyarrow.ArrowException) as error:
        raise KoopsimError(f"{path} cannot be read: {str(error).splitlines()[0]}.") from error


@functools.lru_cache(maxsize=KEPT)
def _column(group: RowGroup, name: str) -> Any:
    """One column of a group, as Arrow has it."""
    pyarrow, reader = _arrow(), _reader(group.path)
    try:
        if group.path.suffix.lower() == ".parquet":
            return reader.read_row_group(group.number, columns=[name]).column(name).combine_chunks()
        return reader.get_batch(group.number).column(name)
    except (OSError, KeyError, pyarrow.ArrowException) as error:  # KeyError: another file has that column
        raise KoopsimError(f"{group.path}, row group {group.number}: {str(error).splitlines()[0]}.") from error


def _groups(path: Path) -> list[RowGroup]:
    reader = _reader(path)
    if path.suffix.lower() == ".parquet":
        counts = [reader.metadata.row_group(i).num_rows for i in range(reader.metadata.num_row_groups)]
    else:
        counts = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
    return [RowGroup(path, i, count) for i, count in enumerate(counts) if count]


class ArrowSource(Source):
    """The rows of some groups, one group after the other."""

    def __init__(self, groups: list[RowGroup], columns: tuple[str, str], shape: Shape, classes: list[Any]):
        self.groups, self.column, self.shape = groups, columns[0], shape
        self.broken: dict[int, KoopsimError] = {}  # groups of which nothing can be read, so that it is tried once
        self.starts = np.cumsum([0, *(group.rows for group in groups)])
        raw = np.concatenate([np.asarray(_column(g, columns[1]).to_numpy(zero_copy_only=False)) for g in groups])
        known = {value: i for i, value in enumerate(classes)}
        strange = next((value for value in np.unique(raw).tolist() if value not in known), None)
        if strange is not None:
            raise KoopsimError(f"{groups[0].path}: the label {strange!r} is not one of the training files'.")
        self.labels = np.array([known[value] for value in raw.tolist()], np.int64)

    def read(self, rows: Rows) -> NDArray[np.uint8]:
        channels, height, width = self.shape
        x = np.empty((len(rows), *self.shape), np.uint8)
        places = np.searchsorted(self.starts, rows, side="right") - 1
        for own, row, place in zip(x, rows, places, strict=True):
            group = self.groups[int(place)]
            inside = int(row - self.starts[place])
            values = self._values(int(place))
            try:
                with Image.open(io.BytesIO(_bytes(values[inside]))) as picture:
                    own[:] = decoded(picture, channels, (width, height))
            except (OSError, ValueError, TypeError) as error:
                raise KoopsimError(
                    f"{group.path}, row {inside} of row group {group.number}: its picture cannot be read ({error})."
                ) from error
        return x

    def _values(self, place: int) -> Any:
        if place in self.broken:
            raise self.broken[place]
        try:
            return _column(self.groups[place], self.column)
        except KoopsimError as error:
            self.broken[place] = error
            raise

    def identity(self) -> str:
        told = "\0".join(f"{g.path.name} {g.path.stat().st_size} {g.number} {g.rows}" for g in self.groups)
        return f"{self.shape} {hashlib.sha256(told.encode()).hexdigest()}"


def _bytes(value: Any) -> bytes:
    plain = value.as_py()
    found = plain.get("bytes") if isinstance(plain, dict) else plain
    if not isinstance(found, bytes):
        raise ValueError(f"it is a {type(found).__name__}, not the bytes of a picture")
    return found


def stream_arrow(path: Path, size: tuple[int, int] | None, skip: bool = False) -> StreamedImages:
    """The pictures of a file, or of all such files in a folder; `skip`: but for those that cannot be read."""
    endings = (".parquet", ".arrow", ".feather")
    files = sorted(f for f in path.rglob("*") if f.suffix.lower() in endings) if path.is_dir() else [path]
    lost: list[str] = []
    files = _good(files, _groups, lost, skip)
    if not files:
        raise KoopsimError(f"{path} has no file that can be read: {lost[0]}")
    schema = _reader(files[0]).schema_arrow if files[0].suffix.lower() == ".parquet" else _reader(files[0]).schema
    image, label = (_named(schema, names, path) for names in (IMAGES, LABELS))
    train, test = _shared_out(files, path)
    train, test = (_good(groups, lambda group: _column(group, label), lost, skip) for groups in (train, test))
    if not train or not test:
        raise KoopsimError(f"{path} has too little that can be read: {lost[0]}")
    values = sorted({v for g in train for v in np.unique(_column(g, label).to_numpy(zero_copy_only=False)).tolist()})
    try:
        with Image.open(io.BytesIO(_first_picture(train, image, skip))) as first:
            channels = 1 if first.mode in ("1", "L") else 3
            width, height = size or first.size
    except (OSError, ValueError) as error:
        raise KoopsimError(f"{path}: its first picture cannot be read ({error}).") from error
    parts = [ArrowSource(groups, (image, label), (channels, height, width), values) for groups in (train, test)]
    classes = _classes(schema, label, values)
    return StreamedImages(str(path), parts[0], parts[1], classes, loads=False, lost=tuple(lost))


def _first_picture(groups: list[RowGroup], image: str, skip: bool) -> bytes:
    """Of a group that can be read: all others are of its size."""
    for group in groups[:-1] if skip else ():
        try:
            data = _bytes(_column(group, image)[0])
            Image.open(io.BytesIO(data)).close()
            return data
        except (KoopsimError, OSError, ValueError):
            continue
    return _bytes(_column(groups[-1 if skip else 0], image)[0])


def _good(parts: list[T], read: Callable[[T], Any], lost: list[str], skip: bool) -> list[T]:
    """Those that can be read; why the others cannot goes into `lost`."""
    found = []
    for part in parts if skip else ():
        try:
            read(part)
            found.append(part)
        except KoopsimError as error:
            lost.append(str(error))
    return found if skip else parts


def _shared_out(files: list[Path], path: Path) -> tuple[list[RowGroup], list[RowGroup]]:
    """(groups for training, groups for testing)."""
    kept = [f for f in files if "test" in f.stem.lower()]
    train = [g for f in files if f not in kept for g in _groups(f)]
    test = [g for f in kept for g in _groups(f)]
    if not test:
        train, test = [g for i, g in enumerate(train) if (i + 1) % TEST_SHARE], train[TEST_SHARE - 1 :: TEST_SHARE]
    if not train or not test:
        raise KoopsimError(
            f"{path} has {len(train) + len(test)} row groups, too few to set some aside; name files for testing test*."
        )
    return train, test


def _named(schema: Any, names: tuple[str, ...], path: Path) -> str:
    found = next((name for name in names if name in schema.names), None)
    if found is None:
        raise KoopsimError(f"{path} has the columns {', '.join(schema.names)}; expected one of {', '.join(names)}.")
    return found


def _classes(schema: Any, label: str, values: list[Any]) -> tuple[str, ...]:
    """The names in Hugging Face's schema, where it has them; else the labels themselves."""
    told = (schema.metadata or {}).get(b"huggingface")
    try:
        names = parse_json(told, "its schema")["info"]["features"][label]["names"] if told else None
        return tuple(str(names[value]) for value in values) if isinstance(names, list) else tuple(map(str, values))
    except (KeyError, TypeError, IndexError, KoopsimError):
        return tuple(map(str, values))
