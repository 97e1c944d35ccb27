"""The tables of the paper, each published value beside ours."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from koopsim.report.collect import Result

# Paper, Table 1: test cross-entropy on copy memory.
PUBLISHED_LOSS = {"copy/deq": 2.24e-09, "copy/sim-single": 7.03e-09, "copy/sim-two": 5.06e-08}
TITLES = {"copy/deq": "DEQ", "copy/sim-single": "SIM (single)", "copy/sim-two": "SIM (two)"}


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


def copy_memory_table(results: Sequence[Result]) -> Table | None:
    """Table 1: test loss and parameters of the DEQ and the SIMs on copy memory, one table a horizon."""
    runs = [r for r in results if r["name"] in TITLES and "test" in r]
    if not runs:
        return None
    horizons = {r["run"]["task"]["horizon"] for r in runs}
    rows = []
    for name, title in TITLES.items():
        for horizon in sorted(horizons):
            group = [r for r in runs if r["name"] == name and r["run"]["task"]["horizon"] == horizon]
            if group:
                rows.append([title, *_copy_memory_row(group, name, horizon)])
    head = ["model", "T", "params", "test loss", "paper", "digits", "batch", "ms/step", "time"]
    floors = ", ".join(f"{10 * math.log(8) / (h + 20):.4f} at T = {h}" for h in sorted(horizons))
    note = f"Test loss in nats, in float64; without memory it is {floors}. Digits: the last ten, right."
    return Table("Copy memory (Table 1)", head, rows, note)


def _copy_memory_row(group: list[Result], name: str, horizon: int) -> list[str]:
    published = f"{PUBLISHED_LOSS[name]:.2e}" if horizon == 500 else "-"
    return [
        str(horizon),
        f"{group[0]['parameters']:,}",
        spread([r["test"]["loss"] for r in group], ".2e"),
        published,
        f"{statistics.mean(r['test']['digits_right'] for r in group):.1%}",
        "/".join(sorted({str(r["run"]["recipe"]["batch_size"]) for r in group})),
        f"{statistics.median(r['milliseconds_per_step'] for r in group):.2f}",
        f"{statistics.median(r['train_seconds'] for r in group):.0f} s",
    ]


def spread(values: Sequence[float], form: str) -> str:
    """The mean, and with several seeds the standard deviation and their number."""
    if len(values) == 1:
        return f"{values[0]:{form}}"
    return f"{statistics.mean(values):{form}} ± {statistics.stdev(values):{form}} (n={len(values)})"
