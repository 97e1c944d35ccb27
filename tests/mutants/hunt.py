"""A seeded mutation run of our own: `make mutants`. Do the tests notice when the code is wrong?

    rooms -> places that can be changed -> a seeded draw -> the tests that reach the place, in a fork -> noticed or not

Nothing is written to the source tree. Tests that reach the changed line run first from the file's own and the room's,
then the cheapest, for WORTH seconds at most; those that do not pass on unchanged code are not asked (reach.py). Places
where nothing is changed are shown to the tests, too: none may be noticed. Survivors are listed: each is a hole in the
tests, or an equivalent. Counts go to results/mutants.json.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from changes import changes, mutant, places
from reach import ROOT, Tests, function_at
from session import LEDGER, SOURCE, Hunter, fresh_process, give_code, ledger_sees, mapped

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
WORTH = 15.0  # seconds of tests (as they took on unchanged code) that a mutant is shown to
SECONDS = 150.0  # for one mutant; one that takes longer is counted by itself, neither noticed nor not
THROUGH = (
    "test_ledger", "test_constants", "test_presets", "test_training", "test_schedule", "test_own_module",
    "test_predicting", "test_run_numbers", "test_old_files", "test_refusals",
    "cli/test_forecast", "cli/test_spectrum", "cli/test_data",
    "cli/test_table_verbs", "cli/test_sequence_verbs",
)  # fmt: skip


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


def files(rooms: Sequence[str] = ROOMS) -> list[Path]:
    found = [f for room in rooms for f in sorted((SOURCE / room).rglob("*.py"))]
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


def draw(seed: int, count: int, rooms: Sequence[str]) -> list[tuple[Path, int]]:
    """So many places, files by how many they have."""
    known = [(f, i) for f in files(rooms) for i in range(len(places(ast.parse(f.read_text()))))]
    return random.Random(seed).sample(known, min(count, len(known)))


def chosen(known: Tests, file: Path, line: int) -> list[str]:
    """The tests shown a mutant, those most likely to notice first."""
    inside, stem = str(file.relative_to(SOURCE)), f"test_{file.stem}"
    found = known.of_lines(inside, lines_of(file, line)) or known.of_file(inside)
    room = f"tests/{inside.split('/')[0]}/"

    def distance(name: str) -> tuple[int, float]:
        near = Path(name.split("::")[0]).stem.startswith(stem)
        cheap = known.seconds[name] < 0.3
        return 0 if near and cheap else 1 if name.startswith(room) and cheap else 2 if cheap else 3, known.seconds[name]

    some, spent = [], 0.0
    for name in sorted(found, key=distance):
        spent += known.seconds[name]
        if spent > WORTH and some:
            break
        some.append(name)
    return some


def judge(hunter: Hunter, known: Tests, job: tuple[int, Path, int]) -> dict[str, Any]:
    """What became of one mutant; in a fork."""
    number, file, place = job
    tree, line, words = mutant(file.read_text(), place, abs(number))
    if number < 0:  # a control
        tree, words = ast.parse(file.read_text()), "nothing"
    tests, began, how = chosen(known, file, line), time.monotonic(), "in a function"
    name = name_at(file, line)
    if number < 0 or (name and (str(file), name) not in hunter.called and give_code(file, tree, name)):
        by = hunter.run(tests)
    elif ledger_sees(file, tree):
        by, how = LEDGER, "at import"
    else:
        by, how = fresh_process(file, number, place, [LEDGER, *tests], SECONDS - 30), "at import"
    fate = "too long" if by == "too long" else "noticed" if by else "survived"
    told = {"number": number, "where": f"{file.relative_to(ROOT)}:{line}", "change": words, "fate": fate, "by": by}
    return told | {"how": how, "tests": len(tests), "seconds": round(time.monotonic() - began, 1)}


def name_at(file: Path, line: int) -> str:
    """The function whose body a line is in; none of a default or a decorator, which an import runs."""
    found = function_at(str(file.relative_to(SOURCE)), line)
    if found is None:
        return ""
    heads = (n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.FunctionDef))
    node = next(n for n in heads if min([n.lineno, *(d.lineno for d in n.decorator_list)]) == found[0])
    return found[2] if line >= node.body[0].lineno else ""


def one(file: Path, number: int, place: int, scratch: Path) -> int:
    """A fresh process for a mutant that an import runs: the tests named in `scratch`, until one fails."""
    tree, _, _ = mutant(file.read_text(), place, number)
    name = "koopsim." + ".".join(file.relative_to(SOURCE).with_suffix("").parts)
    sys.meta_path.insert(0, Changed(name, file, ast.unparse(tree)))
    tests = (scratch / "tests").read_text().splitlines()
    place_in = {test: n for n, test in enumerate(tests)}

    class Chosen:
        """These tests in this order; the first that fails is written down."""

        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            items[:] = sorted((i for i in items if i.nodeid in place_in), key=lambda item: place_in[item.nodeid])

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                (scratch / "by").write_text(report.nodeid)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                (scratch / "by").write_text(f"{report.nodeid}, which cannot be imported")

    where = list(dict.fromkeys(test.split("::")[0] for test in tests))
    return session(["-x", f"--basetemp={scratch / 't'}", *where], Chosen())


def session(arguments: list[str], plugin: Any) -> int:
    os.chdir(ROOT)
    quiet = [
        "-q",
        "-s",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "-W",
        "ignore::pytest.PytestWarning",
    ]
    return int(pytest.main([*quiet, *arguments], plugins=[plugin]))


def asked(words: list[str]) -> list[tuple[int, Path, int]]:
    """Every change at the `FILE:LINE`s that were named, or with `=` behind it the one that is called so."""
    found = []
    for word in words:
        where, _, wanted = word.partition("=")
        name, line = where.rsplit(":", 1)
        file = (ROOT / name).resolve()
        for place, node in enumerate(places(ast.parse(file.read_text()))):
            named = [said for said, _ in changes(node)]
            if getattr(node, "lineno", 0) == int(line) and (not wanted or wanted in named):
                found.append((named.index(wanted) if wanted else 0, file, place))
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--mutants", type=int, default=400)
    parser.add_argument("--controls", type=int, default=16, help="places where nothing is changed: no test may notice")
    parser.add_argument("--rooms", nargs="*", default=ROOMS, help="draw from these alone")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long; what was judged counts")
    parser.add_argument("--jobs", "--workers", dest="workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--reach", nargs="*", type=Path, default=[], help="take the map of tests and lines from here")
    parser.add_argument("--map", type=Path, default=None, help="make that map and keep it here")
    parser.add_argument("--tests", nargs="*", type=Path, default=None, help="collect these files of tests alone")
    parser.add_argument(
        "--only", nargs="*", default=None, metavar="FILE:LINE[=CHANGE]", help="changes at these places alone"
    )
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--one", nargs=4, default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    given, began = options(), time.monotonic()
    os.environ |= {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}  # kernels' tests in this process (conftest.py)
    import torch

    torch.set_num_threads(1)
    if given.one:
        file, number, place, scratch = given.one
        return one(Path(file), int(number), int(place), Path(scratch))
    tests = given.tests or [
        *(f for room in ROOMS for f in sorted((ROOT / "tests" / room).rglob("test_*.py"))),
        *(ROOT / "tests" / f"{name}.py" for name in THROUGH),
    ]
    tests = [str(f.resolve()) for f in tests if "cuda" not in f.name and "compile" not in f.name]
    hunter = Hunter(lambda hunter: hunt(hunter, given, began))
    sys.path.insert(0, str(ROOT / "tests"))
    session(tests, hunter)
    if hunter.error:
        raise hunter.error
    return 0


def hunt(hunter: Hunter, given: argparse.Namespace, began: float) -> None:
    for file in files():  # those that are imported late are living too
        importlib.import_module("koopsim." + ".".join(file.relative_to(SOURCE).with_suffix("").parts))
    known = Tests.kept(given.reach) if given.reach else mapped(hunter, given.workers)
    say(f"{len(hunter.items)} tests, {len(known.seconds)} known to pass; after {time.monotonic() - began:.0f} s")
    if given.map:
        known.keep(given.map)
    drawn = draw(given.seed, given.mutants + given.controls, given.rooms)
    jobs = [(-1, *place) for place in drawn[given.mutants :]]
    jobs += [(n, *place) for n, place in enumerate(drawn[: given.mutants])]
    jobs, found = asked(given.only) if given.only else jobs, []
    for job, told in hunter.forked(jobs, lambda job: judge(hunter, known, job), given.workers, SECONDS):
        if told is None or "error" in told:
            _, line, words = mutant(job[1].read_text(), job[2], abs(job[0]))
            where = f"{job[1].relative_to(ROOT)}:{line}"
            told = {"number": job[0], "where": where, "change": words, "fate": "too long"} | (told or {})
        found.append(told)
        say(json.dumps(told))
        if given.minutes and time.monotonic() - began > 60 * given.minutes:
            break
    report(found, given, known, time.monotonic() - began)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def share_of(mutants: list[dict[str, Any]]) -> dict[str, Any]:
    """How many were judged, and what share of those that ended was noticed."""
    counts = Counter(told["fate"] for told in mutants)
    share = counts["noticed"] / max(1, counts["noticed"] + counts["survived"])
    return {"judged": len(mutants), **counts, "share": round(share, 4)}


def report(found: list[dict[str, Any]], given: argparse.Namespace, known: Tests, seconds: float) -> None:
    mutants = [told for told in found if told["number"] >= 0]
    alarms = [told for told in found if told["number"] < 0 and told["fate"] != "survived"]
    rooms = {room: share_of([told for told in mutants if told["where"].split("/")[2] == room]) for room in given.rooms}
    say(f"seed {given.seed}: {share_of(mutants)}; {len(alarms)} false alarms; {json.dumps(rooms)}")
    if given.out:
        from koopsim.runs import environment, write_json

        kept = {"seed": given.seed, "drawn": given.mutants, **share_of(mutants), "by_room": rooms}
        kept |= {"controls": len(found) - len(mutants), "false_alarms": alarms, "earlier": earlier(given.out)}
        kept |= {"tests": len(known.seconds), "worth": WORTH, "seconds": seconds, "workers": given.workers}
        survivors = sorted((told for told in mutants if told["fate"] != "noticed"), key=lambda told: told["where"])
        write_json(given.out, kept | {"survivors": survivors, "environment": environment()})


def earlier(file: Path) -> list[dict[str, Any]]:
    """The counts of the runs that were recorded there before, oldest first: a good one does not hide a bad one."""
    if not file.exists():
        return []
    was = json.loads(file.read_text())
    own = {key: was.get(key) for key in ("seed", "judged", "noticed", "survived", "too long", "share")}
    commit = was.get("environment", {}).get("commit")
    return [*was.get("earlier", []), own | {"commit": commit}]


if __name__ == "__main__":
    sys.exit(main())
