"""What a trained model says of the rows of a table: a class and its probabilities, or numbers in their own units.

    koopsim predict RUN new.csv        koopsim eval RUN --data new.csv        koopsim.load(RUN).predict("new.csv")

`TableInputs`, which the run wrote beside its weights, says how rows become what the model takes; the table it was
trained on is not needed. Where the target's column is there too, the truth stands beside the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from koopsim.answering import csv_text, evaluating
from koopsim.datasets.columns import Column, DataTable
from koopsim.datasets.table import read_table
from koopsim.datasets.table_inputs import TableInputs
from koopsim.errors import KoopsimError
from koopsim.files.json import json_text

if TYPE_CHECKING:
    from torch import Tensor, nn

ROWS = 8192  # that are answered at a time


@dataclass(frozen=True)
class TableAnswers:
    """Answers row by row: `values` are probabilities (n, classes), or numbers (n, targets)."""

    inputs: TableInputs
    values: NDArray[np.float64]
    truth: tuple[tuple[str | float | None, ...], ...] = ()  # of each target: a name or a number; () where it is unknown

    def __len__(self) -> int:
        return len(self.values)

    @property
    def columns(self) -> tuple[str, ...]:
        """The head of the table of answers."""
        known = tuple(target.name for target in self.inputs.targets) if self.truth else ()
        names = tuple(f"predicted {target.name}" for target in self.inputs.targets)
        classes = self.inputs.targets[0].classes
        more = () if classes is None else ("probability", *(f"p({word})" for word in classes))
        return ("row", *known, *names, *more)

    @property
    def labels(self) -> list[str]:
        """The likeliest class of each row."""
        classes = self.inputs.targets[0].classes
        return [] if classes is None else [classes[i] for i in self.values.argmax(1).tolist()]

    def rows(self) -> list[tuple[Any, ...]]:
        """A line each, as `columns` says; rows are counted from 1."""
        found = []
        classes = self.inputs.targets[0].classes
        for i, values in enumerate(self.values.tolist()):
            said = values if classes is None else (classes[int(np.argmax(values))], max(values), *values)
            found.append((i + 1, *(column[i] for column in self.truth), *said))
        return found

    def csv(self) -> str:
        return csv_text(self.columns, self.rows())

    def json(self) -> str:
        return json_text(self.as_list())

    def as_list(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows()]


def asked_of(model: nn.Module, inputs: TableInputs, table: DataTable) -> Tensor:
    """(n, outputs), float64: what the model answers to the rows of a table, as it was trained to."""
    import torch

    first = next(model.parameters())
    x = torch.from_numpy(inputs.encode(table)).to(first.device, first.dtype)
    with evaluating(model), torch.no_grad():
        found = torch.cat([model(piece).double() for piece in x.split(ROWS)])
    if found.shape[1] != inputs.outputs:
        raise KoopsimError(f"The model has {found.shape[1]} outputs where {inputs.outputs} answers are named.")
    return found


def answer_table(model: nn.Module, inputs: TableInputs, table: DataTable | Path | str) -> TableAnswers:
    """What a model says of a table, or of the file of one."""
    table = table if isinstance(table, DataTable) else read_table(table)
    outputs = asked_of(model, inputs, table)
    names = [target.name for target in inputs.targets]
    as_numbers = inputs.meaning != "classification"
    truth = tuple(_told(table[name], as_numbers) for name in names) if set(names) <= set(table.names) else ()
    if inputs.meaning == "classification":
        return TableAnswers(inputs, outputs.softmax(1).cpu().numpy(), truth)
    mean = np.array([target.mean for target in inputs.targets])
    deviation = np.array([target.deviation for target in inputs.targets])
    return TableAnswers(inputs, outputs.cpu().numpy() * deviation + mean, truth)


def _told(column: Column, as_numbers: bool) -> tuple[str | float | None, ...]:
    """What a column says, None where it says nothing: words, or numbers where the answers are numbers."""
    if column.is_text or not as_numbers:
        return tuple(column.texts())
    return tuple(None if v != v else v for v in column.values.tolist())
