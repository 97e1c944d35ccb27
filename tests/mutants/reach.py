"""Which tests reach which lines of the library: the tests that may notice a mutant are those that run its line.

    each file of tests in a fork of its own -> per test: the lines it ran first (sys.monitoring, or a trace before
    Python 3.12), its seconds, its end -> {source file: {line: tests}}

What runs in a fixture counts for every test of that file (later ones share what the first one made). A test that does
not pass on unchanged code is never asked.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = str(ROOT / "src" / "koopsim") + os.sep
CALLS = 12  # of a function that are traced in a test, where that is slow (before Python 3.12)
TOOL = 4  # sys.monitoring's number for us


class Lines:
    """The lines of ours that run between `begin` and `end`, each noted once."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()
        self.calls: Counter[Any] = Counter()
        self.monitoring = getattr(sys, "monitoring", None)
        if self.monitoring:
            self.monitoring.use_tool_id(TOOL, "koopsim-reach")
            self.monitoring.register_callback(TOOL, self.monitoring.events.LINE, self._line)

    def _line(self, code: Any, line: int) -> Any:
        if code.co_filename.startswith(SOURCE):
            self.seen.add((code.co_filename[len(SOURCE) :], line))
        return self.monitoring.DISABLE

    def _trace(self, frame: Any, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(SOURCE) or self.calls[code] >= CALLS:
            return None
        self.calls[code] += 1
        self._inside(frame, event, arg)
        return self._inside

    def _inside(self, frame: Any, event: str, arg: Any) -> Any:
        self.seen.add((frame.f_code.co_filename[len(SOURCE) :], frame.f_lineno))
        return self._inside

    def begin(self) -> None:
        self.seen, self.calls = set(), Counter()
        if self.monitoring:
            self.monitoring.restart_events()
            self.monitoring.set_events(TOOL, self.monitoring.events.LINE)
        else:
            sys.settrace(self._trace)

    def end(self) -> list[tuple[str, int]]:
        if self.monitoring:
            self.monitoring.set_events(TOOL, 0)
        else:
            sys.settrace(None)
        return sorted(self.seen)


class Reach:
    """The pytest plugin: a line of JSON for each fixture's and each test's lines, and for how each test ended."""

    def __init__(self, out: Path):
        self.out, self.lines, self.began, self.failed = out.open("w"), Lines(), 0.0, False

    def pytest_runtest_logstart(self) -> None:
        self.failed, self.began = False, time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: Any) -> Any:
        self.lines.begin()
        try:
            return (yield)
        finally:
            self._write({"setup": item.nodeid.split("::")[0], "lines": self.lines.end()})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        self.lines.begin()
        try:
            return (yield)
        finally:
            self._write({"test": item.nodeid, "lines": self.lines.end()})

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed |= report.outcome != "passed"
        if report.when == "teardown":
            seconds = round(time.monotonic() - self.began, 3)
            self._write({"ended": report.nodeid, "seconds": seconds, "passed": not self.failed})

    def _write(self, one: dict[str, Any]) -> None:
        self.out.write(json.dumps(one) + "\n")
        self.out.flush()


def quiet_tests(arguments: list[str], plugins: list[Any], scratch: Path) -> int:
    """pytest in this process, which is a fork for it alone, in a folder of its own and without a word."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.chdir(ROOT)
    plain = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "--no-header", f"--basetemp={scratch / 't'}"]
    return int(pytest.main([*plain, *arguments], plugins=plugins))


def ended(pid: int, seconds: float) -> int:
    """The exit status of a child that leads a session; -9 where it had to be stopped."""
    waited = 0.0
    while waited < seconds:
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(code)
        time.sleep(0.05)
        waited += 0.05  # not the clock: time in which this process was stopped is nobody's fault
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -9


def _of_file(job: tuple[Path, float]) -> list[dict[str, Any]]:
    file, seconds = job
    with tempfile.TemporaryDirectory(prefix="koopsim-reach-") as scratch:
        out = Path(scratch) / "reach"
        pid = os.fork()
        if not pid:
            try:
                quiet_tests([str(file)], [Reach(out)], Path(scratch))
            finally:
                os._exit(0)
        ended(pid, seconds)
        return [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")]


def reach(tests: list[Path], workers: int, seconds: float = 240.0) -> dict[str, Any]:
    """{"seconds": {test: s}, "lines": {"file:line": [numbers of tests]}, "names": tests}; only tests that passed."""
    took: dict[str, float] = {}
    ran: dict[str, list[tuple[str, int]]] = {}
    shared: dict[str, set[tuple[str, int]]] = {}
    largest = sorted(tests, key=lambda file: -file.stat().st_size)
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(_of_file, [(file, seconds) for file in largest], 1):
            for one in found:
                if "setup" in one:
                    shared.setdefault(one["setup"], set()).update(map(tuple, one["lines"]))
                elif "test" in one:
                    ran[one["test"]] = [tuple(line) for line in one["lines"]]
                elif one["passed"]:
                    took[one["ended"]] = one["seconds"]
    names = sorted(took)
    lines: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        for file, line in {*ran.get(name, []), *shared.get(name.split("::")[0], set())}:
            lines.setdefault(f"{file}:{line}", []).append(number)
    return {"names": names, "seconds": [took[name] for name in names], "lines": lines}


def keep(found: dict[str, Any], path: Path) -> None:
    with gzip.open(path, "wt") as file:
        json.dump(found, file)


def kept(paths: list[Path]) -> dict[str, Any]:
    """What was kept, of several files of tests together."""
    whole: dict[str, Any] = {"names": [], "seconds": [], "lines": {}}
    for path in paths:
        with gzip.open(path, "rt") as file:
            part, before = json.load(file), len(whole["names"])
        whole["names"] += part["names"]
        whole["seconds"] += part["seconds"]
        for line, tests in part["lines"].items():
            whole["lines"].setdefault(line, []).extend(before + number for number in tests)
    return whole
