"""A PNG written band by band: a picture of any size in bounded memory, 8 or 16 bits, 1 to 4 channels.

signature, IHDR, IDAT (rows, each less the one above it, deflated as they come), IEND
"""

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from koopsim.errors import KoopsimError
from koopsim.files.writing import whole_file

COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # channels -> grey, grey+alpha, RGB, RGBA
UP = 2  # the row filter: what is stored is the difference to the row above
LONGEST = 2**31 - 1


def write_png(path: Path, width: int, height: int, channels: int, bits: int, bands: Iterable[NDArray]) -> None:
    """Bands of (rows, width, channels), top to bottom, as a PNG file; whole or not at all."""
    if not (0 < width <= LONGEST and 0 < height <= LONGEST and channels in COLOUR_TYPES and bits in (8, 16)):
        raise KoopsimError(f"A PNG cannot be {width} x {height} with {channels} channels of {bits} bits.")
    with whole_file(path) as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        file.write(_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, COLOUR_TYPES[channels], 0, 0, 0)))
        deflate, above, rows = zlib.compressobj(6), np.zeros(width * channels * bits // 8, np.uint8), 0
        for band in bands:
            raw = np.ascontiguousarray(band.astype(">u2" if bits == 16 else np.uint8)).view(np.uint8)
            raw = raw.reshape(len(band), -1)
            filtered = np.empty((len(raw), raw.shape[1] + 1), np.uint8)
            filtered[:, 0] = UP
            filtered[:, 1:] = raw - np.concatenate([above[None], raw[:-1]])  # modulo 256, as PNG wants it
            above, rows = raw[-1], rows + len(raw)
            file.write(_chunk(b"IDAT", deflate.compress(filtered.tobytes())))
        if rows != height:
            raise KoopsimError(f"The PNG {path} was to have {height} rows and got {rows}.")
        file.write(_chunk(b"IDAT", deflate.flush()) + _chunk(b"IEND", b""))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
