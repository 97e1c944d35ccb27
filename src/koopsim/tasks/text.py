"""Text as bytes: foretell the next one.

    x = b_1 ... b_T,   y = b_2 ... b_{T+1}           loss: cross-entropy; judged in bits per byte, loss / ln 2

The text is a file of one's own, or the language reference that comes with Python, half a megabyte of English. It is cut
into windows of T bytes that do not overlap, in the order of the text: the last tenth is for the test, the tenth before
for choices, so that neither is ever between two windows that were learnt.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from koopsim.config import DEQConfig, Recipe, Run, SIMConfig, SolverConfig, TaskConfig
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.files.opened import MEBI, read_bytes
from koopsim.kinds import OwnColumns, Preset, TaskKind, register
from koopsim.nn.byte_tcn import ByteTCNConfig
from koopsim.nn.cross_entropy import cross_entropy
from koopsim.tasks.base import Answers, Figures, Split, Task
from koopsim.words import Figure

REFERENCE = "python"  # the text that is always there
SYMBOLS = 256
EVALUATION_BATCH = 64


@dataclass(frozen=True)
class TextConfig(TaskConfig):
    """Foretell the next byte of a text."""

    text: str = REFERENCE  # "python", or a file
    length: int = 128  # T
    windows: int | None = None  # only so many, from the beginning

    def __post_init__(self) -> None:
        if self.length < 2 or (self.windows is not None and self.windows < 10):
            raise KoopsimError(
                f"The text is cut into {self.windows} windows of {self.length} bytes; expected at least 10 of 2."
            )


def text_bytes(text: str) -> bytes:
    """The text itself."""
    if text == REFERENCE:
        from pydoc_data.topics import topics  # comes with Python

        return "\n".join(topics[name] for name in sorted(topics)).encode()
    file = Path(text)
    if not file.is_file():
        raise KoopsimError(
            f"There is no text file {text!r}; give the path of one, or {REFERENCE!r} for Python's reference."
        )
    return read_bytes(file, 4096 * MEBI, "text")


class Text(Task):
    """Windows of a text on a device."""

    metric = "bits"
    lower_is_better = True

    def __init__(self, config: TextConfig, device: torch.device | str = "cpu"):
        self.config = config
        T, data = config.length, text_bytes(config.text)
        count = min((len(data) - 1) // T, config.windows or len(data))
        if count < 10:
            raise KoopsimError(
                f"The text has {len(data):,} bytes, {count} windows of {T}; expected at least 10. Give a longer text, "
                "or a smaller task.length."
            )
        values = torch.frombuffer(bytearray(data[: count * T + 1]), dtype=torch.uint8)
        self.x, self.y = values[:-1].view(count, T).to(device), values[1:].view(count, T).long().to(device)

    def split(self, name: str) -> Split:
        n = len(self.x)
        a, b = n - 2 * (n // 10), n - n // 10
        parts = {"train": slice(0, a), "valid": slice(a, b), "train+valid": slice(0, b), "test": slice(b, None)}
        if name not in parts:
            raise KoopsimError(f"A text has no split {name!r}; expected one of {', '.join(parts)}.")
        return self.x[parts[name]], self.y[parts[name]]

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        return cross_entropy(outputs.flatten(0, -2), targets.flatten(), smoothing)

    def judge(self, answers: Answers, split: str, which: Sequence[int]) -> list[Figures]:
        """Bits per byte, and the share of bytes that were thought the likeliest and came."""
        x, y = self.split(split)
        totals = torch.zeros(answers.members, 2, dtype=torch.float64, device=x.device)
        for xs, ys in zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True):
            outputs = answers(xs)
            losses = torch.stack([self.loss(own, ys).double() for own in outputs]) * len(xs) / math.log(2)
            right = (outputs.argmax(-1) == ys).double().mean(2).sum(1)
            totals += torch.stack([losses, right], dim=1)
        return [dict(zip(("bits", "right"), row, strict=True)) for row in (totals / len(x)).tolist()]


@register
class TextKind(TaskKind):
    config, task = TextConfig, Text
    setting, words = ("text", str), ("goal",)
    judged = Figure("bits", "bits per byte", "{:.3f}", "{:.2f}", lower=True)
    shown = ("bits", "right")

    def presets(self) -> dict[str, Preset]:
        """A DEQ and a SIM of some 66,000 parameters each, and the DEQ as a reversible one.

        With the implicit gradient at the others' rate the DEQ's cell expands more and more, until no solve converges;
        the phantom gradient at half of it keeps all solves convergent (tried on the first 1,200 windows of 64 bytes).
        """
        recipe = Recipe(batch_size=32, epochs=20, learning_rate=2e-3, schedule="cosine", clip_norm=1.0)
        solver = SolverConfig("anderson", 24, 1e-2)
        deq = DEQConfig(4, 16, 64, 128, SYMBOLS, forward=solver, backward=solver, gradient="phantom")
        back = replace(deq, gradient="reversible", forward=replace(solver, max_steps=8))
        sim = SIMConfig(ByteTCNConfig(channels=26), lift_dim=64, hidden=48, outputs=SYMBOLS)
        models = {"deq": deq, "deq-reversible": back, "sim-single": sim}
        rates = {"deq": replace(recipe, learning_rate=1e-3)}
        return {f"text/{n}": Preset(Run(m, TextConfig(), rates.get(n, recipe))) for n, m in models.items()}

    def smoke(self, name: str, run: Run) -> Run:
        task = replace(run.task, length=32, windows=400)  # pyright: ignore[reportCallIssue]
        return replace(run, task=task, recipe=replace(run.recipe, epochs=2))

    def on_own_table(self, run: Run, name: str, data: str, columns: OwnColumns) -> tuple[str, Run]:
        """A text file: its windows, and the same model."""
        if columns.goal not in (None, "forecast"):
            raise KoopsimError(f"{data} is one text without labels; its next byte is all there is to be foretold.")
        here = folders.plain_name(Path(data).resolve().stem, "The data")
        return f"{here}/{name.split('/')[-1]}", replace(run, task=replace(run.task, text=str(Path(data).resolve())))  # pyright: ignore[reportCallIssue]

    def place(self, result: dict[str, Any]) -> str:
        return f"Bytes of {Path(result['run']['task']['text']).name}"
