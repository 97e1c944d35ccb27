"""koopsim predict: what a trained run says of pictures, of a table or of sequences."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from koopsim.cli import parse
from koopsim.cli.table_rows import learnt_a_table
from koopsim.cli.written import refuse_existing, write_answers
from koopsim.errors import KoopsimError


@dataclass(frozen=True)
class Arguments:
    """What a run says of pictures, a table or sequences, or how those go on: CSV on standard output, or JSON.

    The run's folder is all that is needed.
    """

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory, a file of model.save, or a model of the zoo, such as zoo:mnist/sim-two."""
    pictures: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE ...")]
    """Picture files, or folders that hold some at any depth; or one table, or one file of sequences."""
    out: Path | None = None
    """Write to this file instead: .csv or .json."""
    overwrite: bool = False
    """Replace --out where it exists."""
    data: str | None = None
    """Of a run that does not say what it takes: the pictures it was trained on, a name or a folder."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto takes a GPU where there is one."""
    json: bool = False
    """JSON instead of CSV."""


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "predict")
    if not arguments.pictures:
        raise KoopsimError("Name pictures: koopsim predict RUN a.png b.jpg, or a folder of them.")
    if arguments.out is not None and arguments.out.suffix not in (".csv", ".json"):
        raise KoopsimError(f"--out is {arguments.out}; give a file that ends in .csv or .json.")
    refuse_existing(arguments.out, arguments.overwrite)
    found, told = _answers(arguments)
    if arguments.out is None:
        sys.stdout.write(found.json() + "\n" if arguments.json else found.csv())
    else:
        write_answers(found, arguments.out)
        print(f"{told} in {arguments.out}", file=sys.stderr)
    return 0


def _answers(arguments: Arguments) -> tuple[Any, str]:
    """What the run says, and how many answers these are."""
    from koopsim import datasets, zoo
    from koopsim.cli.sequences import answer_sequences, takes_sequences
    from koopsim.datasets.inputs import ImageInputs, picture_files
    from koopsim.engine.drive import pick_device
    from koopsim.predicting import predict
    from koopsim.table_answers import answer_table

    what, given = arguments.what, arguments.pictures
    if learnt_a_table(what):
        if len(given) != 1:
            raise KoopsimError(f"{len(given)} tables are named; koopsim predict RUN TABLE takes one at a time.")
        model: Any = zoo.load(what, pick_device(arguments.device))
        found = answer_table(model, model.takes, given[0])
        return found, f"{len(found):,} rows foretold"
    if takes_sequences(what) is not None:
        if len(given) != 1:
            raise KoopsimError("This run reads sequences: give one file or folder of them.")
        found = answer_sequences(what, given[0], arguments.device, judge=False)
        return found, f"{len(found.rows)} answers"
    files = picture_files(given)
    model = zoo.load(what, pick_device(arguments.device))
    found = predict(model, files, ImageInputs.of(datasets.load_images(arguments.data)) if arguments.data else None)
    return found, f"{len(found)} answers"
