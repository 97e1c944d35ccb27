"""Sets of square RGB pictures: two photographs of scikit-learn's, text made here, Kodak's, any folder, or an .npz.

    name, folder or .npz -> (P, size, size, 3) in [0, 1]

"photographs" and "text" are always there; "kodak", "kodak16" and "kodak8" are once fetched (datasets/kodak.py).

An .npz is laid out as the paper's own sets are: an array test_data, (P, height, width, 3) of bytes.

A picture of another size or shape gives its centre square, scaled; one that is `size` x `size` is taken as it is.
"""

import string
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from koopsim.datasets.kodak import KODAK_SETS, kodak_files
from koopsim.datasets.packaged import packaged
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.files.arrays import read_npz
from koopsim.files.memory import require_memory
from koopsim.pictures.read import as_image, read_picture

PHOTOGRAPHS = ("china", "flower")
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".ppm"}
TEXTS = 16
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono")


@dataclass(frozen=True)
class PictureSet:
    """Names and their pixels, (P, size, size, 3) of float32 in [0, 1]."""

    names: tuple[str, ...]
    values: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.names)


def picture_set(name: str, size: int, count: int | None = None, seed: int = 0, only: str | None = None) -> PictureSet:
    """The set called "photographs", "text" or "kodak", the pictures of the folder `name`, or those of an .npz."""
    makers: dict[str, Callable[[], Image.Image]]
    if name == "photographs":
        makers = {n: partial(_photograph, n) for n in PHOTOGRAPHS}
    elif name == "text":
        makers = {f"text{i:02d}": partial(text_picture, size, seed * TEXTS + i) for i in range(TEXTS)}
    elif name in KODAK_SETS and not Path(name).is_dir():
        makers = {n: partial(_from_file, file) for n, file in kodak_files(name).items()}
    elif Path(name).suffix.lower() == ".npz" and Path(name).is_file():
        makers = {f"{i:02d}": partial(rgb, pixels) for i, pixels in enumerate(_of_npz(Path(name)))}
    else:
        files = _files(Path(name))
        stems = Counter(f.stem for f in files)
        makers = {f.stem if stems[f.stem] == 1 else f.name: partial(_from_file, f) for f in files}
    names = list(makers)[:count]
    if only is not None:
        if only not in names:
            raise KoopsimError(f"There is no picture {only!r} in {name!r}." + did_you_mean(only, names))
        names = [only]
    require_memory(48 * len(names) * size * size, f"{len(names)} pictures of {size} x {size} ask for")
    values = np.stack([np.asarray(square(makers[n](), size), dtype=np.float32) for n in names])
    return PictureSet(tuple(names), values / np.float32(255))


def _of_npz(path: Path) -> NDArray[np.uint8]:
    """The pictures of the paper's layout, as they are."""
    values = read_npz(path).get("test_data")
    if values is None or values.ndim != 4 or values.shape[3] != 3 or not values.size or values.dtype != np.uint8:
        found = "no array test_data" if values is None else f"test_data of {values.dtype} and shape {values.shape}"
        raise KoopsimError(f"{path} has {found}; expected bytes (uint8) of shape (pictures, height, width, 3).")
    return values


def _from_file(file: Path) -> Image.Image:
    return rgb(read_picture(file).pixels)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise KoopsimError(
            f"There is no folder of pictures {str(folder)!r}; give one, an .npz, photographs, text or kodak."
        )
    files = sorted(f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES)
    if not files:
        raise KoopsimError(f"The folder {folder} holds no pictures ({', '.join(sorted(SUFFIXES))}).")
    return files


def _photograph(name: str) -> Image.Image:
    return Image.open(packaged(f"datasets/images/{name}.jpg")).convert("RGB")


def rgb(pixels: NDArray) -> Image.Image:
    """Any picture as 8-bit RGB; what is transparent shows white."""
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    image = as_image(pixels)
    if pixels.shape[2] in (2, 4):
        ground = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(ground, image.convert("RGBA"))
    return image.convert("RGB")


def square(image: Image.Image, size: int) -> Image.Image:
    """The centre square, `size` pixels wide."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    cut = image.crop((left, top, left + side, top + side))
    return cut if side == size else cut.resize((size, size), Image.Resampling.LANCZOS)


def text_picture(size: int, seed: int) -> Image.Image:
    """Random words in random fonts, sizes, colours and places on a plain ground.

    Laid out by Pillow's basic engine: the other one, Raqm, is there or not by what a system has installed, and spaces
    letters differently, so that one seed would give two pictures.
    """
    from matplotlib import get_data_path

    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (size, size), tuple(int(c) for c in rng.integers(0, 256, 3)))
    draw = ImageDraw.Draw(image)
    letters = np.array(list(string.ascii_letters + string.digits))
    for _ in range(20):
        font = Path(get_data_path()) / "fonts" / "ttf" / f"{rng.choice(FONTS)}.ttf"
        height = int(size * rng.uniform(0.03, 0.14)) + 4
        word = "".join(rng.choice(letters, rng.integers(3, 11)))
        left, top = (rng.uniform(-0.1, 0.9, 2) * size).tolist()
        colour = tuple(int(c) for c in rng.integers(0, 256, 3))
        drawn = ImageFont.truetype(font, height, layout_engine=ImageFont.Layout.BASIC)
        draw.text((left, top), word, fill=colour, font=drawn)
    return image
