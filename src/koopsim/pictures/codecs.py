"""What a picture weighs: as PNG, and as a JPEG that is as good as the network, or as small.

PSNR = -10 log10( mean (a - b)^2 ),   values in [0, 1]
as good    the least JPEG quality whose PSNR is at least the network's
as small   the best PSNR of a JPEG of at most so many bytes, of the picture as it is or of a smaller one scaled up again
"""

import io
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from koopsim.pictures.read import as_image, png_bytes

SCALES = (1, 2, 4)  # a small JPEG is better of a smaller picture
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
    png = len(png_bytes(pixels))
    if pixels.shape[2] in (2, 4) or pixels.dtype != np.uint8:
        return CodecSizes(png, None, None, None)
    image, best, low, high = as_image(pixels), None, 1, 100
    while low <= high:  # PSNR grows with quality
        quality = (low + high) // 2
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        with Image.open(io.BytesIO(file.getvalue())) as again:
            reached = psnr(pixels, np.asarray(again).reshape(pixels.shape))
        if reached >= wanted:
            best, high = CodecSizes(png, len(file.getvalue()), quality, reached), quality - 1
        else:
            low = quality + 1
    return best or CodecSizes(png, None, None, None)


@dataclass(frozen=True)
class EqualBytes:
    """The best that JPEG does within a number of bytes; `scale` 2: of the picture at half its size."""

    psnr: float
    bytes: int
    quality: int
    scale: int


def jpeg_within(pixels: NDArray, budget: int) -> EqualBytes | None:
    """None where JPEG cannot hold such a picture, or not in so few bytes."""
    if pixels.shape[2] in (2, 4) or pixels.dtype != np.uint8:
        return None
    image, best = as_image(pixels), None
    for scale in SCALES:
        size = max(1, image.width // scale), max(1, image.height // scale)
        small = image if scale == 1 else image.resize(size, Image.Resampling.LANCZOS)
        found, low, high = None, 1, 95
        while low <= high:  # bytes grow with quality
            quality = (low + high) // 2
            file = io.BytesIO()
            small.save(file, "JPEG", quality=quality, optimize=True)
            if len(file.getvalue()) <= budget:
                found, low = (quality, file.getvalue()), quality + 1
            else:
                high = quality - 1
        if found is None:
            continue
        with Image.open(io.BytesIO(found[1])) as again:
            whole = again if scale == 1 else again.resize(image.size, Image.Resampling.LANCZOS)
            reached = psnr(pixels, np.asarray(whole).reshape(pixels.shape))
        if best is None or reached > best.psnr:
            best = EqualBytes(reached, len(found[1]), found[0], scale)
    return best
