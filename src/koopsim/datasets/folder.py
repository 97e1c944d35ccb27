"""Your own pictures: DIR/class/name.png, or DIR/train/class/name.png and DIR/test/class/name.png.

Capitals do not matter, and a valid/ (val/, validation/) without a test/ is what is tested on. Without such a folder, a
fifth of each class is set aside for testing, always the same for the same files.
All grey: one channel; else three, transparency laid on white. Pictures of another size than the most common
one are scaled to cover it and cropped around the centre, and a warning says how many. So does one of a phone's .heic,
which are left out.
"""

import warnings
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from koopsim.datasets.images import Images
from koopsim.datasets.npz import split_in_two
from koopsim.datasets.row_splits import TEST, TRAIN, VALID
from koopsim.datasets.split_folders import folders_in, say_no_test, split_folders
from koopsim.errors import KoopsimError
from koopsim.files.picture import opened_picture

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
UNREAD = {".heic", ".heif", ".avif"}  # pictures, but Pillow alone does not read them
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
    lost: tuple[str, ...] = ()  # why some that cannot be read were left out, as was asked for


def read_folder(path: Path, size: tuple[int, int] | None = None) -> Images:
    """The pictures under `path`, at (width, height) `size` or the most common one."""
    found = listed_pictures(path, size)
    x, y = _decode_all(found, path), np.array(found.labels, np.int64)
    if found.cut is None:
        return split_in_two(str(path), x, y, found.classes)
    cut = found.cut
    return Images(str(path), (x[:cut], y[:cut]), (x[cut:], y[cut:]), found.classes)


def listed_pictures(path: Path, size: tuple[int, int] | None = None, skip: bool = False) -> PictureList:
    """What is under `path`, by names and headers alone; with `skip`, without those whose header is broken."""
    learnt, tested = _halves(path)
    train = _pictures(folders_in(learnt), learnt)
    test = _pictures(folders_in(tested), tested) if tested else {}
    classes = tuple(sorted(train))
    if strange := sorted(test.keys() - train.keys()):
        raise KoopsimError(f"{tested} has the class {strange[0]!r} but {learnt} has not; training needs it too.")
    looks, lost = _looks([file for split in (train, test) for own in split.values() for file in own], skip)
    learn, judge = (_labelled(split, classes, looks) for split in (train, test))
    gone = [name for label, name in enumerate(classes) if label not in {own for _, own in learn}]
    if gone or (test and not judge):
        raise KoopsimError(f"No picture of {learnt / gone[0] if gone else tested} can be read. The first: {lost[0]}")
    both = learn + judge
    shape = _form([looks[file] for file, _ in both], path, size)
    return PictureList(
        [file for file, _ in both], [own for _, own in both], classes, shape, len(learn) if test else None, lost
    )


def _labelled(
    split: dict[str, list[Path]], classes: tuple[str, ...], readable: Container[Path]
) -> list[tuple[Path, int]]:
    """(file, number of its class) of those that can be read, class by class."""
    return [(file, label) for label, name in enumerate(classes) for file in split.get(name, []) if file in readable]


def _halves(path: Path) -> tuple[Path, Path | None]:
    """(where classes to learn are, where those to test on are): `path` itself and none, where it does not say."""
    parts = split_folders(path)
    if not parts:
        return path, None
    if len(parts) == 3:
        raise KoopsimError(
            f"{path} has {parts[TRAIN].name}/ and {parts[TEST].name}/ but also {parts[VALID].name}/: move it away, or "
            "its classes into train/ (a validation set is split off train/ anyway)."
        )
    if VALID in parts:
        say_no_test(path, parts)
    return parts[TRAIN], parts.get(TEST, parts.get(VALID))


def _pictures(classes: dict[str, Path], path: Path) -> dict[str, list[Path]]:
    """The picture files of each class, in an order that does not depend on the file system."""
    if not classes:
        raise KoopsimError(f"{path} has no folders; expected one a class, each with its pictures: {path}/cat/1.png.")
    found, everything = {}, []
    for name, folder in classes.items():
        inside = [f for f in folder.rglob("*") if not f.name.startswith(".")]
        everything += inside
        files = (f for f in inside if f.suffix.lower() in ENDINGS)
        found[name] = sorted((f for f in files if f.is_file()), key=lambda f: f.relative_to(folder).as_posix())
        if not found[name]:
            say_unread(everything, path)
            raise KoopsimError(f"{folder} has no pictures; expected some of {', '.join(sorted(ENDINGS))}.")
    say_unread(everything, path)
    return found


def say_unread(files: Iterable[Path], path: Path) -> None:
    """Warn of pictures that are left out because nothing here reads them."""
    unread = [f for f in files if f.suffix.lower() in UNREAD]
    if unread:
        endings = ", ".join(sorted({f.suffix.lower() for f in unread}))
        warnings.warn(
            f"{path}: {len(unread)} pictures end in {endings}, which are not read, and are left out; convert them to "
            "JPEG.",
            stacklevel=3,
        )


def _form(
    looks: Sequence[tuple[str, tuple[int, int]]], path: Path, wanted: tuple[int, int] | None
) -> tuple[int, int, int]:
    """(channels, height, width): the size wanted, or the most common; the smallest of several as common."""
    channels = 1 if all(mode in _GREY for mode, _ in looks) else 3
    sizes = Counter(size for _, size in looks)
    size = wanted or min(sizes, key=lambda s: (-sizes[s], s[0] * s[1], s))
    if wanted is None and (others := len(looks) - sizes[size]) > 0:
        warnings.warn(
            f"{path}: {others} of {len(looks)} pictures are not {size[0]} x {size[1]} like the most; "
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
    return decode_files(found.files, found.shape)


def _look(file: Path) -> tuple[str, tuple[int, int]]:
    """Mode and upright (width, height), from the header alone."""
    with opened_picture(file) as picture:
        # of a PNG its own getexif() would decode every pixel to find what may stand behind them
        exif = Image.Image.getexif(picture)
        turned = exif.get(0x0112) in (5, 6, 7, 8)  # the EXIF orientations that lie on their side
        return picture.mode, (picture.height, picture.width) if turned else picture.size


def _looks(files: Sequence[Path], skip: bool) -> tuple[dict[Path, tuple[str, tuple[int, int]]], tuple[str, ...]]:
    """(mode and size of each, why others have none); without `skip` the first of these is an error."""
    found, lost = {}, []
    for file in files:
        try:
            found[file] = _look(file)
        except KoopsimError as error:
            if not skip:
                raise
            lost.append(str(error))
    return found, tuple(lost)


def decode_files(files: Sequence[Path], shape: tuple[int, int, int]) -> np.ndarray:
    """(n, channels, height, width) of the pictures in files, brought to the `shape` of one."""
    channels, height, width = shape
    x = np.empty((len(files), *shape), np.uint8)
    for row, file in zip(x, files, strict=True):
        row[:] = decode(file, channels, (width, height))
    return x


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
