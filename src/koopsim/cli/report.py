"""koopsim report: the paper's tables and figures from finished runs."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from koopsim.cli import parse
from koopsim.errors import KoopsimError


@dataclass(frozen=True)
class Arguments:
    """Tables and figures of finished runs, each published value beside ours."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders that hold run directories, at any depth, or result files kept from them."""
    out: Path = Path("report")
    """Where the files go."""
    json: bool = False
    """Print what was written and skipped as JSON on standard output."""


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "report")
    from koopsim.report import classification_table, collect, copy_memory_table, figure3, learning_curves
    from koopsim.runs import write_atomically

    if not arguments.runs:
        raise KoopsimError("Name at least one folder of runs: koopsim report runs --out report.")
    results, skipped = collect(list(arguments.runs))
    tables = {"table1": copy_memory_table(results), "table2": classification_table(results)}
    tables = {name: table for name, table in tables.items() if table is not None}
    if not tables:
        why = f" Skipped: {'; '.join(skipped)}." if skipped else ""
        raise KoopsimError(f"No finished runs in {', '.join(map(str, arguments.runs))}.{why}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    files = []
    for name, table in tables.items():
        for form, text in (("md", table.markdown()), ("csv", table.csv())):
            files.append(arguments.out / f"{name}.{form}")
            write_atomically(files[-1], (text + "\n").encode())
    files += figure3(results, arguments.out) + learning_curves(results, arguments.out)
    if arguments.json:
        print(json.dumps({"runs": len(results), "files": [str(f) for f in files], "skipped": skipped}, indent=2))
        return 0
    for table in tables.values():
        show(table)
    for line in skipped:
        print(f"skipped {line}", file=sys.stderr)
    print(f"{len(results)} runs; tables and figures are in {arguments.out}/: {', '.join(f.name for f in files)}")
    return 0


def show(table) -> None:
    """The table on the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    shown = RichTable(title=table.title, caption=table.note, box=box.SIMPLE, padding=(0, 1, 0, 0))
    shown.title_justify = shown.caption_justify = "left"
    for i, column in enumerate(table.head):
        shown.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    for row in table.rows:
        shown.add_row(*row)
    Console().print(shown)
