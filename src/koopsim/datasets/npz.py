"""Your own arrays in an .npz: x_train, y_train, x_test, y_test, or x and y to be split 80/20.

x  (n, h, w), (n, h, w, c) or (n, c, h, w) with c = 1 or 3; uint8, or float in [0, 1]
y  (n,) integers or strings; every value that occurs in training is a class, in sorted order
"""

from pathlib import Path

import numpy as np

from koopsim.datasets.images import Images, Labelled, stratified_split
from koopsim.errors import KoopsimError
from koopsim.files.arrays import read_npz

ELSE = "Of sequences say --goal classify, tag or forecast; of a table --target COLUMN."  # of what are no pictures
SHARE = 0.2  # of the pictures go to the test set where the user made none


def read_images(path: Path) -> Images:
    """The images in an .npz file."""
    arrays = read_npz(path)
    four, two = ("x_train", "y_train", "x_test", "y_test"), ("x", "y")
    names = next((names for names in (four, two) if set(names) <= arrays.keys()), None)
    if names is None:
        raise KoopsimError(
            f"{path} holds {', '.join(arrays) or 'nothing'}; expected x_train, y_train, x_test, y_test, or x and y. "
            + ELSE
        )
    splits = [(names[i], names[i + 1]) for i in range(0, len(names), 2)]
    xs = [_images(arrays[x], f"{path}, {x}") for x, _ in splits]
    ys = [_labels(arrays[y], len(pictures), f"{path}, {y}") for (_, y), pictures in zip(splits, xs, strict=True)]
    values, *codes = numbered(path, *ys)
    classes = tuple(str(value) for value in values)
    if len(xs) == 1:
        return split_in_two(str(path), xs[0], codes[0], classes)
    train, test = zip(xs, codes, strict=True)
    return Images(str(path), train, test, classes)


def numbered(path: Path, train: np.ndarray, *test: np.ndarray) -> tuple[np.ndarray, ...]:
    """(the different labels of the training part, each part as their numbers); a label for testing alone is refused."""
    values = np.unique(train)
    if unknown := sorted({label for y in test for label in np.unique(y).tolist()} - set(values.tolist())):
        raise KoopsimError(f"{path}: the label {unknown[0]!r} is in y_test but not in y_train; training needs it too.")
    return values, *(np.searchsorted(values, y).astype(np.int64) for y in (train, *test))


def split_in_two(name: str, x: np.ndarray, y: np.ndarray, classes: tuple[str, ...]) -> Images:
    """Images with a fifth of each class, always the same, set aside for testing."""
    require_two(name, y, classes)
    train, test = stratified_split(y, round(SHARE * len(y)), seed=0)
    parts: list[Labelled] = [(x[index], y[index]) for index in (train, test)]
    return Images(name, parts[0], parts[1], classes)


def require_two(name: str, y: np.ndarray, classes: tuple[str, ...]) -> None:
    """Refuse a class that cannot be in two parts."""
    rare = np.flatnonzero(np.bincount(y, minlength=len(classes)) < 2)
    if len(rare):
        raise KoopsimError(
            f"{name}: the class {classes[rare[0]]!r} has fewer than two pictures; "
            "a training and a test set need one each."
        )


def oriented(shape: tuple[int, ...], where: str) -> bool:
    """Whether the colour of pictures of this shape is the last axis; what it is not clear of is refused."""
    if len(shape) == 3:
        return False
    if len(shape) != 4:
        raise KoopsimError(f"{where} has shape {shape}; expected (n, h, w), (n, h, w, c) or (n, c, h, w). {ELSE}")
    first, last = shape[1] in (1, 3), shape[3] in (1, 3)
    if first == last:
        raise KoopsimError(
            f"{where} has shape {shape}: which axis is the colour? Expected (n, h, w, c) or (n, c, h, w) "
            "with c = 1 or 3, and neither height nor width of that size."
        )
    return last


def _images(x: np.ndarray, where: str) -> np.ndarray:
    """Any accepted array of pictures as uint8 (n, channels, height, width)."""
    last = oriented(x.shape, where)
    x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2) if last else x
    if x.size == 0:
        raise KoopsimError(f"{where} has shape {x.shape}: it is empty.")
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    if x.dtype.kind != "f":
        raise KoopsimError(f"{where} is {x.dtype}; expected uint8 from 0 to 255, or float from 0 to 1.")
    if not (np.isfinite(x).all() and x.min() >= 0 and x.max() <= 1):
        raise KoopsimError(
            f"{where} goes from {x.min():g} to {x.max():g}; floats must lie in [0, 1]. Save uint8 else. " + ELSE
        )
    return np.ascontiguousarray(np.rint(x * 255).astype(np.uint8))


def _labels(y: np.ndarray, count: int, where: str) -> np.ndarray:
    if y.shape == (count, 1):
        y = y[:, 0]
    if y.shape != (count,) or y.dtype.kind not in "iuU":
        raise KoopsimError(
            f"{where} is {y.dtype} {y.shape}; expected ({count},) integers or strings, one for each picture "
            "(of one-hot rows take argmax(1))."
        )
    return y
