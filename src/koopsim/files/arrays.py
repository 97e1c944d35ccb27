"""Arrays from anyone's .npy or .npz: what the header claims is compared with what is there before it is allocated.

.npy   magic, header (shape, kind), bytes: as many as shape and kind say
.npz   a zip of .npy, stored or deflated; nothing encrypted, nothing else, no objects (which would be code)
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from koopsim.errors import KoopsimError, first_line
from koopsim.files.memory import require_memory
from koopsim.files.opened import MEBI, read_bytes

MOST_BYTES = 16 * 1024 * MEBI
COPIES = 3  # of each array in an .npz that its user will need room for
KINDS = "biufcU"  # booleans, numbers, text; never objects
WHY = (OSError, ValueError, EOFError, KeyError, RuntimeError, NotImplementedError, OverflowError, SyntaxError,
       TypeError, MemoryError, RecursionError, zipfile.BadZipFile, zlib.error)  # what readers raise  # fmt: skip


def read_npy(path: Path) -> NDArray[Any]:
    """The array in a .npy file."""
    try:
        require_memory(2 * path.stat().st_size, f"{path} asks for")
        data = read_bytes(path, MOST_BYTES, ".npy")
        return _array(io.BytesIO(data), len(data), str(path))
    except WHY as error:
        raise KoopsimError(f"{path} is not a whole .npy file of numbers: {_first(error)}.") from error


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays in an .npz by name."""
    try:
        require_memory(path.stat().st_size, f"{path} asks for")
        data = io.BytesIO(read_bytes(path, MOST_BYTES, ".npz"))
        if not zipfile.is_zipfile(data):
            raise ValueError("it is no archive of arrays")
        with zipfile.ZipFile(data) as archive:
            members = archive.infolist()
            for member in members:
                _check_member(member)
            require_memory(COPIES * sum(m.file_size for m in members), f"{path} asks for")
            found = {}
            for member in members:
                name = member.filename.removesuffix(".npy")
                with archive.open(member) as file:
                    found[name] = _array(file, member.file_size, f"{path}, {name}")
            return found
    except WHY as error:
        raise KoopsimError(f"{path} cannot be read as an .npz of plain arrays: {_first(error)}.") from error


def _check_member(member: zipfile.ZipInfo) -> None:
    name = member.filename
    if not name.endswith(".npy"):
        raise ValueError(f"{name!r} in it is no array")
    if member.flag_bits & 1:
        raise ValueError(f"{name!r} in it is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name!r} in it is compressed in an unusual way; save it with numpy.savez")


def _array(file: IO[bytes], size: int, where: str) -> NDArray[Any]:
    """One array out of `size` bytes."""
    try:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"its format has version {version}, which is not known")
        shape, fortran, dtype = readers[version](file, max_header_size=10_000)
    except Exception as error:  # NumPy reads the header as Python text, and raises whatever that can
        raise ValueError(f"its header cannot be read ({_first(error)})") from error
    if dtype.kind not in KINDS or dtype.fields is not None:
        raise ValueError(f"{where} holds {dtype}; expected numbers or text, and never objects")
    if len(shape) > 32 or any(n < 0 for n in shape):
        raise ValueError(f"{where} claims the shape {shape}")
    count = math.prod(shape)
    needed = count * dtype.itemsize
    if needed > size:
        raise ValueError(f"{where} claims {count:,} entries and holds {size:,} bytes")
    require_memory(2 * needed, f"{where} asks for")
    data = file.read(needed)
    if len(data) != needed:
        raise ValueError(f"{where} ends before its {count:,} entries do")
    flat = np.frombuffer(data, dtype, count) if needed else np.empty(count, dtype)
    return flat.reshape(shape, order="F" if fortran else "C").copy()


def _first(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    return first_line(error)
