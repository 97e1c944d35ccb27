"""A set of labelled pictures in memory, the same whatever file it came from.

x  uint8  (n, channels, height, width)        y  int64  (n,), an index into `classes`
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from PIL import Image, ImageOps

from koopsim.errors import KoopsimError

Labelled = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Images:
    """Training and test pictures with their labels; checked when made, so never half-usable."""

    name: str
    train: Labelled
    test: Labelled
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise KoopsimError(f"{self.name} has {len(self.classes)} class; telling pictures apart needs at least two.")
        for part, (x, y) in (("train", self.train), ("test", self.test)):
            if x.dtype != np.uint8 or x.ndim != 4 or y.dtype != np.int64 or y.shape != (len(x),):
                raise KoopsimError(
                    f"{self.name}, {part}: images are {x.dtype} {x.shape} and labels {y.dtype} {y.shape}; "
                    "expected uint8 (n, channels, height, width) and int64 (n,)."
                )
            if len(x) == 0:
                raise KoopsimError(f"{self.name} has no {part} images; it needs at least one.")
            if y.min() < 0 or y.max() >= len(self.classes):
                wrong = y[(y < 0) | (y >= len(self.classes))][0]
                raise KoopsimError(
                    f"{self.name}, {part}: there is a label {wrong}; labels go from 0 to {len(self.classes) - 1}."
                )
        if self.train[0].shape[1:] != self.test[0].shape[1:]:
            raise KoopsimError(
                f"{self.name}: training images are {self.train[0].shape[1:]} but test images {self.test[0].shape[1:]}; "
                "both must have the same channels, height and width."
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of every picture."""
        _, channels, height, width = self.train[0].shape
        return channels, height, width

    def resized(self, size: tuple[int, int] | None) -> Images:
        """The same at another (width, height): scaled to cover it, cropped around the centre."""
        if size is None or size == (self.shape[2], self.shape[1]):
            return self
        train, test = ((_resized(x, size), y) for x, y in (self.train, self.test))
        return replace(self, train=train, test=test)

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Counting the 256 values is exact and needs no float copy of the pictures."""
        x, value = self.train[0], np.arange(256) / 255
        share = np.stack([np.bincount(x[:, c].ravel(), minlength=256) for c in range(x.shape[1])]) / x[:, 0].size
        mean = share @ value
        return mean, np.sqrt(share @ value**2 - mean**2)

    @property
    def mean(self) -> np.ndarray:
        """(channels,) mean of the training pixels, on the scale where 255 is 1."""
        return self._moments[0]

    @property
    def std(self) -> np.ndarray:
        """(channels,) standard deviation of the training pixels, on the scale where 255 is 1."""
        return self._moments[1]


def _resized(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    found = np.empty((*x.shape[:2], size[1], size[0]), np.uint8)
    for own, image in zip(found, x, strict=True):
        for channel, plane in zip(own, image, strict=True):
            channel[:] = np.asarray(ImageOps.fit(Image.fromarray(plane), size, Image.Resampling.LANCZOS))
    return found


def stratified_split(y: np.ndarray, test: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of (train, test): `test` of them, each class in its share, the same on every machine.

    Shares are rounded by largest remainder; every class keeps at least one picture on either side.
    """
    classes, counts = np.unique(y, return_counts=True)
    share = counts * (test / len(y))
    quota = np.floor(share).astype(int)
    quota[np.argsort(quota - share, kind="stable")[: test - quota.sum()]] += 1
    quota = np.clip(quota, 1, counts - 1)
    random = np.random.RandomState(seed)  # the one generator whose numbers NumPy promises never to change
    chosen = [random.permutation(np.flatnonzero(y == c))[:n] for c, n in zip(classes, quota, strict=True)]
    picked = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(len(y)), picked), picked
