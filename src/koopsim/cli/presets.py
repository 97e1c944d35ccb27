"""koopsim presets: every model of the paper by name, its parameters counted beside the paper's."""

import json
from dataclasses import dataclass

from koopsim.cli import parse


@dataclass(frozen=True)
class Arguments:
    """Every model of the paper by name, with its learnable parameters beside the published number."""

    json: bool = False
    """Print a list of {name, parameters, paper_parameters} instead of a table."""


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "presets")
    from koopsim.models import build
    from koopsim.nn import count_parameters
    from koopsim.presets import PRESETS

    rows = [
        {
            "name": name,
            "parameters": count_parameters(build(name)),
            "paper_parameters": preset.paper_parameters,
        }
        for name, preset in PRESETS.items()
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0

    from rich.console import Console
    from rich.table import Table

    table = Table(title="Models of the paper", title_justify="left")
    table.add_column("preset")
    for column in ("parameters", "paper"):
        table.add_column(column, justify="right")
    table.add_column("train with")
    for row in rows:
        counts = [f"{n:,}" if n is not None else "-" for n in (row["parameters"], row["paper_parameters"])]
        table.add_row(row["name"], *counts, f"koopsim train {row['name']}")
    Console().print(table)
    return 0
