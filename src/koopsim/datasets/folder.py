"""Your own pictures: DIR/class/name.png, or DIR/train/class/name.png and DIR/test/class/name.png.

Without train and test, a fifth of each class is set aside for testing, always the same for the same files.
All grey: one channel; else three, transparency laid on white. Pictures of another size than the most common
one are scaled to cover it and cropped around the centre, and a warning says how many.
"""

import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from koopsim.datasets.images import Images
from koopsim.datasets.npz import split_in_two
from koopsim.errors import KoopsimError
from koopsim.files.picture import opened_picture

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
_GREY = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L"}
_MOST = 2**33  # bytes of decoded pictures; more would fill a laptop's memory before the first step


@dataclass(frozen=True)
class PictureList:
    """The picture files of a folder, what each shows, and the form they are brought to."""

    files: list[Path]
    labels: list[int]
    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # channels, height, width
    cut: int | None  # so many are for training, the rest for testing; None: the folder does not say


def read_folder(path: Path, size: tuple[int, int] | None = None) -> Images:
    """The pictures under `path`, at (width, height) `size` or the most common one."""
    found = listed_pictures(path, size)
    x, y = _decode_all(found, path), np.array(found.labels, np.int64)
    if found.cut is None:
        return split_in_two(str(path), x, y, found.classes)
    cut = found.cut
    return Images(str(path), (x[:cut], y[:cut]), (x[cut:], y[cut:]), found.classes)


def listed_pictures(path: Path, size: tuple[int, int] | None = None) -> PictureList:
    """What is under `path`, by names and headers alone."""
    inside = _folders(path)
    if {"train", "test"} <= inside.keys():
        if others := sorted(inside.keys() - {"train", "test"}):
            raise KoopsimError(
                f"{path} has train/ and test/ but also {others[0]}/: move it away, or its classes into train/ "
                "(a validation set is split off train/ anyway)."
            )
        train, test = (_pictures(_folders(inside[split]), inside[split]) for split in ("train", "test"))
    else:
        train, test = _pictures(inside, path), {}
    classes = tuple(sorted(train))
    if strange := sorted(test.keys() - train.keys()):
        raise KoopsimError(f"{path}/test has the class {strange[0]!r} but {path}/train has not; training needs it too.")
    files = [file for split in (train, test) for name in classes for file in split.get(name, [])]
    labels = [classes.index(name) for split in (train, test) for name in classes for _ in split.get(name, [])]
    shape = _form(files, path, size)
    return PictureList(files, labels, classes, shape, sum(map(len, train.values())) if test else None)


def _folders(path: Path) -> dict[str, Path]:
    return {p.name: p for p in sorted(path.iterdir()) if p.is_dir() and not p.name.startswith((".", "__"))}


def _pictures(classes: dict[str, Path], path: Path) -> dict[str, list[Path]]:
    """The picture files of each class, in an order that does not depend on the file system."""
    if not classes:
        raise KoopsimError(f"{path} has no folders; expected one a class, each with its pictures: {path}/cat/1.png.")
    found = {}
    for name, folder in classes.items():
        files = (f for f in folder.rglob("*") if f.suffix.lower() in ENDINGS and not f.name.startswith("."))
        found[name] = sorted((f for f in files if f.is_file()), key=lambda f: f.relative_to(folder).as_posix())
        if not found[name]:
            raise KoopsimError(f"{folder} has no pictures; expected some of {', '.join(sorted(ENDINGS))}.")
    return found


def _form(files: list[Path], path: Path, wanted: tuple[int, int] | None) -> tuple[int, int, int]:
    """(channels, height, width): the size wanted, or the most common; the smallest of several as common."""
    looks = [_look(file) for file in files]
    channels = 1 if all(mode in _GREY for mode, _ in looks) else 3
    sizes = Counter(size for _, size in looks)
    size = wanted or min(sizes, key=lambda s: (-sizes[s], s[0] * s[1], s))
    if wanted is None and (others := len(files) - sizes[size]) > 0:
        warnings.warn(
            f"{path}: {others} of {len(files)} pictures are not {size[0]} x {size[1]} like the most; "
            "they are scaled to cover it and cropped around the centre.",
            stacklevel=2,
        )
    return channels, size[1], size[0]


def _decode_all(found: PictureList, path: Path) -> np.ndarray:
    """(n, channels, height, width), all of one size."""
    channels, height, width = found.shape
    needed = len(found.files) * channels * height * width
    if needed > _MOST:
        raise KoopsimError(
            f"{path}: {len(found.files):,} pictures of {width} x {height} need {needed / 2**30:.0f} GiB of memory; "
            "give a --size, a classifier here wants some 32 to 128 pixels a side, or --task.stream yes."
        )
    x = np.empty((len(found.files), *found.shape), np.uint8)
    for row, file in zip(x, found.files, strict=True):
        row[:] = decode(file, channels, (width, height))
    return x


def _look(file: Path) -> tuple[str, tuple[int, int]]:
    """Mode and upright (width, height), from the header alone."""
    with opened_picture(file) as picture:
        turned = picture.getexif().get(0x0112) in (5, 6, 7, 8)  # the EXIF orientations that lie on their side
        return picture.mode, (picture.height, picture.width) if turned else picture.size


def decode(file: Path, channels: int, size: tuple[int, int]) -> np.ndarray:
    """(channels, height, width) of the picture in a file; `size` is (width, height)."""
    with opened_picture(file) as opened:
        return decoded(opened, channels, size)


def decoded(opened: Image.Image, channels: int, size: tuple[int, int]) -> np.ndarray:
    """(channels, height, width) of one picture, upright, on white."""
    picture = ImageOps.exif_transpose(opened)
    if picture.mode.startswith("I"):  # 16 bits a pixel; Pillow's own conversion would clip, not scale
        values = np.asarray(picture)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its values do not fit in 16 bits")
        picture = Image.fromarray((values >> 8).astype(np.uint8))
    elif picture.mode == "F":
        raise ValueError("its pixels are floats")
    if "A" in picture.getbands() or "transparency" in picture.info:
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
    picture = picture.convert("L" if channels == 1 else "RGB")
    if picture.size != size:
        picture = ImageOps.fit(picture, size, Image.Resampling.LANCZOS)
    return np.asarray(picture).reshape(size[1], size[0], channels).transpose(2, 0, 1)
