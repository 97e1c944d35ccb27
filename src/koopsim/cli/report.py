"""koopsim report: the paper's tables and figures from finished runs, and a page to look at them."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from koopsim.cli import parse
from koopsim.errors import KoopsimError
from koopsim.files.json import json_text

if TYPE_CHECKING:
    from koopsim.report import Findings, Report

ON_TERMINAL = ("table1", "table2", "table3", "speed")  # the rest is for the page


@dataclass(frozen=True)
class Arguments:
    """A page, tables and figures of finished runs and searches, each published value beside ours."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUNS ...")]
    """Folders that hold run directories and searches, at any depth, or result files kept from them."""
    out: Path = Path("report")
    """Where the files go; index.html is the page. A report of ours that is there is replaced."""
    overwrite: bool = False
    """Also replace files of the same names that koopsim did not write."""
    json: bool = False
    """Print what was written and skipped as JSON on standard output."""


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "report")
    from koopsim.report import build_report, find

    if not arguments.runs:
        raise KoopsimError("Name at least one folder of runs: koopsim report runs --out report.")
    found = find(arguments.runs)
    if not found.runs and not found.searches:
        why = f" Skipped: {'; '.join(found.skipped)}." if found.skipped else ""
        raise KoopsimError(f"No finished runs in {', '.join(map(str, arguments.runs))}.{why}")
    report = build_report(found, arguments.out, arguments.overwrite)
    if arguments.json:
        counts = {"runs": len(found.runs), "searches": len(found.searches)}
        files = [str(file) for file in report.files]
        print(json_text({**counts, "page": files[0], "files": files, "skipped": report.left_out}))
        return 0
    show_report(found, report)
    return 0


def show_report(found: "Findings", report: "Report") -> None:
    """The tables that fit a terminal, and where the rest is."""
    from koopsim.report.other_tasks import PREFIX

    for name, table in report.tables.items():
        if name in ON_TERMINAL or name.startswith(PREFIX):
            show(table)
    for line in report.left_out:
        print(f"skipped {line}", file=sys.stderr)
    print(f"{found.counts()}, on one page: {report.files[0]}")
    print(f"tables and figures beside it: {_grouped(report.files[1:])}")


def _grouped(files: list[Path]) -> str:
    """table1.md/csv/tex, figure4.png/svg, ..."""
    forms: dict[str, list[str]] = {}
    for file in files:
        forms.setdefault(file.stem, []).append(file.suffix.removeprefix("."))
    return ", ".join(f"{stem}.{'/'.join(kinds)}" for stem, kinds in forms.items())


def show(table) -> None:
    """The table on the terminal: as many of its columns as fit, for they stand in order of weight; else row by row."""
    from shutil import get_terminal_size

    from koopsim.cli.terminal import show_table

    widths = [max(len(row[i]) for row in (table.head, *table.rows)) for i in range(len(table.head))]
    room = get_terminal_size().columns - 2
    fits = [n for n in range(table.words + 1, len(widths) + 1) if sum(w + 2 for w in widths[:n]) <= room]
    count = max(fits, default=len(widths))
    left = table.head[count:]
    more = f" Not shown here: {', '.join(left)}." if left else ""
    rows = [row[:count] for row in table.rows]
    show_table(table.title, table.head[:count], rows, table.words, table.note + more)
