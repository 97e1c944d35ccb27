"""One pytest session for all mutants: everything is imported and collected once, each mutant is a fork of it.

    a mutant inside a function    the fork gives the living function the changed code, and runs the tests that reach it
    one that an import runs       the fork executes the changed module anew and holds it against the ledger; if that
    (a constant, a default)       sees nothing, a fresh process imports it and runs the ledger's and the file's tests

What is not noticed in its share of tests has survived. A fork that dies or hangs harms nobody.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from reach import ROOT, Lines, Tests, place_of

SOURCE = ROOT / "src" / "koopsim"
LEDGER = "tests/test_ledger.py::test_no_default_and_no_named_number_has_changed"
Job = tuple[int, Path, Any]  # its number, its file, what makes it


class Hunter:
    """The pytest plugin: takes the place of the loop over the tests."""

    def __init__(self, work: Callable[[Hunter], None]):
        self.work, self.items, self.failed, self.error = work, {}, "", None
        self.called: set[tuple[str, str]] = set()

    def pytest_sessionstart(self) -> None:
        sys.setprofile(self._call)  # which functions an import calls: their mutants need a fresh one

    def _call(self, frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            self.called.add((frame.f_code.co_filename, frame.f_code.co_qualname.split(".<locals>")[0]))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        sys.setprofile(None)
        self.session, self.items = session, {item.nodeid: item for item in session.items}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed or (report.skipped and not self.failed):
            self.failed = report.nodeid if report.failed else "skipped"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool:
        gc.collect()
        gc.freeze()
        try:
            self.work(self)
        except BaseException as error:  # pytest would call it an internal error and go on
            self.error = error
        return True

    def run(self, names: list[str], after: Callable[[str, float, bool], None] | None = None) -> str:
        """The first of these tests that fails, or nothing; in a fork."""
        chosen = [self.items[name] for name in names if name in self.items]
        for item, following in zip(chosen, [*chosen[1:], None], strict=False):
            began, self.failed = worked(), ""
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if after:
                after(item.nodeid, worked() - began, not self.failed)
            elif self.failed and self.failed != "skipped":
                return self.failed
        return ""

    def forked(
        self, jobs: list[Any], do: Callable[[Any], Any], workers: int, limit: float
    ) -> Iterator[tuple[Any, Any]]:
        """(job, what `do` gave, or None where it died or took longer than `limit`), as they end."""
        waiting, running = list(reversed(jobs)), {}
        with tempfile.TemporaryDirectory(prefix="koopsim-mutants-") as scratch:
            while waiting or running:
                while waiting and len(running) < workers:
                    job, out = waiting.pop(), Path(tempfile.mkdtemp(dir=scratch))
                    running[self._begun(job, do, out)] = job, out, time.monotonic()
                time.sleep(0.01)
                for pid, (job, out, since) in list(running.items()):
                    done = os.waitpid(pid, os.WNOHANG)[0]
                    if not done and time.monotonic() - since > limit:
                        os.killpg(pid, signal.SIGKILL)
                        done = os.waitpid(pid, 0)[0]
                    if done:
                        del running[pid]
                        told = out / "told"
                        yield job, json.loads(told.read_text()) if told.exists() else None
                        shutil.rmtree(out, ignore_errors=True)

    def _begun(self, job: Any, do: Callable[[Any], Any], out: Path) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            self.session.config._tmp_path_factory._basetemp = out  # type: ignore[attr-defined]
            try:
                text = json.dumps(do(job))
            except BaseException as error:
                text = json.dumps({"error": repr(error)})
            (out / "part").write_text(text)
            (out / "part").rename(out / "told")
        finally:
            os._exit(0)


def worked() -> float:
    """Seconds of processor time, children's too: a test is as dear on a crowded machine as on an idle one."""
    return sum(os.times()[:4])


def codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from codes(inner)


