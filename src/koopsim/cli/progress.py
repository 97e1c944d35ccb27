"""What a person sees while a run trains: a bar on a terminal, plain lines otherwise, always on standard error."""

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class TrainingProgress:
    """Listens to a run: `with TrainingProgress(...) as listen: train(..., listen=listen)`."""

    def __init__(self, name: str, epochs: int):
        self.console = Console(stderr=True)
        self.name, self.epochs, self.last_line = name, epochs, 0.0
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task(name, total=None, figures="")

    def __enter__(self) -> "TrainingProgress":
        self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            self.bar.update(self.task, completed=event["step"], total=event["steps"])
            return
        figures = describe(event)
        self.bar.update(self.task, figures=figures)
        due = time.monotonic() - self.last_line > 2 or event["epoch"] == self.epochs
        if not self.console.is_terminal and due:
            self.last_line = time.monotonic()
            self.console.print(f"{self.name}  epoch {event['epoch']}/{self.epochs}  {figures}", highlight=False)


def describe(line: dict[str, Any]) -> str:
    """The figures of an epoch in one short line."""
    parts = [f"{line['train_psnr']:.2f} dB" if "train_psnr" in line else f"loss {line['train_loss']:.3g}"]
    if "valid_loss" in line:
        parts.append(f"valid {line['valid_loss']:.3g}")
    if "valid_accuracy" in line:
        parts.append(f"right {line['valid_accuracy']:.1%}")
    if line.get("unconverged"):
        parts.append(f"unconverged {line['unconverged']:.0%}")
    return "  ".join([*parts, f"{line['seconds']:.1f} s"])
