"""Sequences in memory, the same whatever file they came from (sequence_files.py).

Lengths may differ: sequences are filled up on the right, which a causal model never looks at. A missing value is the
one before it, or the mean of its channel where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koopsim.errors import KoopsimError

Array = NDArray[Any]
SEEN = 1e-3  # of a channel's deviation: what rounding may move a value by


@dataclass(frozen=True)
class Sequences:
    """Sequences in memory, the same whatever file they came from.

    values    of each sequence (T_i, C), floats with NaN where a value is missing, or uint8 (T_i,) where they are bytes
    labels    one a sequence; tags: one a step, -1 where there is none; both are numbers of `classes`
    splits    of each sequence 0 train, 1 valid, 2 test; None: they are to be drawn
    times     of each sequence (T_i,); where they are dates, seconds from the date that it has in `since`
    plain     the values are symbols: whole numbers that are not to be scaled
    """

    path: str
    values: list[Array]
    channels: tuple[str, ...]
    names: tuple[str, ...]
    labels: Array | None = None
    tags: list[Array] | None = None
    classes: tuple[str, ...] = ()
    splits: Array | None = None
    times: list[Array] | None = None
    since: list[np.datetime64] | None = None
    plain: bool = False

    def __post_init__(self) -> None:
        if not self.values or any(len(v) == 0 for v in self.values):
            empty = next((n for n, v in zip(self.names, self.values, strict=True) if len(v) == 0), None)
            what = "no sequences" if empty is None else f"the sequence {empty!r} without a single step"
            raise KoopsimError(f"{self.path} has {what}; expected some.")

    @property
    def bytes(self) -> bool:
        return self.values[0].dtype == np.uint8 and self.values[0].ndim == 1

    @property
    def lengths(self) -> Array:
        return np.array([len(v) for v in self.values])

    def __len__(self) -> int:
        return len(self.values)


def rounded(found: Sequences) -> Sequences:
    """The values as float32 where that is exact enough; a channel far from zero for how much it changes keeps float64.

    1e8 + sin t in float32 is 1e8: what changes has to be centred before it is cut short (SequenceInputs.scaled).
    """
    if found.bytes or all(v.dtype == np.float32 for v in found.values):
        return found
    for j in range(len(found.channels)):
        channel = np.concatenate([v[:, j] for v in found.values])
        channel = channel[~np.isnan(channel)]
        off = np.abs(channel.astype(np.float32) - channel).max(initial=0.0)
        if off and np.ptp(channel) and off > SEEN * channel.std():
            return found
    return replace(found, values=[v.astype(np.float32) for v in found.values])


def carried_forward(values: Sequence[Array], mean: Array) -> list[Array]:
    """Each missing value as the one before it, or the channel's mean where there is none."""
    found = []
    for own in values:
        if own.dtype == np.uint8 or not np.isnan(own).any():
            found.append(own)
            continue
        place = np.where(np.isnan(own), -1, np.arange(len(own))[:, None])
        place = np.maximum.accumulate(place, axis=0)
        carried = np.take_along_axis(own, np.maximum(place, 0), axis=0)
        found.append(np.where(place < 0, mean.astype(own.dtype), carried))
    return found


def filled_up(values: Sequence[Array], length: int | None = None) -> Array:
    """(n, T, ...): filled up on the right with zeros."""
    T = length or max(len(v) for v in values)
    found = np.zeros((len(values), T, *values[0].shape[1:]), values[0].dtype)
    for row, own in zip(found, values, strict=True):
        row[: len(own)] = own
    return found
