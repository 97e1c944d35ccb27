"""A picture from a file: any size, grey or colour, with or without alpha, 8 or 16 bits, turned upright.

    file -> (height, width, channels) of uint8 or uint16,     channels 1 grey, 2 grey+alpha, 3 RGB, 4 RGBA

Pillow reads 16-bit grey in full and 16-bit colour at 8 bits a channel. Whatever cannot be read is one line.
"""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from koopsim.errors import KoopsimError
from koopsim.files.picture import opened_picture
from koopsim.runs import write_atomically

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class Picture:
    """A name and its pixels, (height, width, channels) of uint8 or uint16."""

    name: str
    pixels: NDArray

    def __post_init__(self) -> None:
        if self.pixels.ndim != 3 or self.pixels.shape[2] not in MODES or self.pixels.dtype not in (np.uint8, np.uint16):
            shape = " x ".join(map(str, self.pixels.shape))
            raise KoopsimError(
                f"A picture is height x width x 1..4 of uint8 or uint16; got {shape} of {self.pixels.dtype}."
            )

    @property
    def height(self) -> int:
        return self.pixels.shape[0]

    @property
    def width(self) -> int:
        return self.pixels.shape[1]

    @property
    def channels(self) -> int:
        return self.pixels.shape[2]

    @property
    def white(self) -> int:
        """The value that stands for 1.0."""
        return int(np.iinfo(self.pixels.dtype).max)


def read_picture(path: Path | str) -> Picture:
    """The picture in a file, turned as its EXIF says; of an animation the first frame."""
    path = Path(path)
    with opened_picture(path) as image:
        image.load()
        pixels = _pixels(ImageOps.exif_transpose(image))
    return Picture(path.stem, pixels)


def _pixels(image: Image.Image) -> NDArray:
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; save it as PNG")
    if image.mode.startswith("I"):  # "I;16", "I;16B", and "I", which is 32 bits wide but holds 16
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels have more than 16 bits")
        return values.astype(np.uint16)[:, :, None]
    grey = image.mode in ("1", "L", "LA", "La")
    alpha = image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info
    if alpha and grey and image.mode != "LA":
        pixels = np.asarray(image.convert("RGBA"))[:, :, [0, 3]]
    else:
        pixels = np.array(image.convert("LA" if alpha and grey else "RGBA" if alpha else "L" if grey else "RGB"))
    return np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], -1))


def as_image(pixels: NDArray) -> Image.Image:
    """Pixels as a Pillow image: 16 bits only for plain grey, the one such form Pillow can write."""
    if pixels.dtype == np.uint16:
        if pixels.shape[2] == 1:
            return Image.fromarray(pixels[:, :, 0])
        pixels = (pixels >> 8).astype(np.uint8)
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels, MODES[pixels.shape[2]])


def png_bytes(pixels: NDArray) -> bytes:
    """Pixels as a PNG file."""
    file = io.BytesIO()
    as_image(pixels).save(file, "PNG")
    return file.getvalue()


def save_png(path: Path, pixels: NDArray) -> None:
    """Write pixels as PNG, whole or not at all."""
    write_atomically(path, png_bytes(pixels))


def to_pixels(values: NDArray, white: int = 255) -> NDArray:
    """Numbers in [0, 1] (clipped) -> uint8 or uint16."""
    kind = np.uint8 if white == 255 else np.uint16
    return np.rint(np.clip(values, 0, 1) * white).astype(kind)
