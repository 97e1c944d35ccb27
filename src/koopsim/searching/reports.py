"""What a search on a cluster keeps: every report of every trial, in the order they came.

    reports.jsonl   {"seconds", "index", "t", figures ...}  an epoch of a trial    {"index", "ended", "reason"}  its end

A driver that was killed reads them back, and with them where every trial and ASHA's rungs stand.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from koopsim.files.json import json_text, read_lines
from koopsim.files.writing import append_line
from koopsim.searching.directory import Cluster, Search, SearchDirectory
from koopsim.searching.overview import Pace, event_of
from koopsim.searching.results import trials_csv
from koopsim.searching.space import with_values
from koopsim.searching.trial import STATUSES, Trial, draw_trials, length
from koopsim.spaces import BANDWIDTH, MOST_TRIALS
from koopsim.training import Listener, unheard


class ReportedSearch:
    """A search by its reports: where it stands, and how it goes on."""

    def __init__(
        self,
        search: Search,
        directory: SearchDirectory,
        cluster: Cluster = Cluster(),  # noqa: B008  (frozen)
        listen: Listener = unheard,
    ):
        self.search, self.directory, self.cluster, self.listen = search, directory, cluster, listen
        self.trials = draw_trials(search.base, search.space, search.seed)
        self.reports_file = directory.reports_file
        self.full: OSError | None = None  # why there is no going on
        self.pace = Pace()
        self.began = time.time()
        self._read_reports()
        self.over = [t.index for t in self.trials if t.over]  # Ray may have been killed before it took note of some
        self.begin()

    def begin(self) -> None:
        """What else a kind of search needs, once it is known where it stands."""

    @property
    def elapsed(self) -> float:
        return time.time() - self.began

    def hear(self, report: dict[str, Any]) -> None:
        """A report of a trial, or its end: kept first, then told."""
        if report["index"] in self.over:
            return
        report = {"seconds": self.elapsed, **report}
        try:
            append_line(self.reports_file, json_text(report, str(self.reports_file), indent=None))
        except OSError as error:
            self.full = error
            raise
        trial = self._apply(report)
        self.listen(event_of(trial, self.trials, self.search.space, report["seconds"], self.pace))

    def _apply(self, report: dict[str, Any]) -> Trial:
        trial = self.trials[report["index"]]
        if "ended" in report:
            status, reason = report["ended"], report["reason"]
            if status == "complete":
                whole = trial.t >= length(trial.run, self.search.space.max_t)
                status, reason = ("finished", f"all {trial.t} epochs") if whole else ("pruned", "")
                reason = reason or f"below the others at epoch {trial.t}"
            if not trial.over:
                trial.end(status, reason)
        else:
            trial.status = "running"
            trial.run = _with_bandwidth(trial, report.get("bandwidth"))
            line = {k: v for k, v in report.items() if k not in ("index", "bandwidth")}
            trial.curve = [kept for kept in trial.curve if kept["t"] < line["t"]] + [line]
        return trial

    def _read_reports(self) -> None:
        reports = read_reports(self.reports_file, self.search.space.metric, len(self.trials))
        if self.reports_file.exists():  # a line that was cut short must not become the head of the next one
            whole = self.reports_file.read_bytes()
            os.truncate(self.reports_file, whole.rfind(b"\n") + 1)
        for report in reports:
            self._apply(report)
        if reports:
            self.began = time.time() - reports[-1]["seconds"]

    def save(self) -> None:
        self.directory.write(self.directory.trials_file, trials_csv(self.trials, self.search.space).encode())


def read_reports(path: Path, metric: str, trials: int = MOST_TRIALS) -> list[dict[str, Any]]:
    """The good lines of reports.jsonl; a last one cut short by a crash is left out."""
    return read_lines(path, lambda report: _problem(report, metric, trials))


def _problem(report: dict[str, Any], metric: str, trials: int) -> str | None:
    """What is wrong with a report of a search of so many trials, judged by this metric; None where nothing is."""
    index, t, ended = (report.get(key) for key in ("index", "t", "ended"))
    if type(index) is not int or not 0 <= index < trials:
        return f"its index is {str(index)[:40]}, which is no trial's"
    if type(report.get("seconds")) not in (int, float):
        return "its seconds are no number"
    if "ended" in report:
        known = ended in (*STATUSES, "complete") and isinstance(report.get("reason"), str)
        return None if known else "it tells an end that is not known"
    if type(t) is not int or t < 1:
        return "it tells neither of an epoch nor of an end"
    return None if type(report.get(metric)) in (int, float) else f"it has no {metric}"


def _with_bandwidth(trial: Trial, bandwidth: float | None) -> Any:
    return trial.run if bandwidth is None else with_values(trial.run, {BANDWIDTH: bandwidth})
