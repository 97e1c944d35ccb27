"""Tables on a terminal of any width: as a table where it fits, else row by row.

    work       ours        against    ms   faster          train step, batch 20
    train ...  sim-single  deq       1.2     8.3x            sim-single, deq
                                                             ms 1.2 · faster 8.3x
"""

from collections.abc import Sequence
from itertools import pairwise

Rows = Sequence[Sequence[str]]


def show_table(title: str, head: Sequence[str], rows: Rows, words: int = 1, note: str = "") -> None:
    """Print rows of text; the first `words` columns are words, the others numbers. Nothing is ever cut off."""
    from rich.console import Console

    console = Console()
    widths = [max(longest(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    fits = 2 + sum(width + 2 for width in widths) <= console.width
    if fits:
        console.print(_table(title, head, rows, words, note))
        return
    for line in records(title, head, rows, words, console.width):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if note:
        console.print(note, highlight=False, markup=False)


def longest(cell: str) -> int:
    return max(map(len, cell.split("\n")), default=0)


def _table(title: str, head: Sequence[str], rows: Rows, words: int, note: str):
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, caption=note or None, box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i < words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def records(title: str, head: Sequence[str], rows: Rows, words: int, width: int) -> list[str]:
    """The same as lines that are no wider than the terminal: what a row is about once, then its figures by name."""
    lines = [*_wrapped(title.split(" "), " ", "", width), ""]
    for before, row in pairwise([[""] * len(head), *rows]):
        if row[0] and row[0] != before[0]:
            lines += _wrapped(row[0].replace("\n", " ").split(" "), " ", "", width)
        about = [cell.replace("\n", ", ") for cell in row[1:words] if cell]
        lines += _wrapped(", ".join(about).split(" "), " ", "  ", width) if about else []
        figures = [f"{name} {cell}" for name, cell in zip(head[words:], row[words:], strict=True) if cell]
        lines += _wrapped(figures, " · ", "    " if words > 1 else "  ", width)
    return [*lines, ""]


def _wrapped(pieces: Sequence[str], between: str, indent: str, width: int) -> list[str]:
    """Pieces joined into lines of at most `width`; one that is wider by itself has a line of its own."""
    lines, line = [], ""
    for piece in pieces:
        longer = f"{line}{between}{piece}" if line else f"{indent}{piece}"
        if line and len(longer) > width:
            lines.append(line)
            longer = f"{indent}{piece}"
        line = longer
    return [*lines, line] if line else lines
