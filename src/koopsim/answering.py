"""What all answers of trained models have in common: how a model is asked, and rows as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode, afterwards as it was."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def csv_text(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Rows below their head; a float by its repr: as many digits as tell it apart, so that a time stays that time."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()
