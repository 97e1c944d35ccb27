"""The copy memory task: remember ten digits over T blanks.           paper, section 5.1

    x = [ 10 digits 1..8 | T-1 zeros | 11 nines ]
    y = [ T+10 zeros                 | the 10 digits ]

Both are T+20 long. Loss: cross-entropy in nats, mean over positions and sequences. A model without memory can
at best guess the last ten of T+20 positions among eight digits: 10 ln 8 / (T+20).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from koopsim.config import CopyMemoryConfig, Run
from koopsim.files.memory import require_memory
from koopsim.kinds import Preset, Scale, TaskKind, register
from koopsim.spaces import Choice, LogUniform, SearchSpace
from koopsim.tasks import table1
from koopsim.tasks.base import Answers, Figures, Split
from koopsim.tasks.tagging import Tagging
from koopsim.words import LOSS

DIGITS = 10  # how many are to be remembered
CLASSES = 10  # blank 0, digits 1..8, marker 9


def sequences(digits: Tensor, horizon: int) -> Split:
    """(n, 10) digits -> inputs (n, T+20) as uint8 and targets (n, T+20) as int64."""
    n, length = len(digits), horizon + 2 * DIGITS
    x = torch.zeros(n, length, dtype=torch.uint8)
    x[:, :DIGITS] = digits
    x[:, DIGITS + horizon - 1 :] = 9
    y = torch.zeros(n, length, dtype=torch.int64)
    y[:, -DIGITS:] = digits
    return x, y


class CopyMemory(Tagging):
    """Seeded sequences on a device, cut into train, valid and test: tagging (tagging.py) whose last ten tags count.

    Judged in float64: float32's log-softmax rounds losses of 1e-9 to zero or to noise.
    """

    metric = "loss"
    lower_is_better = True
    exact = True
    figures = ("loss", "digits_right", "sequences_right")
    called = "Copy memory"

    def __init__(self, config: CopyMemoryConfig, device: torch.device | str = "cpu"):
        self.config = config
        total = config.train + config.valid + config.test
        require_memory(10 * total * (config.horizon + 2 * DIGITS), f"{total:,} sequences ask for")
        generator = torch.Generator().manual_seed(config.seed)
        digits = torch.randint(1, 9, (total, DIGITS), generator=generator)
        x, y = sequences(digits, config.horizon)
        self.x, self.y = x.to(device), y.to(device)
        a, b = config.train, config.train + config.valid
        self.parts = {"train": slice(0, a), "valid": slice(a, b), "train+valid": slice(0, b), "test": slice(b, None)}

    @property
    def memoryless_loss(self) -> float:
        """What a model that remembers nothing can reach."""
        return DIGITS * math.log(8) / (self.config.horizon + 2 * DIGITS)

    def weight(self, targets: Tensor) -> Tensor:
        return torch.tensor(len(targets), device=targets.device)

    def scores(self, outputs: Tensor, targets: Tensor) -> list[Tensor]:
        right = (outputs.argmax(-1) == targets)[..., -DIGITS:]
        return [right.double().mean(2).sum(1), right.all(2).sum(1).double()]

    def judge(self, answers: Answers, split: str, which: Sequence[int]) -> list[Figures]:
        more = {"memoryless_loss": self.memoryless_loss}
        return [figures | more for figures in super().judge(answers, split, which)]


@register
class CopyMemoryKind(TaskKind):
    """What the house asks of the task; the paper's rows are in table1.py."""

    config, task = CopyMemoryConfig, CopyMemory
    order, table, figures = 1, "table1", ("figure4",)
    setting, judged, shown = ("horizon", int), LOSS, ("loss", "digits_right")

    def presets(self) -> dict[str, Preset]:
        return table1.PRESETS

    def smoke(self, name: str, run: Run) -> Run:
        """A short horizon and large batches."""
        task = replace(run.task, horizon=20, train=900, valid=100, test=200)  # pyright: ignore[reportCallIssue]
        return replace(run, task=task, recipe=replace(run.recipe, batch_size=20, epochs=20, learning_rate=2e-3))

    def own_space(self, run: Run, smoke: bool) -> SearchSpace:
        batches = Choice((10, 20) if smoke else (1, 2, 5, 10, 20))
        shape = {"trials": 8, "max_t": 4, "grace": 1} if smoke else {"trials": 100, "max_t": 6, "grace": 3}
        parameters = {"recipe.batch_size": batches, "recipe.learning_rate": LogUniform(1e-4, 0.05)}
        return SearchSpace(parameters, **shape, metric="loss", mode="min")

    def rows(self, scale: Scale) -> dict[str, Scale]:
        return dict.fromkeys(table1.PRESETS, scale)

    def seconds(self, name: str, scale: Scale) -> float | None:
        return (table1.SECONDS if scale == "paper" else table1.SMOKE_SECONDS).get(name)

    def slug(self, task: dict[str, Any]) -> str:
        return "copy"

    def place(self, result: dict[str, Any]) -> str:
        return f"Copy memory, T = {result['run']['task']['horizon']}"

    def published(self, name: str) -> float | None:
        return table1.PUBLISHED.get(name)
