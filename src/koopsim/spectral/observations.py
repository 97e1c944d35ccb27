"""From a file to a fitted EDMD: which columns are states, which control, what the time between samples is.

Defaults that a person would choose: a single series gets delays, hundreds of columns are taken as they are, and where
there are hardly more samples than observables only directions above the noise are kept (`rank="auto"`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koopsim.datasets.series import Series

from .delays import Delays
from .dictionary import Identity, as_dictionary
from .edmd import EDMD
from .intake import require_squares
from .sampling import Regular, regular, unusable, whole_rows

Array = Any  # of numbers; NumPy's stubs lose .real of an NDArray[Any]
MOST_DELAYS = 30  # of a single series, where none are asked for,
SAMPLES_EACH = 4  # and samples there are for each of them
PAIRS_EACH = 4  # for each number of a lifted state; with fewer, a linear model is truncated


@dataclass(frozen=True)
class Observations:
    """Even pieces of trajectories, their control, and in words what was made of the file."""

    pieces: list[Array]
    control: list[Array] | None
    starts: list[float]  # the time of each piece's first sample
    dt: float
    names: tuple[str, ...]
    said: tuple[str, ...]
    of: tuple[int, ...] = ()  # which trajectory each piece is of, counted from 0; empty: each is one by itself
    timed: bool = True  # the file says when

    @property
    def trajectories(self) -> tuple[int, ...]:
        """Which trajectory each piece is of."""
        return self.of or tuple(range(len(self.pieces)))

    @property
    def latest(self) -> int:
        """Index of the piece that ends last: what comes after it nobody has measured. Of equals, and where the file
        has no times, the last in the file."""
        if not self.timed:
            return len(self.pieces) - 1
        ends = [start + self.dt * len(piece) for start, piece in zip(self.starts, self.pieces, strict=True)]
        return max(i for i, end in enumerate(ends) if end > max(ends) - 0.5 * self.dt)

    @property
    def longest(self) -> int:
        """Index of the longest piece."""
        return int(np.argmax([len(piece) for piece in self.pieces]))


def observations(series: Series, control: tuple[str, ...] = (), dt: float | None = None) -> Observations:
    """Pieces without gaps. Times come from the file's own column; `dt` says them where it has none."""
    if dt is not None and not (np.isfinite(dt) and dt > 0):
        raise ValueError(f"dt is the time between two samples and must be > 0; got {dt}")
    states, steering = series.take_out(control) if control else (series, [])
    width = len(states.names)
    tables = [np.hstack(pair) for pair in zip(states.tables, steering, strict=True)] if control else states.tables
    cut, of = _without_times(tables, dt) if series.times is None else _by_times(tables, series.times, dt)
    said = (*cut.said, *_standing_still(states.names, cut.pieces))
    pieces: list[Array] = list(cut.pieces)
    steered = [piece[:, width:].real for piece in pieces] if control else None
    pieces = [piece[:, :width] for piece in pieces] if control else pieces
    for j, name in enumerate(states.names):
        require_squares(np.concatenate([piece[:, j] for piece in pieces]), f"the numbers of {name}")
    timed = series.times is not None
    return Observations(pieces, steered, cut.starts, cut.dt, states.names, said, tuple(of), timed)


def _without_times(tables: list[Array], dt: float | None) -> tuple[Regular, list[int]]:
    """Rows that follow one another; where some are missing, the pieces between. And which table each piece is of."""
    step = 1.0 if dt is None else dt
    cuts = [(k, a, b) for k, table in enumerate(tables) for a, b in whole_rows(table)]
    pieces: list[Array] = [tables[k][a:b] for k, a, b in cuts]
    wrong = next((unusable(table) for table in tables if not np.isfinite(table).all()), "")
    said = (f"{wrong} cut the file into {len(pieces)} pieces",) if wrong and len(pieces) > len(tables) else ()
    return Regular(pieces, [step * a for _, a, _ in cuts], step, said), [k for k, _, _ in cuts]


def _by_times(tables: list[Array], times: list[Array], dt: float | None) -> tuple[Regular, list[int]]:
    """Pieces of even steps: `dt`, or what the first table's times say. And which table each piece is of."""
    pieces: list[Array] = []
    starts: list[float] = []
    of: list[int] = []
    said = ["the column of times is taken as time, not as a state"]
    for k, (t, table) in enumerate(zip(times, tables, strict=True)):
        found = regular(t, table, dt)
        dt, pieces, starts = found.dt, pieces + found.pieces, starts + found.starts
        of += [k] * len(found.pieces)
        said += [note for note in found.said if note not in said]
    return Regular(pieces, starts, 1.0 if dt is None else dt, tuple(said)), of


def _standing_still(names: tuple[str, ...], pieces: list[Array]) -> tuple[str, ...]:
    """What to say of columns that never change; if none does, there is nothing to fit."""
    still = [name for name, rests in zip(names, _resting(pieces), strict=False) if rests]
    if len(still) == len(names):
        raise ValueError(f"nothing ever changes in its {len(pieces[0])} samples; there are no dynamics to find")
    return (f"{', '.join(still[:5])}{' ...' if len(still) > 5 else ''} never changes",) if still else ()


def _resting(pieces: list[Array]) -> NDArray[np.bool_]:
    """Which columns never change."""
    return np.all([(p == p[0]).all(axis=0) for p in pieces], axis=0)


def fitted(seen: Observations, dictionary: Any = None, delays: int | None = None, rank: Any = None) -> EDMD:
    """EDMD of the pieces. `delays` None: some for a single series, none otherwise; 0: none."""
    d = int(np.sum(~_resting(seen.pieces)))  # columns that never change are none
    longest = len(seen.pieces[seen.longest])
    if delays is None:
        delays = min(MOST_DELAYS, longest // SAMPLES_EACH) if d == 1 and dictionary is None else 0
    chosen, past = _chosen(seen, dictionary, delays), delays
    kept = [i for i, piece in enumerate(seen.pieces) if len(piece) >= past + 2]
    if not kept:
        raise ValueError(f"the longest piece has {longest} samples; {past} delays need {past + 2}")
    pairs = sum(len(seen.pieces[i]) - past - 1 for i in kept)
    linear = isinstance(chosen, Identity) or (isinstance(chosen, Delays) and chosen.dictionary is None)
    if rank is None and linear and pairs < PAIRS_EACH * d * (past + 1):
        rank = "auto"
    model = EDMD(chosen, rank=rank, dt=seen.dt)
    return model.fit([seen.pieces[i] for i in kept], control=seen.control and [seen.control[i] for i in kept])


def _chosen(seen: Observations, dictionary: Any, delays: int) -> Any:
    """The dictionary asked for, or the usual one; of delayed states if there are delays."""
    if dictionary is None and seen.control is not None:
        dictionary = Identity()  # a control that acts linearly on the state does not on its powers
    return as_dictionary(Delays(delays, dictionary) if delays else dictionary, seen.pieces[0].shape[1])
