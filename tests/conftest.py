"""What tests of several folders share."""

import multiprocessing
import multiprocessing.forkserver
import os
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

HUNTING = os.environ.get("TRITON_INTERPRET") == "1"  # this process is the interpreter's: a hunt for mutants
# Triton before 3.7 makes numbers of arrays of one in a way that NumPy 2.5 refuses: its interpreter alone, no kernel.
OF_ONE = """
import triton.runtime.interpreter as own
def patched(tensor, scope, before=own._patch_lang_tensor):
    before(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())
    scope.set_attr(tensor, "__bool__", lambda self: self.handle.data.size != 1 or bool(self.handle.data.item()))
own._patch_lang_tensor = patched
"""


@pytest.fixture(scope="session")
def fresh() -> Any:
    """Processes that have PyTorch, Triton's interpreter and koopsim already: forks of one that was started for them and
    has one thread. This process has threads of what ran before: a fork of it may wait for ever for a lock of theirs."""
    if HUNTING:
        return multiprocessing.get_context("fork")  # what is changed is changed in this process, which has one thread
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch", "triton.language", "koopsim.implicit", "koopsim.tasks", "torch.distributed.fsdp"]
    )
    with pytest.MonkeyPatch.context() as patch:  # it must be chosen before Triton is imported
        patch.setenv("TRITON_INTERPRET", "1")
        multiprocessing.forkserver.ensure_running()
    return context


@pytest.fixture
def in_triton(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], None]:
    """Runs a script whose kernels are Triton's, in a process of its own: on CUDA, or else in Triton's interpreter."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    old = tuple(map(int, version("triton").split(".")[:2])) < (3, 7)

    def run_on_cuda(script: str) -> None:
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]

    def run(script: str) -> None:
        said = tmp_path / "said"
        said.touch()
        kept = f"import os; os.dup2(os.open({str(said)!r}, os.O_WRONLY), 2)\n" + OF_ONE * old
        process = request.getfixturevalue("fresh").Process(target=exec, args=(kept + script, {"__name__": "__main__"}))
        process.start()
        process.join(300)
        if process.is_alive():
            process.kill()
        assert process.exitcode == 0, said.read_text()[-3000:]

    def run_here(script: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # as in a process of its own
            exec(OF_ONE * old + script, {"__name__": "__main__"})

    if HUNTING:
        return run_here
    return run_on_cuda if torch.cuda.is_available() else run


BEGAN: dict[str, dict[int, Any]] = {}


@pytest.fixture(autouse=True)
def _random_numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """Each test draws what it would draw alone: PyTorch's generator, which no process seeds alike, and those that a
    file's tests share begin anew."""
    torch.manual_seed(0)
    module = getattr(request, "module", None)
    found = [value for value in vars(module).values() if isinstance(value, np.random.Generator)] if module else []
    if found:
        states = BEGAN.setdefault(module.__name__, {id(g): g.bit_generator.state for g in found})
        for generator in found:
            generator.bit_generator.state = states[id(generator)]


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a file draws while it is imported, the weights of a model in a list of cases, is the same each time."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _products_as_they_were(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a GPU a test that switches TF32 on, as a task's trainer does, leaves it on for no other."""
    if request.node.get_closest_marker("cuda") is None:
        yield
        return
    from koopsim.engine.as_it_was import torch_as_it_was

    with torch_as_it_was():
        yield


GPU = re.compile(r"CUDA|GPU")
NOT_TO_BE_HAD = re.compile(  # no package brings these: rights, programs, data sets of hundreds of megabytes
    r"no clone|right to mount|may read everything|Chromium|compiler|is not in /|data set is not here|SCIPY_ARRAY_API|"
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
