"""Scikit-learn's handwritten digits, 8 x 8: real pictures that need no download.

pixel = round(ink * 255 / 16), ink in 0..16        1437 for training, 360 for testing, stratified
"""

from pathlib import Path

import numpy as np

from koopsim.datasets.images import Images, stratified_split
from koopsim.datasets.packaged import packaged
from koopsim.kinds import DatasetKind, register

COUNTS = {"train": 1437, "test": 360}


def digits() -> Images:
    """All 1797 digits, always split the same way."""
    rows = np.loadtxt(packaged("datasets/data/digits.csv.gz"), delimiter=",", dtype=np.int64)
    ink, y = rows[:, :-1], rows[:, -1].copy()
    x = np.rint(ink * (255 / 16)).astype(np.uint8).reshape(len(ink), 1, 8, 8)
    train, test = stratified_split(y, COUNTS["test"], seed=0)
    return Images("digits", (x[train], y[train]), (x[test], y[test]), tuple("0123456789"))


@register
class Digits(DatasetKind):
    name, title, label = "digits", "scikit-learn's digits, built in", "digits"
    shape, counts, order = (1, 8, 8), COUNTS, 4

    def load(self, root: Path | None = None) -> Images:
        return digits()
