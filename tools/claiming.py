"""A plugin of pytest's: several processes share one list of tests, each takes the next that nobody has taken.

KOOPSIM_CLAIMS is a folder. `tests.json` is the list: tests without torch.compile first, and the longest first by what
the last record says of them. `next` is how many are taken; `PID.jsonl` has a line for each part of a test that is done,
so that nothing is lost with a process. One whose CUDA context a fault has spoilt ends itself: the next starts afresh.
"""

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

FOLDER = Path(os.environ["KOOPSIM_CLAIMS"])
UNTIL = float(os.environ.get("KOOPSIM_CLAIMS_UNTIL", "inf"))  # no test is begun later: who is stopped is not heard
SPOILT = ("CUDA error", "AcceleratorError", "illegal memory access")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = json.loads((FOLDER / "known.json").read_text())

    def place(item: pytest.Item) -> tuple:
        compiles = "compile_cuda" in item.nodeid
        seconds = known.get(item.nodeid, 20.0 + 10.0 * ("train" in item.nodeid) if compiles else 5.0)
        return compiles, -seconds, item.nodeid

    items.sort(key=place)


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Instead of pytest's own loop over all of them."""
    listed = FOLDER / f"{os.getpid()}.part"
    listed.write_text(json.dumps([item.nodeid for item in session.items]))
    listed.replace(FOLDER / "tests.json")
    while time.time() < UNTIL and not session.shouldstop and (mine := claimed()) < len(session.items):
        item = session.items[mine]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return True


def claimed() -> int:
    with open(FOLDER / "next", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        count = len(file.read())
        file.write(".")
    return count


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = (yield).get_result()
    outcome, text = told(report)
    line = {"test": item.nodeid, "part": report.when, "outcome": outcome, "seconds": report.duration, "text": text}
    with open(FOLDER / f"{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    if report.failed and any(word in text for word in SPOILT):
        item.session.shouldstop = "the CUDA context is spoilt"


def told(report: pytest.TestReport) -> tuple[str, str]:
    """(outcome, why): pytest calls an expected failure skipped, which is another thing."""
    if report.failed:
        return "failed", report.longreprtext[-3000:]
    if report.skipped and hasattr(report, "wasxfail"):
        return "xfailed", str(report.wasxfail).removeprefix("reason: ")
    return report.outcome, str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
