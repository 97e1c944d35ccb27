"""Image classification of pictures that do not fit: the same task, its data left where it is.

The splits are those of the resident task, the same rows for the same seed. Means and deviations are those of the
training pictures, of an even choice of 100,000 where there are more. Pictures are judged in batches too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from koopsim.config import ClassificationConfig, Run
from koopsim.datasets.blocks import Rows, Source, stream_images
from koopsim.errors import KoopsimError
from koopsim.files.memory import require_memory
from koopsim.tasks.base import Answers, Figures, Split
from koopsim.tasks.classification import EVALUATION_BATCH, Classification, channel_statistics
from koopsim.tasks.streaming import Streaming

LOOKED_AT = 100_000  # pictures for mean and deviation
AT_ONCE = 4096  # read at a time where order does not matter


class StreamedClassification(Classification):
    """A data set's images by rows of a source, cut into train, valid and test."""

    streamed = True

    def __init__(self, config: ClassificationConfig, device: torch.device | str = "cpu"):
        self.config, self.device = config, torch.device(device)
        self.skip = config.unreadable == "skip"
        images = stream_images(config.dataset, config.size, self.skip)
        self.lost_shards = images.lost
        self.judged_rows: dict[str, np.ndarray] = {}  # of each split that was answered: which could be read
        self.name, self.classes, self.source, self.tested = images.name, images.classes, images.train, images.test
        order = np.random.default_rng(config.seed).permutation(len(self.source))[: config.train]
        if len(order) < 2:
            raise KoopsimError(f"{config.dataset} has {len(self.source)} training images; two at least are needed.")
        self.valid = min(max(1, round(len(order) * config.valid)), len(order) - 1)
        self.parts = {"valid": order[: self.valid], "train": order[self.valid :], "train+valid": order}
        mean, deviation = _statistics(self.source, self.skip)
        self.scale = torch.tensor(1 / (255 * deviation), dtype=torch.float32, device=device)[:, None, None]
        self.shift = torch.tensor(-mean / deviation, dtype=torch.float32, device=device)[:, None, None]

    @property
    def image(self) -> tuple[int, int, int]:
        return self.source.shape

    def rows(self, name: str) -> tuple[Source, Rows]:
        """Where a split's pictures are, in rising order."""
        if name == "test":
            return self.tested, np.arange(len(self.tested))[: self.config.test]
        if name not in self.parts:
            known = ", ".join([*self.parts, "test"])
            raise KoopsimError(f"{self.name} has no split {name!r}; expected one of {known}.")
        return self.source, np.sort(self.parts[name])

    def split(self, name: str) -> Split:
        """All of a split, on the device: for those who look at a few pictures of a small one."""
        source, rows = self.rows(name)
        require_memory(2 * len(rows) * int(np.prod(source.shape)), f"The {name} split of {self.name} asks for")
        x, y = torch.from_numpy(_read(source, rows, self.skip)[0]), torch.from_numpy(source.labels[rows])
        return x.to(self.device), y.to(self.device)

    def example(self, name: str) -> Split:
        """Two pictures, and every label."""
        source, rows = self.rows(name)
        x = torch.from_numpy(_read(source, rows[:2], self.skip)[0])
        return x.to(self.device), torch.from_numpy(source.labels[rows])

    def data(self, run: Run, which: Sequence[int]) -> Streaming:
        source, rows = self.rows(run.train_on)
        return Streaming(source, rows, self.inputs, self.config.workers, skip=self.skip)

    def epoch_steps(self, run: Run) -> int:
        n = len(self.rows(run.train_on)[1])
        return -(-n // min(run.recipe.batch_size, n))

    def predictions(self, answers: Answers, split: str) -> Tensor:
        source, rows = self.rows(split)
        found, good = [], []
        for i in range(0, len(rows), AT_ONCE):
            pictures, readable = _read(source, rows[i : i + AT_ONCE], self.skip)
            good.append(readable)
            x = torch.from_numpy(pictures).to(self.device)
            pieces = x.split(EVALUATION_BATCH.get(x.device.type, 1000))
            found.append(torch.cat([answers(self.inputs(xs)) for xs in pieces], dim=1))
        self.judged_rows[split] = np.concatenate(good)
        return torch.cat(found, dim=1).double()

    def judge(self, answers: Answers, split: str, which: Sequence[int]) -> list[Figures]:
        source, rows = self.rows(split)
        labels, found = torch.from_numpy(source.labels[rows]).to(self.device), []
        everyone = self.predictions(answers, split)
        good = torch.from_numpy(self.judged_rows[split]).to(self.device)
        labels = labels[good]
        for logits in everyone[:, good]:
            right = (logits.argmax(1) == labels).double().mean()
            found.append({"accuracy": float(right), "loss": float(F.cross_entropy(logits, labels))})
        return found

    def fingerprint(self) -> str:
        """Of names, sizes and labels: reading all of it would take as long as an epoch."""
        found = hashlib.sha256(repr(self.classes).encode())
        for source in (self.source, self.tested):
            found.update(source.identity().encode())
            found.update(source.labels.tobytes())
        return f"streamed {found.hexdigest()}"


def _read(source: Source, rows: Rows, skip: bool) -> tuple[np.ndarray, np.ndarray]:
    """(pictures, which of them could be read)."""
    if not skip:
        return source.read(rows), np.ones(len(rows), bool)
    x, good, _ = source.read_good(rows)
    return x, good


def _statistics(source: Source, skip: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each channel, as `channel_statistics`, a stretch at a time."""
    step = max(1, -(-len(source) // LOOKED_AT))
    rows, found = np.arange(0, len(source), step), []
    for i in range(0, len(rows), AT_ONCE):
        x, good = _read(source, rows[i : i + AT_ONCE], skip)
        if good.any():
            mean, deviation = channel_statistics(x[good], constant=0.0)
            found.append((int(good.sum()), mean, deviation**2 + mean**2))
    if not found:
        raise KoopsimError("None of the pictures that were looked at can be read.")
    count = sum(n for n, _, _ in found)
    mean = sum(n * m for n, m, _ in found) / count
    variance = sum(n * s for n, _, s in found) / count - mean**2
    return np.asarray(mean), np.sqrt(np.where(variance > 1e-12, variance, 1.0))
