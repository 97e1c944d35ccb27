"""What a picture weighs: as PNG, and as a JPEG that is as good as the network, or as small.

PSNR = -10 log10( mean (a - b)^2 ),   values in [0, 1]
as good    the smallest JPEG whose PSNR is at least the network's
as small   the best PSNR of a JPEG of at most so many bytes, of the picture as it is or of a smaller one scaled up again

Colour at every pixel (4:4:4) and at every second one each way (4:2:0), qualities up to 100: whichever is better.
"""

import io
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from koopsim.pictures.read import as_image, png_bytes

SCALES = (1, 2, 4)  # a small JPEG is better of a smaller picture
CHROMA = ("4:4:4", "4:2:0")
QUALITIES = 1, 100
LONGEST = 65_500  # pixels a side, that libjpeg takes
BAND = 512  # rows at a time, so that a 40-megapixel picture is not copied in float64


def psnr(a: NDArray, b: NDArray) -> float:
    """In decibels, of two pictures of the same shape and white; infinite where they are equal."""
    white = np.iinfo(a.dtype).max if np.issubdtype(a.dtype, np.integer) else 1.0
    total = 0.0
    for top in range(0, a.shape[0], BAND):
        difference = a[top : top + BAND].astype(np.float64) - b[top : top + BAND].astype(np.float64)
        total += float(np.square(difference).sum())
    error = total / a.size / white**2
    return math.inf if error == 0 else -10 * math.log10(error)


@dataclass(frozen=True)
class CodecSizes:
    """Bytes of a picture in other forms; JPEG is None where it cannot hold the picture or cannot be as good."""

    png_bytes: int
    jpeg_bytes: int | None
    jpeg_quality: int | None
    jpeg_psnr: float | None


def codec_sizes(pixels: NDArray, wanted: float) -> CodecSizes:
    """The picture as PNG, and as the smallest JPEG of at least `wanted` dB (8 bits, no alpha)."""
    png, found = len(png_bytes(pixels)), None
    if not _held_by_jpeg(pixels):
        return CodecSizes(png, None, None, None)
    image = as_image(pixels)
    for chroma in _chroma(image):
        low, high = QUALITIES
        while low <= high:  # PSNR grows with quality
            quality = (low + high) // 2
            file = _jpeg(image, quality, chroma)
            reached = psnr(pixels, _seen(file, image))
            if reached >= wanted:
                high = quality - 1
                if found is None or len(file) < found[0]:
                    found = len(file), quality, reached
            else:
                low = quality + 1
    return CodecSizes(png, *(found or (None, None, None)))


def _held_by_jpeg(pixels: NDArray) -> bool:
    return pixels.shape[2] in (1, 3) and pixels.dtype == np.uint8 and max(pixels.shape) <= LONGEST


def _chroma(image: Image.Image) -> tuple[str, ...]:
    """What is tried; a grey picture has no colour to leave out."""
    return CHROMA if image.mode == "RGB" else CHROMA[:1]


def _jpeg(image: Image.Image, quality: int, chroma: str) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, optimize=True, subsampling=chroma)
    return file.getvalue()


def _seen(file: bytes, image: Image.Image) -> NDArray:
    """The pixels of a JPEG, at the size of `image`."""
    with Image.open(io.BytesIO(file)) as again:
        whole = again if again.size == image.size else again.resize(image.size, Image.Resampling.LANCZOS)
        return np.asarray(whole).reshape(image.height, image.width, -1)


@dataclass(frozen=True)
class EqualBytes:
    """The best that JPEG does within a number of bytes; `scale` 2: of the picture at half its size."""

    psnr: float
    bytes: int
    quality: int
    scale: int


def jpeg_within(pixels: NDArray, budget: int) -> EqualBytes | None:
    """None where JPEG cannot hold such a picture, or not in so few bytes."""
    if not _held_by_jpeg(pixels):
        return None
    image, best = as_image(pixels), None
    for scale in SCALES:
        size = max(1, image.width // scale), max(1, image.height // scale)
        small = image if scale == 1 else image.resize(size, Image.Resampling.LANCZOS)
        for chroma in _chroma(image):
            found, (low, high) = None, QUALITIES
            while low <= high:  # bytes grow with quality
                quality = (low + high) // 2
                file = _jpeg(small, quality, chroma)
                if len(file) <= budget:
                    found, low = (quality, file), quality + 1
                else:
                    high = quality - 1
            if found is None:
                continue
            reached = psnr(pixels, _seen(found[1], image))
            if best is None or reached > best.psnr:
                best = EqualBytes(reached, len(found[1]), found[0], scale)
    return best
