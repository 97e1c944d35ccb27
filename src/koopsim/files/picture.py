"""A picture from anyone: one of the formats that are meant, of a bounded size, and nothing that starts a program.

Pillow knows dozens of formats; PostScript among them runs Ghostscript. Only these are ever opened, whatever a file is
called, and none with more pixels than a large photograph has.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError
from koopsim.files.memory import require_memory
from koopsim.files.opened import MEBI, read_bytes

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
MOST_PIXELS = 100_000_000
MOST_BYTES = 1024 * MEBI
BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, AttributeError, ArithmeticError,
          MemoryError, struct.error, zlib.error)  # what Pillow's readers raise  # fmt: skip


@contextmanager
def opened_picture(path: Path | str) -> Iterator[Any]:
    """The picture in a file as a Pillow image whose header was read; pixels are decoded within the `with`.

    Whatever is wrong with it, now or while it is decoded there, is one line.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        data = read_bytes(path, MOST_BYTES, "picture")
    except OSError as error:
        raise KoopsimError(f"Cannot read the picture {path}: {error.strerror}.") from error
    if not data:
        raise KoopsimError(f"{path} is empty (zero bytes); give a picture such as a PNG or JPEG.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large pictures and odd metadata: what matters is raised below
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                pixels = image.width * image.height
                if pixels > MOST_PIXELS:
                    raise Image.DecompressionBombError
                require_memory(16 * pixels, f"{path} asks for")
                yield image
    except UnidentifiedImageError:
        raise KoopsimError(f"{path} is not a picture; give a PNG, JPEG, WebP, TIFF, BMP, GIF or PPM.") from None
    except Image.DecompressionBombError:
        raise KoopsimError(f"{path} unpacks to more than {MOST_PIXELS:,} pixels; scale it down first.") from None
    except BROKEN as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise KoopsimError(f"{path} is broken or cut short ({first}); it cannot be used.") from error
