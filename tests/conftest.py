"""What tests of several folders share."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture
def in_triton() -> Callable[[str], None]:
    """Runs a script whose kernels are Triton's: on CUDA, or in Triton's interpreter where there is none.

    In a process of its own, for the interpreter must be chosen before Triton is imported.
    """
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    environment = dict(os.environ) | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})

    def run(script: str) -> None:
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]

    return run


BEGAN: dict[str, dict[int, Any]] = {}


@pytest.fixture(autouse=True)
def _random_numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """A generator that a file's tests share begins anew for each: no test depends on which ran before it."""
    module = getattr(request, "module", None)
    found = [value for value in vars(module).values() if isinstance(value, np.random.Generator)] if module else []
    if found:
        states = BEGAN.setdefault(module.__name__, {id(g): g.bit_generator.state for g in found})
        for generator in found:
            generator.bit_generator.state = states[id(generator)]


GPU = re.compile(r"CUDA|GPU")
NOT_TO_BE_HAD = re.compile(  # no package brings these: rights, programs, data sets of hundreds of megabytes
    r"right to mount|may read everything|Chromium|compiler|is not in /|data set is not here|SCIPY_ARRAY_API|"
    r"^(bash|zsh|fish|node) is"
)
REFUSED: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, default=None, metavar="SEED", help="files, and the tests of each, at random"
    )
    parser.addoption("--only-gpu-skips", action="store_true", help="fail where a test is skipped for a missing package")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What goes through Triton's interpreter here runs as it is on CUDA: `-m cuda` means these too."""
    for item in items:
        if "in_triton" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cuda)
    seed = config.getoption("--shuffle")
    if seed is not None:
        draw = random.Random(seed)
        place = {path: draw.random() for path in sorted({item.path for item in items})}
        inside = {item.nodeid: draw.random() for item in sorted(items, key=lambda item: item.nodeid)}
        items.sort(key=lambda item: (place[item.path], inside[item.nodeid]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        if not GPU.search(reason) and not NOT_TO_BE_HAD.search(reason):
            REFUSED.append(f"{report.nodeid}: {reason}")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):  # a whole file
        pytest_runtest_logreport(report)  # type: ignore[arg-type]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--only-gpu-skips") and REFUSED and not hasattr(session.config, "workerinput"):
        print("\nskipped for other reasons than a missing GPU:", *REFUSED, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
