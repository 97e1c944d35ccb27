"""koopsim predict: what a trained run says of pictures, or of sequences."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from koopsim.cli import parse, table_rows
from koopsim.cli.table_rows import learnt_a_table
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
    if arguments.out is not None and arguments.out.exists() and not arguments.overwrite:
        raise KoopsimError(f"{arguments.out} exists; add --overwrite, or give another --out.")
    if learnt_a_table(arguments.what):
        return table_rows.predict_rows(arguments)
    from koopsim import datasets, zoo
    from koopsim.cli.sequences import answer_sequences, takes_sequences
    from koopsim.datasets.inputs import ImageInputs, picture_files
    from koopsim.engine.drive import pick_device
    from koopsim.predicting import predict

    if takes_sequences(arguments.what) is not None:
        if len(arguments.pictures) != 1:
            raise KoopsimError("This run reads sequences: give one file or folder of them.")
        found = answer_sequences(arguments.what, arguments.pictures[0], arguments.device, judge=False)
        return _written(json.dumps(found.as_list(), indent=2), found.csv(), len(found.rows), arguments)
    files = picture_files(arguments.pictures)
    model = zoo.load(arguments.what, pick_device(arguments.device))
    found = predict(model, files, ImageInputs.of(datasets.load_images(arguments.data)) if arguments.data else None)
    return _written(found.json(), found.csv(), len(found), arguments)


def _written(as_json: str, as_csv: str, count: int, arguments: Arguments) -> int:
    """The answers as they were asked for: to standard output, or to a file."""
    from koopsim.runs import write_atomically

    wants_json = arguments.json if arguments.out is None else arguments.out.suffix == ".json"
    text = as_json + "\n" if wants_json else as_csv
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        write_atomically(arguments.out, text.encode())
        print(f"{count} answers in {arguments.out}", file=sys.stderr)
    return 0
