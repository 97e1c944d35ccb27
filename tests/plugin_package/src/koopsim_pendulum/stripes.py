"""A data set: stripes across, down or aslant, 8 x 8, with noise."""

from pathlib import Path

import numpy as np

from koopsim.datasets import Images
from koopsim.kinds import DatasetKind, register

CLASSES = ("across", "down", "aslant")


def stripes(count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(count, 1, 8, 8) bytes and the class of each."""
    y = np.arange(count) % len(CLASSES)
    rows, columns = np.mgrid[:8, :8]
    waves = np.stack([rows, columns, rows + columns])[y] + random.uniform(0, 4, (count, 1, 1))
    x = 127.5 + 90 * np.sin(waves * np.pi / 2) + random.normal(0, 20, (count, 8, 8))
    return np.clip(np.rint(x), 0, 255).astype(np.uint8)[:, None], y.astype(np.int64)


@register
class Stripes(DatasetKind):
    name, title, label = "stripes", "stripes of three directions, made on the spot", "stripes"
    shape, counts = (1, 8, 8), {"train": 600, "test": 120}

    def load(self, root: Path | None = None) -> Images:
        train, test = (stripes(self.counts[split], np.random.default_rng(i)) for i, split in enumerate(self.counts))
        return Images(self.name, train, test, CLASSES)
