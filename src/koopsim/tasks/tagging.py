"""A label a step: what tagging a sequence, copying one from memory and foretelling its next byte have in common.

    loss = mean over steps of the cross-entropy;   targets (n, T), -1 where a sequence has ended

Where all sequences are equally long nothing is masked, and the loss is one kernel on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.config import Run
from koopsim.errors import KoopsimError
from koopsim.nn.cross_entropy import cross_entropy
from koopsim.tasks.base import Answers, Figures, Split, Task


@dataclass(frozen=True)
class OfTags:
    """The mean cross-entropy of the answers to all steps, and of nothing else: who has a faster way may take it."""

    loss: Callable[[Tensor, Tensor, float], Tensor]
    smoothing: float = 0.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(model(x), y, self.smoothing)


class Tagging(Task):
    """Sequences x and a label for each of their steps y, on a device; `parts` are the rows of each split."""

    figures: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    batch: ClassVar[int] = 50  # of sequences that are judged at once
    masked: bool = False  # some end before the others
    called: str = "The data"
    x: Tensor
    y: Tensor
    parts: dict[str, slice | Tensor]

    def split(self, name: str) -> Split:
        if name not in self.parts:
            raise KoopsimError(f"{self.called} has no split {name!r}; expected one of {', '.join(self.parts)}.")
        return self.x[self.parts[name]], self.y[self.parts[name]]

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        flat, labels = outputs.flatten(0, -2), targets.flatten()
        if not self.masked:
            return cross_entropy(flat, labels, smoothing)
        return F.cross_entropy(flat, labels, ignore_index=-1, label_smoothing=smoothing)

    def member_loss(self, run: Run) -> Callable[..., Tensor]:
        plain = not self.masked and type(self).loss is Tagging.loss
        return OfTags(self.loss, run.recipe.label_smoothing) if plain else super().member_loss(run)

    def counted(self, targets: Tensor) -> Tensor | None:
        return self.weight(targets) if self.masked else None

    def weight(self, targets: Tensor) -> Tensor:
        """What the figures of a batch count: its steps that have a label."""
        return (targets >= 0).sum()

    def scores(self, outputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Of (members, n, T, classes): for each figure after the loss its sum over the batch, (members,)."""
        right = (outputs.argmax(-1) == targets) & (targets >= 0)
        return [right.double().sum((1, 2))]

    def judge(self, answers: Answers, split: str, which: Sequence[int]) -> list[Figures]:
        x, y = self.split(split)
        totals = torch.zeros(answers.members, len(self.figures), dtype=torch.float64, device=x.device)
        whole = torch.zeros((), dtype=torch.float64, device=x.device)
        for xs, ys in zip(x.split(self.batch), y.split(self.batch), strict=True):
            outputs, weight = answers(xs), self.weight(ys)
            losses = torch.stack([self.loss(own, ys) for own in outputs]) * weight
            totals += torch.stack([losses, *self.scores(outputs, ys)], dim=1)
            whole += weight
        return [dict(zip(self.figures, row, strict=True)) for row in (totals / whole).tolist()]
