"""A seeded mutation run of our own: `make mutants`. Do the tests notice when the code is wrong?

    rooms -> places that can be changed -> a seeded draw -> the tests that reach the place, in a fork -> noticed or not

A fork of a process that has imported PyTorch and pytest, and nothing of ours, takes the changed module in place of the
one on disk (nothing is written to the source tree) and runs the tests that reach the changed line (reach.py), those of
the file's own room first, for a minute's worth at most. Survivors are listed: each is a hole in the tests, or an
equivalent. Tests that fail on unchanged code are not asked. Counts go to results/mutants.json.
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
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from changes import mutant, places
from reach import ended, keep, kept, quiet_tests, reach

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
WORTH = 30.0  # seconds of tests (as they took on unchanged code) that a mutant is shown to
SECONDS = 300.0  # for the tests of one mutant; one that takes longer is counted by itself, neither noticed nor not
THROUGH = (
    "test_ledger", "test_constants", "test_presets", "test_training", "test_schedule", "test_doors", "test_own_module",
    "test_predicting", "test_run_numbers", "cli/test_forecast", "cli/test_spectrum", "cli/test_data",
    "cli/test_table_verbs",
    "cli/test_sequence_verbs", "cli/test_tune", "cli/test_train_images",
)  # fmt: skip
LEDGER = "tests/test_ledger.py"
REACH: dict[str, Any] = {}  # reach.py's map, of this process and its forks


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


def lines_of(file: Path, line: int) -> range:
    """The lines of the innermost statement round a line; of an `if` or `for` its head alone."""
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            if node.lineno <= line <= max(last or 0, node.lineno):
                found = range(node.lineno, max(last or 0, node.lineno) + 1)
    return found


def tests_of(file: Path, line: int) -> list[str]:
    """Those shown a mutant: the ledger, then those that reach its line (of what an import runs: its file)."""
    inside, names, seconds = str(file.relative_to(SOURCE)), REACH["names"], REACH["seconds"]
    found = {n for at in lines_of(file, line) for n in REACH["lines"].get(f"{inside}:{at}", [])}
    imported = not found
    if imported:
        found = {n for at, tests in REACH["lines"].items() if at.rsplit(":", 1)[0] == inside for n in tests}
    room = f"tests/{inside.split('/')[0]}/"

    def distance(number: int) -> tuple[bool, bool, float]:
        name = names[number]
        return (
            not Path(name.split("::")[0]).stem.startswith(f"test_{file.stem}"),
            not name.startswith(room),
            seconds[number],
        )

    chosen, spent = [name for name in names if imported and name.startswith(LEDGER)], 0.0
    for number in sorted(found, key=distance):
        spent += seconds[number]
        if spent > WORTH and chosen:
            break
        chosen.append(names[number])
    return chosen


def draw(seed: int, count: int) -> list[tuple[Path, int]]:
    """So many places, files by how many they have."""
    known = [(f, i) for f in files() for i in range(len(places(ast.parse(f.read_text()))))]
    return random.Random(seed).sample(known, min(count, len(known)))


def judged(job: tuple[int, Path, int]) -> dict[str, Any]:
    """What became of one mutant."""
    number, file, place = job
    source, line, words = mutant(file.read_text(), place, number)
    if number < 0:  # a control: nothing changed, so nothing may be noticed
        source, words = file.read_text(), "nothing"
    tests = tests_of(file, line)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="koopsim-mutant-") as scratch:
        pid = os.fork()
        if not pid:
            _test(file, source, tests, Path(scratch))
        status = ended(pid, SECONDS)
        by = (Path(scratch) / "by").read_text() if (Path(scratch) / "by").exists() else ""
    fate = "too long" if status == -9 else "noticed" if status in (1, 2) or status < 0 else "survived"
    return {
        "number": number,
        "where": f"{file.relative_to(ROOT)}:{line}",
        "change": words,
        "fate": fate,
        "by": by if fate == "noticed" else "",
        "tests": len(tests),
        "seconds": round(time.monotonic() - began, 1),
    }


class Chosen:
    """The pytest plugin: these tests in this order; the first that fails is written down."""

    def __init__(self, tests: list[str], by: Path):
        self.place, self.by = {name: n for n, name in enumerate(tests)}, by

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.place), key=lambda item: self.place[item.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.by.write_text(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.by.write_text(f"{report.nodeid}, which cannot be imported")


def _test(file: Path, source: str, tests: list[str], scratch: Path) -> None:
    """The child: never returns."""
    status = 3
    try:
        name = "koopsim." + ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        sys.meta_path.insert(0, Changed(name, file, source))
        where = list(dict.fromkeys(name.split("::")[0] for name in tests))
        status = quiet_tests(["-x", *where], [Chosen(tests, scratch / "by")], scratch)
    finally:
        os._exit(status)


def asked(words: list[str]) -> list[tuple[int, Path, int]]:
    """Every change at `FILE:LINE`s that were named."""
    found = []
    for word in words:
        name, line = word.rsplit(":", 1)
        file = (ROOT / name).resolve()
        nodes = places(ast.parse(file.read_text()))
        found += [(0, file, n) for n, node in enumerate(nodes) if getattr(node, "lineno", 0) == int(line)]
    return found


def prepare() -> None:
    """What every fork would import: not ours, and of others only what takes long."""
    import matplotlib  # noqa: F401
    import PIL.Image  # noqa: F401
    import scipy.linalg
    import scipy.optimize  # noqa: F401
    import sklearn.datasets
    import sklearn.linear_model  # noqa: F401
    import torch
    import tyro  # noqa: F401

    torch.set_num_threads(1)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--mutants", type=int, default=400)
    parser.add_argument("--controls", type=int, default=16, help="places where nothing is changed: no test may notice")
    parser.add_argument("--skip-controls", dest="controls", action="store_const", const=0)
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long; what was judged counts")
    parser.add_argument("--jobs", "--workers", dest="workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--reach", nargs="*", type=Path, default=[], help="take the map of tests and lines from here")
    parser.add_argument("--map", type=Path, default=None, help="make that map and keep it here")
    parser.add_argument("--tests", nargs="*", type=Path, default=None, help="map these files of tests alone")
    parser.add_argument("--only", nargs="*", default=None, metavar="FILE:LINE", help="every change at these places")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def mapped(given: argparse.Namespace) -> dict[str, Any]:
    """The rooms' own tests and those that go through several of them, but not the kernels', which take minutes."""
    if given.reach:
        return kept(given.reach)
    tests = given.tests or [
        *(f for room in ROOMS for f in sorted((ROOT / "tests" / room).rglob("test_*.py"))),
        *(ROOT / "tests" / f"{name}.py" for name in THROUGH),
    ]
    return reach([f.resolve() for f in tests if "cuda" not in f.name and f.parent.name != "kernels"], given.workers)


def main() -> int:
    given, began = options(), time.monotonic()
    os.environ["OMP_NUM_THREADS"] = "1"
    prepare()
    REACH.update(mapped(given))
    spent = time.monotonic() - began
    print(f"{len(REACH['names'])} tests pass; mapped after {spent:.0f} s", file=sys.stderr, flush=True)
    if given.map:
        keep(REACH, given.map)
    drawn = draw(given.seed, given.mutants + given.controls)
    jobs = [(-1, *place) for place in drawn[given.mutants :]]
    jobs += [(n, *place) for n, place in enumerate(drawn[: given.mutants])]
    found = judge(asked(given.only) if given.only else jobs, given, began)
    mutants = [one for one in found if one["number"] >= 0]
    counts = Counter(one["fate"] for one in mutants)
    share = counts["noticed"] / max(1, counts["noticed"] + counts["survived"])
    alarms = [one for one in found if one["number"] < 0 and one["fate"] != "survived"]
    print(f"seed {given.seed}: {len(mutants)} mutants, {dict(counts)}, {share:.1%}; {len(alarms)} false alarms")
    if given.out:
        from koopsim.runs import environment, write_json

        said = {"seed": given.seed, "drawn": given.mutants, "judged": len(mutants), **counts, "share": share}
        said |= {"controls": len(found) - len(mutants), "false_alarms": alarms, "rooms": list(ROOMS)}
        said |= {"tests": len(REACH["names"]), "seconds": time.monotonic() - began, "workers": given.workers}
        survivors = sorted((one for one in mutants if one["fate"] == "survived"), key=lambda one: one["where"])
        write_json(given.out, said | {"survivors": survivors, "environment": environment()})
    return 0


def judge(jobs: list[tuple[int, Path, int]], given: argparse.Namespace, began: float) -> list[dict[str, Any]]:
    found = []
    with multiprocessing.get_context("fork").Pool(given.workers) as pool:
        for one in pool.imap_unordered(judged, jobs):
            found.append(one)
            print(json.dumps(one), file=sys.stderr, flush=True)
            if given.minutes and time.monotonic() - began > 60 * given.minutes:
                pool.terminate()
                break
    return found


if __name__ == "__main__":
    sys.exit(main())
