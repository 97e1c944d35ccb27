"""A seeded mutation run of our own: `make mutants`. Do the tests notice when the code is wrong?

    rooms -> places that can be changed -> a seeded draw -> the tests of that room, in a fork -> noticed or survived

A fork of a process that has imported PyTorch and pytest, and nothing of ours, takes the changed module in place of the
one on disk (nothing is written to the source tree) and runs the tests that mirror it. Survivors are listed: each is a
hole in the tests, or an equivalent. Counts go to results/mutants.json.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from changes import mutant, places

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "koopsim"
ROOMS = ("nn", "implicit", "spectral", "engine", "tasks", "datasets", "searching", "sklearn")
LEFT_OUT = (
    "kernels",
    "plots",
    "spectral/summary",
    "__init__",
    "capture",
    "cuda",
    "ray",
    "inverse_kernels",
    "splitting_kernels",
)  # a GPU's, pictures
EXTRA = {
    "engine": ["tests/test_training.py"],
    "tasks": ["tests/test_training.py", "tests/test_constants.py"],
    "nn": ["tests/test_constants.py", "tests/test_presets.py"],
    "datasets": ["tests/test_constants.py", "tests/cli/test_data.py"],
    "searching": ["tests/cli/test_tune.py"],
    "implicit": ["tests/test_constants.py"],
    "spectral": ["tests/test_constants.py", "tests/cli/test_spectrum.py", "tests/cli/test_forecast.py"],
}
SECONDS = 300.0  # for the tests of one mutant; one that takes longer is counted by itself, neither noticed nor not


class Changed(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Gives one module of ours another source."""

    def __init__(self, name: str, path: Path, source: str):
        self.name, self.path, self.source = name, path, source

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self, origin=str(self.path)) if name == self.name else None

    def get_filename(self, name: str) -> str:
        return str(self.path)

    def get_data(self, path: Any) -> bytes:
        return self.source.encode()


def files() -> list[Path]:
    found = [f for room in ROOMS for f in sorted((SOURCE / room).rglob("*.py"))]
    return [f for f in found if not any(word in str(f.relative_to(SOURCE)) for word in LEFT_OUT)]


def known_rooms() -> list[str]:
    return [room for room in ROOMS if any(room in f.parts for f in files())]


def tests_of(file: Path) -> list[str]:
    """The tests that mirror a file: its own first, then those of its room that name it or what it defines, then all."""
    room = file.relative_to(SOURCE).parts[0]
    found = [ROOT / e for e in EXTRA.get(room, []) if (ROOT / e).exists()]
    found += sorted((ROOT / "tests" / room).rglob("test_*.py"))
    defined = [n.name for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    names = {file.stem, *(name for name in defined if not name.startswith("_"))}

    def distance(test: Path) -> tuple[bool, int]:
        words = set(re.findall(r"\w+", test.read_text()))
        return not test.stem.startswith(f"test_{file.stem}"), -len(names & words)

    return [str(test) for test in (*sorted(found, key=distance), ROOT / "tests" / "test_ledger.py")]


def draw(seed: int, count: int) -> list[tuple[Path, int]]:
    """So many places, files by how many they have."""
    known = [(f, i) for f in files() for i in range(len(places(ast.parse(f.read_text()))))]
    return random.Random(seed).sample(known, min(count, len(known)))


FAILING: list[str] = []  # tests that fail on unchanged code, here: they notice nothing


def judged(job: tuple[int, Path, int]) -> dict[str, Any]:
    """What became of one mutant."""
    number, file, place = job
    if place < 0:  # the control: nothing changed, so nothing may be noticed
        source, line, words = file.read_text(), 0, "nothing"
    else:
        source, line, words = mutant(file.read_text(), place, number)
    where = f"{file.relative_to(ROOT)}:{line}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="koopsim-mutant-") as scratch:
        pid = os.fork()
        if not pid:
            _test(file, source, Path(scratch), first=place >= 0)
        status = _wait(pid)
        by = (Path(scratch) / "by").read_text() if (Path(scratch) / "by").exists() else ""
    fate = {0: "survived", -9: "too long"}.get(status, "noticed")
    return {
        "number": number,
        "where": where,
        "change": words,
        "fate": fate,
        "by": by.strip() if fate == "noticed" else "",
        "seconds": round(time.monotonic() - began, 1),
    }


def _test(file: Path, source: str, scratch: Path, first: bool) -> None:
    """The child: never returns. It ends with the first failure, or lists them all."""
    status = 3
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.chdir(ROOT)
        name = "koopsim." + ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        sys.meta_path.insert(0, Changed(name, file, source))
        import pytest

        class Failed:
            """Writes down which tests fail."""

            def pytest_runtest_logreport(self, report: Any) -> None:
                if report.failed:
                    with (scratch / "by").open("a") as kept:
                        print(report.nodeid, file=kept)

        status = int(pytest.main([
            "-q", *(["-x"] if first else []), "-m", "not slow", "-p", "no:cacheprovider", "--no-header",
            f"--basetemp={scratch / 't'}", *(f"--deselect={test}" for test in FAILING), *tests_of(file),
        ], plugins=[Failed()]))  # fmt: skip
    finally:
        os._exit(status)


def _wait(pid: int) -> int:
    waited = 0.0
    while waited < SECONDS:
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(code)
        time.sleep(0.05)
        waited += 0.05  # not the clock: time in which this process was stopped is nobody's fault
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--mutants", type=int, default=400)
    parser.add_argument(
        "--minutes", type=float, default=None, help="stop drawing after so long; what was judged counts"
    )
    parser.add_argument("--jobs", "--workers", dest="workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--skip-controls", action="store_true", help="do not look whether unchanged code passes first")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    began, found = time.monotonic(), []
    context = multiprocessing.get_context("fork")
    if not given.skip_controls:
        with context.Pool(given.workers) as pool:
            controls = [(-1, next(f for f in files() if room in f.parts), -1) for room in known_rooms()]
            failing = {test for one in pool.map(judged, controls, 1) for test in one["by"].split("\n") if test}
        FAILING.extend(sorted(failing))
    print("tests that fail on unchanged code, left out:", *(FAILING or ["none"]), sep="\n  ", file=sys.stderr)
    jobs = [(n, *place) for n, place in enumerate(draw(given.seed, given.mutants))]
    with context.Pool(given.workers) as pool:
        for one in pool.imap_unordered(judged, jobs):
            found.append(one)
            print(json.dumps(one), file=sys.stderr, flush=True)
            if given.minutes and time.monotonic() - began > 60 * given.minutes:
                pool.terminate()
                break
    counts = Counter(one["fate"] for one in found)
    share = counts["noticed"] / max(1, counts["noticed"] + counts["survived"])
    print(f"seed {given.seed}: {len(found)} mutants of {len(jobs)} drawn, {counts['noticed']} noticed, {share:.1%}")
    if given.out:
        from koopsim.runs import environment, write_json

        kept = {"seed": given.seed, "drawn": len(jobs), "judged": len(found), **counts, "share": share}
        kept |= {"tests_left_out": FAILING, "rooms": known_rooms()}
        seconds = {"seconds": time.monotonic() - began, "workers": given.workers}
        survivors = sorted((one for one in found if one["fate"] == "survived"), key=lambda one: one["where"])
        write_json(given.out, kept | seconds | {"survivors": survivors, "environment": environment()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
