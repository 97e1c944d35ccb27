"""A table: a title, column heads and rows of text, in the forms people paste elsewhere."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A title, column heads, and rows of text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        rule = ["---"] + ["---:"] * (len(self.head) - 1)
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.head, rule, *self.rows)]
        return "\n".join([*lines, *(["", self.note] if self.note else [])])

    def csv(self) -> str:
        return "".join(",".join(f'"{cell}"' for cell in cells) + "\n" for cells in (self.head, *self.rows))


def spread(values: Sequence[float], form: str) -> str:
    """The mean, and with several seeds the standard deviation and their number."""
    if len(values) == 1:
        return f"{values[0]:{form}}"
    return f"{statistics.mean(values):{form}} ± {statistics.stdev(values):{form}} (n={len(values)})"
