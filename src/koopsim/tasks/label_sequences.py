"""Sequences with labels: one for each, or one for each step.

    classify   logits = mean over steps of what the model says;   cross-entropy
    tag        logits at every step;                              cross-entropy over steps (tagging.py)

Models are causal and sequences are filled up on the right, so what is filled in is never seen by a step that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from koopsim.config import TaskConfig
from koopsim.datasets.row_splits import TEST, TRAIN, VALID, split_rows
from koopsim.datasets.sequence_inputs import SequenceInputs
from koopsim.datasets.sequences import Sequences, filled_up
from koopsim.errors import KoopsimError
from koopsim.kinds import SequenceShape, register
from koopsim.nn.cross_entropy import cross_entropy
from koopsim.tasks.sequence_data import OfSequences, SequenceData, SequenceKind, bare, statistics_of
from koopsim.tasks.tagging import Tagging
from koopsim.words import ACCURACY

PARTS = {"train": TRAIN, "valid": VALID, "test": TEST}


@dataclass(frozen=True)
class ClassifySequencesConfig(SequenceData, TaskConfig):
    """Name each sequence."""

    data: str = "gestures"


@dataclass(frozen=True)
class TagSequencesConfig(SequenceData, TaskConfig):
    """Name each step of each sequence."""

    data: str = "phases"
    samples: int = 300


class _Labelled(OfSequences, Tagging):
    """Sequences with labels, of each or of its steps, cut into parts at random or as the data says."""

    goal: ClassVar[Literal["classify", "tag"]]
    metric, lower_is_better = "accuracy", False

    def _load(self, config: Any, device: torch.device | str) -> None:
        """Everything: x, y, parts, and what a model takes."""
        found = config.read(self.goal)
        labels = self._labels(found)
        rows = _rows(found, labels, config, self.goal)
        scale, shift = statistics_of([found.values[i] for i in rows["train"]], found.plain)
        self.takes = SequenceInputs(
            self.goal, found.channels, scale, shift, found.classes, (), int(found.lengths.max()), 0,
            config.id, config.time, config.text, config.target, config.drop,
        )  # fmt: skip
        self.classes, self.called = found.classes, found.path
        self.masked = len(set(found.lengths.tolist())) > 1
        self.x = torch.from_numpy(bare(filled_up(self.takes.scaled(found.values, found.path)))).to(device)
        self.y = _targets(labels, self.x.shape[1], device)
        both = {"train+valid": np.concatenate([rows["train"], rows["valid"]])}
        self.parts = {name: torch.from_numpy(own).to(device) for name, own in (rows | both).items()}

    def _labels(self, found: Sequences) -> list[NDArray[Any]]:
        """A label for every step of every sequence."""
        if self.goal == "classify" and found.labels is not None:
            pairs = zip(found.labels.tolist(), found.lengths.tolist(), strict=True)
            return [np.full(length, label) for label, length in pairs]
        if self.goal == "tag" and found.tags is not None:
            return found.tags
        what = "a label a sequence" if self.goal == "classify" else "a label a step"
        raise KoopsimError(f"{found.path} has no {what}; say which column it is: --target COLUMN.")


def _rows(found: Sequences, labels: list[NDArray[Any]], config: SequenceData, goal: str) -> dict[str, NDArray[Any]]:
    """The sequences of each part, every class among those that are learnt from."""
    if len(found.classes) < 2:
        raise KoopsimError(f"{found.path} has {len(found.classes)} class; telling them apart needs two at least.")
    if len(found) < 5:
        raise KoopsimError(f"{found.path} has {len(found)} sequences; train, valid and test need five at least.")
    marks = found.splits
    if marks is None:
        strata = found.labels if goal == "classify" else None
        marks = split_rows(len(found), config.valid, config.test, config.seed, strata)
    rows = {name: np.flatnonzero(marks == mark) for name, mark in PARTS.items()}
    lost = [name for name, own in rows.items() if not len(own)]
    if lost:
        raise KoopsimError(f"{found.path} has no sequences to {lost[0]} on; expected some in each part.")
    seen = set(np.concatenate([labels[i] for i in rows["train"]]).tolist())
    unseen = [name for code, name in enumerate(found.classes) if code not in seen]
    if unseen:
        raise KoopsimError(f"{found.path}: the class {unseen[0]!r} is not in the training part; give more of it.")
    return rows


def _targets(labels: Sequence[NDArray[Any]], length: int, device: torch.device | str) -> Tensor:
    """(n, T) int64, -1 where a sequence has ended."""
    y = np.full((len(labels), length), -1, np.int64)
    for row, own in zip(y, labels, strict=True):
        row[: len(own)] = own
    return torch.from_numpy(y).to(device)


class TagSequences(_Labelled):
    """A label a step."""

    goal = "tag"

    def __init__(self, config: TagSequencesConfig, device: torch.device | str = "cpu"):
        self.config = config
        self._load(config, device)


class ClassifySequences(_Labelled):
    """A label a sequence, the mean of what the model says at its steps; targets repeat it at every step."""

    goal = "classify"
    batch = 256

    def __init__(self, config: ClassifySequencesConfig, device: torch.device | str = "cpu"):
        self.config = config
        self._load(config, device)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        return cross_entropy(mean_of_steps(outputs, targets >= 0), targets[:, 0], smoothing)

    def weight(self, targets: Tensor) -> Tensor:
        return torch.tensor(len(targets), device=targets.device)

    def scores(self, outputs: Tensor, targets: Tensor) -> list[Tensor]:
        named = mean_of_steps(outputs, targets >= 0).argmax(-1)
        return [(named == targets[:, 0]).double().sum(1)]


def mean_of_steps(outputs: Tensor, there: Tensor) -> Tensor:
    """(..., n, T, K) and (n, T) -> (..., n, K): the mean over the steps that are there."""
    weight = there.to(outputs.dtype)
    return (outputs * weight.unsqueeze(-1)).sum(-2) / weight.sum(-1, keepdim=True)


@register
class ClassifySequencesKind(SequenceKind):
    config, task, goal = ClassifySequencesConfig, ClassifySequences, "classify"
    judged, shown = ACCURACY, ("accuracy", "loss")
    made, less = (SequenceShape(2, 60), 6), {"samples": 240}

    @property
    def title(self) -> str:
        return "Sequences, named"


@register
class TagSequencesKind(SequenceKind):
    config, task, goal = TagSequencesConfig, TagSequences, "tag"
    judged, shown = ACCURACY, ("accuracy", "loss")
    made, less = (SequenceShape(1, 80), 3), {"samples": 120}

    @property
    def title(self) -> str:
        return "Sequences, named step by step"
