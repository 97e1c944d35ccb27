"""The official file formats: bytes to arrays, with every length and label checked.

    idx             magic 0 0 8 d, then d sizes of 4 bytes, big end first, then the bytes      MNIST
    CIFAR binary    records of 1 + 3072 bytes: a label, then the red, green, blue planes       CIFAR-10
    .mat            X (32, 32, 3, n) and y (n, 1), digit 0 written as label 10                 SVHN

How many records a file should have is not decided here. `where` is the name an error speaks of.
"""

import gzip
import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np

from koopsim.errors import KoopsimError

Decoded = tuple[np.ndarray | None, np.ndarray | None]  # images (n, C, H, W) uint8, labels (n,) int64

_PIXELS = 3 * 32 * 32
MOST_BYTES = 2**29  # of any official file when it is unpacked; the largest has 183 MB


def broken(where: object, why: str) -> KoopsimError:
    """The refusal of a file, by its name."""
    return KoopsimError(f"{where} {why}. Delete it and run 'koopsim data get' again.")


def read_idx(raw: bytes, where: object) -> Decoded:
    """An idx file of bytes: (n, height, width) pictures or (n,) digits."""
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or raw[3] not in (1, 3):
        raise broken(where, "is not an idx file of bytes: its first four bytes should be 0 0 8 1 or 0 0 8 3")
    dimensions = raw[3]
    start = 4 + 4 * dimensions
    if len(raw) < start:
        raise broken(where, "is truncated: it ends inside its header")
    sizes = struct.unpack(f">{dimensions}I", raw[4:start])
    expected = start + int(np.prod(sizes, dtype=object))  # object: a corrupt header must not overflow
    if len(raw) != expected:
        what = "truncated" if len(raw) < expected else "too long"
        raise broken(where, f"is {what}: {len(raw)} bytes where its header promises {expected}")
    values = np.frombuffer(raw, np.uint8, offset=start).reshape(sizes)
    if dimensions == 3:
        return values[:, None].copy(), None
    check_labels(values, 0, 9, where)
    return None, values.astype(np.int64)


def read_cifar(raw: bytes, where: object) -> Decoded:
    """CIFAR-10 binary records: a label and a picture each."""
    if len(raw) == 0 or len(raw) % (1 + _PIXELS):
        raise broken(where, f"is truncated or not CIFAR-10 binary: {len(raw)} bytes are no whole number of records")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, 1 + _PIXELS)
    check_labels(rows[:, 0], 0, 9, where)
    return rows[:, 1:].reshape(len(rows), 3, 32, 32).copy(), rows[:, 0].astype(np.int64)


def write_cifar(x: np.ndarray, y: np.ndarray) -> bytes:
    """The inverse of `read_cifar`."""
    return np.concatenate([y.astype(np.uint8)[:, None], x.reshape(len(x), _PIXELS)], axis=1).tobytes()


def read_svhn(raw: bytes, where: object) -> Decoded:
    """SVHN's cropped digits; label 10 becomes digit 0."""
    from scipy.io import loadmat

    try:
        content = loadmat(io.BytesIO(raw), variable_names=("X", "y"))
    except MemoryError:
        raise
    except Exception as error:  # a damaged .mat breaks SciPy's reader in any of a dozen ways
        raise broken(where, f"cannot be read as a MATLAB file ({error or type(error).__name__})") from error
    if not {"X", "y"} <= content.keys():
        raise broken(where, "is truncated or not SVHN's: it should hold the arrays X and y")
    x, y = np.asarray(content["X"]), np.asarray(content["y"]).ravel()
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or y.shape != x.shape[3:]:
        raise broken(where, f"holds X {x.dtype} {x.shape} and {y.size} labels, not uint8 (32, 32, 3, n) and n labels")
    check_labels(y, 1, 10, where)
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y.astype(np.int64) % 10


def check_labels(y: np.ndarray, low: int, high: int, where: object) -> None:
    """Refuse labels outside low..high."""
    if y.size and not (low <= y.min() and y.max() <= high):
        wrong = y[(y < low) | (y > high)][0]
        raise broken(where, f"is corrupt: it has a label {wrong}, and labels go from {low} to {high}")


def gunzip(path: Path) -> bytes:
    """The content of a .gz file, whose own checksum is the first to notice damage."""
    try:
        with gzip.open(path) as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise broken(path, f"unpacks to more than {MOST_BYTES:,} bytes, which no official file does")
        return data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise broken(path, f"is truncated or corrupt ({error})") from error


def read_archive(path: Path, wanted: frozenset[str]) -> dict[str, bytes]:
    """The `wanted` files of a .tar.gz, by their last name; nothing is written to disk."""
    found = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = Path(member.name).name
                if name in wanted and member.isfile():
                    if member.size > MOST_BYTES:
                        raise broken(path, f"holds {member.size:,} bytes as {name}, more than any official file does")
                    file = archive.extractfile(member)
                    assert file is not None  # it is a plain file
                    found[name] = file.read()
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise broken(path, f"is truncated or corrupt ({error})") from error
    if missing := sorted(wanted - found.keys()):
        raise broken(path, f"holds no {', '.join(missing)}")
    return found
