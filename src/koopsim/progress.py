"""What a person sees while something trains: on a terminal, in a notebook, or as plain lines in a log.

    with Progress("copy/sim-single") as listen:  train_run(..., Session(device, listen=listen))

It hears of runs ("progress", "epoch"), of fits ("fit") and of searches ("trial"), and writes to standard error, never
to standard output, which is for results. Whoever speaks says what there is to show; this only says when and how.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

LINE_SECONDS = 3.0  # between plain lines where there is no terminal
MANY_PIXELS = 4_000_000  # drawing so many takes long enough to say so
SHOW_SECONDS = 0.3  # between two states of a table


class Progress:
    """A bar or a table that moves; plain lines where there is nothing that could."""

    def __init__(self, title: str, epochs: int | None = None):
        from rich.console import Console

        plain = Console(stderr=True)
        self.console = Console() if plain.is_jupyter else plain
        self.lively = self.console.is_terminal or self.console.is_jupyter
        self.title, self.epochs, self.figures = title, epochs, ""
        self.shown, self.live, self.bar, self.task = 0.0, None, None, None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for view in (self.live, self.bar):
            if view is not None:
                view.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "progress":
                self._move(event["step"], event["steps"])
            case "epoch":
                self.figures = describe(event)
                total = f"/{self.epochs}" if self.epochs else ""
                self._say(f"epoch {event['epoch']}{total}  {self.figures}", last=event["epoch"] == self.epochs)
            case "fit":
                self.figures = f"{event['psnr']:.2f} dB  step {event['step']:,}"
                self._move(event["fraction"], 1.0)
                self._say(f"{event['fraction']:4.0%}  {self.figures}", last=event["fraction"] >= 1)
            case "trial":
                self._table(event)
            case "note":
                self.console.print(f"{self.title}  {event['text']}", highlight=False, soft_wrap=True, markup=False)
            case "drawing" if event["width"] * event["height"] > MANY_PIXELS:
                self._say(f"drawing {event['width']} x {event['height']}", last=True)

    def _move(self, done: float, total: float) -> None:
        if not self.lively:
            return
        if self.bar is None:
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
            self.bar = Bar(*columns, TextColumn("{task.fields[figures]}"), console=self.console)
            self.task = self.bar.add_task(self._safe(self.title), total=None, figures="")
            self.bar.start()
        assert self.task is not None
        self.bar.update(self.task, completed=done, total=total, figures=self._safe(self.figures))

    def _say(self, line: str, last: bool = False) -> None:
        """A plain line now and then, where nothing moves."""
        if not self.lively and (last or time.monotonic() - self.shown > LINE_SECONDS):
            self.shown = time.monotonic()
            text = f"{self.title}  {line}"
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def _table(self, event: dict[str, Any]) -> None:
        last = event["over"]
        if not last and time.monotonic() - self.shown < (SHOW_SECONDS if self.lively else LINE_SECONDS):
            return
        self.shown = time.monotonic()
        view = event["view"]()  # made only when it is shown
        if not self.lively:
            self.console.print(f"{self.title}  {view['line']}", highlight=False, soft_wrap=True, markup=False)
            return
        from rich.live import Live
        from rich.table import Table

        if self.live is None:
            self.live = Live(console=self.console, auto_refresh=False)
            self.live.start()
        table = Table(title=self._safe(f"{self.title}  {view['head']}"), title_justify="left", box=None)
        count = fitting_columns([view["columns"], *view["rows"]], self.console.width)
        for name in view["columns"][:count]:
            table.add_column(self._safe(name), justify="right", no_wrap=True)
        for row in view["rows"]:
            table.add_row(*map(self._safe, row[:count]))
        self.live.update(table, refresh=True)

    @staticmethod
    def _safe(text: str) -> str:
        from rich.markup import escape

        return escape(text)


def fitting_columns(rows: list[list[str]], width: int) -> int:
    """How many of the first columns a terminal has room for; two at least."""
    room = [2 + max(map(len, column)) for column in zip(*rows, strict=True)]
    return max([2, *(n for n in range(1, len(room) + 1) if sum(room[:n]) <= width)])


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


def clock(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return "?"
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
