"""koopsim eval: the figures of a trained run on one split."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from koopsim.cli import parse


@dataclass(frozen=True)
class Arguments:
    """Evaluate a trained run, in float64."""

    directory: Annotated[Path, tyro.conf.Positional]
    """The run directory."""
    split: Literal["train", "valid", "train+valid", "test"] = "test"
    """Which part of the data."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto takes a GPU where there is one."""
    json: bool = False
    """Print the figures as JSON on standard output."""


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "eval")
    from koopsim.runs import RunDirectory
    from koopsim.tasks import build_task
    from koopsim.train import load, pick_device

    name, run = RunDirectory(arguments.directory).read_config()
    device = pick_device(arguments.device)
    model = load(arguments.directory, device)
    figures = build_task(run.task, device).evaluate(model, arguments.split)
    if arguments.json:
        print(json.dumps({"name": name, "split": arguments.split, **figures}, indent=2))
        return 0
    print(f"{name} on {arguments.split}")
    for key, value in figures.items():
        print(f"  {key:<18} {value:.6g}")
    return 0
