"""Which tests reach which lines of the library: the tests that may notice a mutant are those that run its line.

    per test: the lines it ran (sys.monitoring, or a trace before Python 3.12), its seconds -> {place: tests}

A place is a line counted from the head of the function it is in, so that a map outlives changes elsewhere in a file.
A test that does not pass on unchanged code, or is long, is never asked.
"""

from __future__ import annotations

import ast
import functools
import gzip
import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parent.parent.parent
SOURCE = str(ROOT / "src" / "koopsim") + os.sep
CALLS = 8  # of a function that are traced in a test, where that is slow (before Python 3.12)
TOOL = 4  # sys.monitoring's number for us


def ours(code: CodeType) -> bool:
    """A file of the library; templates of reports are no Python."""
    return code.co_filename.startswith(SOURCE) and code.co_filename.endswith(".py")


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
        if ours(code):
            self.seen.add((code.co_filename[len(SOURCE) :], line))
        return self.monitoring.DISABLE

    def _trace(self, frame: Any, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not ours(code) or self.calls[code] >= CALLS:
            return None
        self.calls[code] += 1
        return self._inside(frame, event, arg)

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


@functools.cache
def functions(file: str) -> list[tuple[int, int, str]]:
    """(first line, last line, name) of the outermost functions of a file, methods among them."""
    found = []

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                found.append((first, child.end_lineno or first, f"{prefix}{child.name}"))
            elif isinstance(child, ast.ClassDef):
                walk(child, f"{prefix}{child.name}.")
            else:
                walk(child, prefix)

    walk(ast.parse((Path(SOURCE) / file).read_text()), "")
    return found


def function_at(file: str, line: int) -> tuple[int, int, str] | None:
    return next((f for f in functions(file) if f[0] <= line <= f[1]), None)


def place_of(file: str, line: int) -> str | None:
    """A line's name that outlives changes elsewhere; None outside of functions."""
    inside = function_at(file, line)
    return None if inside is None else f"{file}|{inside[2]}|{line - inside[0]}"


class Tests:
    """Tests with their seconds, and which of them reach a place."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.at: dict[str, list[str]] = {}

    def add(self, name: str, seconds: float, places: Any) -> None:
        self.seconds[name] = seconds
        for place in places:
            self.at.setdefault(place, []).append(name)

    def of_lines(self, file: str, lines: range) -> set[str]:
        return {name for line in lines for name in self.at.get(place_of(file, line) or "", [])}

    def of_file(self, file: str) -> set[str]:
        return {name for place, names in self.at.items() if place.startswith(f"{file}|") for name in names}

    def keep(self, path: Path) -> None:
        number = {name: n for n, name in enumerate(self.seconds)}
        at = {place: [number[name] for name in names] for place, names in self.at.items()}
        with gzip.open(path, "wt") as file:
            json.dump({"seconds": self.seconds, "at": at}, file)

    @staticmethod
    def kept(paths: list[Path]) -> Tests:
        found = Tests()
        for path in paths:
            with gzip.open(path, "rt") as file:
                said = json.load(file)
            names = list(said["seconds"])
            found.seconds |= said["seconds"]
            for place, numbers in said["at"].items():
                found.at.setdefault(place, []).extend(names[n] for n in numbers)
        return found
