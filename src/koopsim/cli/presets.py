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

    from koopsim.cli.terminal import show_table

    counts = [[row["parameters"], row["paper_parameters"]] for row in rows]
    shown = [
        [row["name"], *(f"{n:,}" if n is not None else "-" for n in own)]
        for row, own in zip(rows, counts, strict=True)
    ]
    note = "Train one: koopsim train PRESET. In seconds: --scale smoke."
    show_table("Models of the paper", ["preset", "parameters", "paper"], shown, note=note)
    return 0
