"""What a person sees while a search runs: the best trials so far, and the time left. On standard error."""

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from koopsim.search.directory import Search
from koopsim.search.results import expected_epochs, ranked, value_of
from koopsim.search.trial import Trial

SHOWN = 8
LINE_SECONDS = 5.0  # between plain lines where there is no terminal


class TuneProgress:
    """Listens to a search: a live table on a terminal, a line now and then otherwise."""

    def __init__(self, search: Search):
        self.search, self.console = search, Console(stderr=True)
        only = getattr(search.base.task, "only", None)
        self.title = f"{search.name}, {only}" if only else search.name
        self.live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        self.last, self.first = 0.0, None  # when something was shown; seconds and epochs at the first report heard

    def __enter__(self) -> "TuneProgress":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.live.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        trials: list[Trial] = event["trials"]
        done = sum(t.t for t in trials)
        if self.first is None:
            self.first = (0.0, 0) if done <= len(trials) else (event["seconds"], done)  # a resumed one starts anew
        over = all(t.over for t in trials)
        now = time.monotonic()
        if now - self.last < (0.3 if self.live else LINE_SECONDS) and not over:
            return
        self.last = now
        left = self._left(trials, event["seconds"], done)
        if self.live:
            self.live.update(self.table(trials, event["seconds"], left), refresh=True)
        else:
            self.console.print(self.line(trials, event["seconds"], left), highlight=False, soft_wrap=True)

    def _left(self, trials: list[Trial], seconds: float, done: int) -> float | None:
        """Seconds left at the pace so far, if halving goes on as it should."""
        assert self.first is not None
        spent, epochs = seconds - self.first[0], done - self.first[1]
        return None if epochs < 1 else spent / epochs * max(0.0, expected_epochs(trials, self.search.space) - done)

    def line(self, trials: list[Trial], seconds: float, left: float | None) -> str:
        best = ranked(trials, self.search.space)[:1]
        over, metric = sum(t.over for t in trials), self.search.space.metric
        found = f"best {metric} {best[0].last(metric):.4g} (trial {best[0].index})" if best else "no figure yet"
        return f"{self.title}  {over}/{len(trials)} trials  {found}  {_clock(seconds)}, {_clock(left)} left"

    def table(self, trials: list[Trial], seconds: float, left: float | None) -> Table:
        space = self.search.space
        over = sum(t.over for t in trials)
        title = f"{self.title}  {over}/{len(trials)} trials  {_clock(seconds)}, about {_clock(left)} left"
        table = Table(title=title, title_justify="left", box=None)
        table.add_column("trial", justify="right")
        table.add_column(space.metric, justify="right")
        table.add_column("t", justify="right")
        table.add_column("")
        for path in space.parameters:
            table.add_column(path.rpartition(".")[2].replace("_", " "), justify="right")
        for trial in ranked(trials, space)[:SHOWN]:
            values = [value_of(trial, path) for path in space.parameters]
            shown = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in values]
            table.add_row(str(trial.index), f"{trial.last(space.metric):.4g}", str(trial.t), trial.status, *shown)
        return table


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
