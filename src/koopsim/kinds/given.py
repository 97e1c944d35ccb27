"""What is given: the shape of images and of sequences, and what a person says of a table of their own."""

from dataclasses import dataclass, fields
from typing import Literal

Shape = tuple[int, int, int]  # channels, height, width
Goal = Literal["classify", "regress", "tag", "forecast"]


@dataclass(frozen=True)
class OwnColumns:
    """What a person says of their own table or sequences; whatever is not said is found out."""

    target: tuple[str, ...] = ()
    """The column to be told, or the columns to be forecast."""
    goal: Goal | None = None
    """A label a row or sequence, a number, a label a step, or how it goes on."""
    id: str | None = None
    """The column that says which sequence a row belongs to."""
    time: str | None = None
    """The column that says when."""
    text: str | None = None
    """The column whose words are a sequence of bytes, a row each."""
    horizon: int | None = None
    """How many steps ahead to forecast."""
    drop: tuple[str, ...] = ()
    """Columns to be left out."""
    group: str | None = None
    """Rows with the same word here are never in two splits."""
    split: str | None = None
    """The column that says train, valid or test."""

    def said(self) -> tuple[str, ...]:
        """The entries that were given."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != f.default)


@dataclass(frozen=True)
class SequenceShape:
    """What a model of sequences is given: so many channels (0: bytes), at most so many steps at a time."""

    channels: int
    length: int