def give_code(file: Path, tree: ast.Module, name: str) -> int:
    """Living functions of that name, and those inside, have the code of the changed tree; how many had another."""
    new = {(c.co_qualname, c.co_firstlineno): c for c in codes(compile(tree, str(file), "exec"))}
    given, gc_was = 0, gc.isenabled()
    gc.disable()
    gc.unfreeze()
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename == str(file):
            code = new.get((thing.__code__.co_qualname, thing.__code__.co_firstlineno))
            same = code is None or code.co_qualname.split(".<locals>")[0] != name or code == thing.__code__
            if code is not None and not same:
                thing.__code__ = code
                given += 1
    if gc_was:
        gc.enable()
    return given


def ledger_sees(file: Path, tree: ast.Module) -> bool:
    """Whether the ledger notices the changed module executed anew, and not the unchanged one."""
    import test_ledger

    def seen(source: ast.Module) -> bool:
        name = "koopsim." + ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        fresh = ModuleType(name)
        fresh.__dict__.update(
            __file__=str(file), __package__=name.rpartition(".")[0], __spec__=sys.modules[name].__spec__
        )
        before, sys.modules[name] = sys.modules[name], fresh
        try:
            exec(compile(source, str(file), "exec"), fresh.__dict__)
            test_ledger.test_no_default_and_no_named_number_has_changed()
        except Exception:
            return True
        finally:
            sys.modules[name] = before
        return False

    return seen(tree) and not seen(ast.parse(file.read_text()))


def fresh_process(file: Path, number: int, place: int, tests: list[str], limit: float) -> str:
    """The first test that fails where the changed module is imported as any other."""
    with tempfile.TemporaryDirectory(prefix="koopsim-mutant-") as scratch:
        (Path(scratch) / "tests").write_text("\n".join(tests))
        command = [sys.executable, str(Path(__file__).parent / "hunt.py"), "--one", str(file), str(number), str(place)]
        try:
            done = subprocess.run([*command, scratch], capture_output=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            return "too long"
        by = Path(scratch) / "by"
        return by.read_text() if by.exists() else "it ended" if done.returncode < 0 else ""


def traced(hunter: Hunter, names: list[str], limit: float) -> list[Any]:
    """In a fork: [(test, seconds, passed, [(file, line)])], dear ones cut off at the limit."""
    lines, found = Lines(), []

    def over(number: int, frame: Any) -> None:
        raise TimeoutError("too long to be shown a mutant")

    signal.signal(signal.SIGPROF, over)
    signal.signal(signal.SIGALRM, over)
    made: dict[str, set[Any]] = defaultdict(set)  # by a fixture that several tests share: each of them reaches it
    for name in names:
        defined = getattr(hunter.items[name], "_fixtureinfo", None)
        known = defined.name2fixturedefs.items() if defined else ()
        shared = [key for key, found_ in known if found_ and found_[-1].scope in ("module", "class", "package")]
        ended: list[Any] = []
        own = 60.0 if name == LEDGER else 5 * limit if "in_triton" in hunter.items[name].fixturenames else limit
        lines.begin()
        signal.setitimer(signal.ITIMER_PROF, own)
        signal.setitimer(signal.ITIMER_REAL, 8 * own)  # for one that waits
        try:
            hunter.run([name], lambda test, s, ok, ended=ended: ended.append((s, ok)))
        except BaseException:  # the alarm rang between two tests: pytest cannot go on from there
            break
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        seen = set(lines.end())
        for key in shared:
            made[key] |= seen
            seen = seen | made[key]
        if ended:
            found.append([name, round(ended[0][0], 3), ended[0][1], sorted(seen)])
    return found


def mapped(hunter: Hunter, workers: int, limit: float = 4.0) -> Tests:
    """Which test reaches what, each file of tests in a fork."""
    by_file = defaultdict(list)
    for name in hunter.items:
        by_file[name.split("::")[0]].append(name)
    pieces = [names[at : at + 25] for names in by_file.values() for at in range(0, len(names), 25)]
    found = Tests()
    for _, told in hunter.forked(pieces, lambda names: traced(hunter, names, limit), workers, 900.0):
        if not isinstance(told, list):
            print(f"a piece of the map is lost: {told}", file=sys.stderr)
            continue
        for name, seconds, passed, lines in told:
            if passed:
                found.add(name, seconds, {place_of(file, line) for file, line in lines} - {None})
    return found
