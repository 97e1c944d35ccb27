"""From a file to a fitted EDMD: which columns are states, which control, what the time between samples is.

Defaults that a person would choose: a single series gets delays, hundreds of columns are taken as they are, and where
there are hardly more samples than observables only directions above the noise are kept (`rank="auto"`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from koopsim.datasets.series import Series

from .delays import Delays
from .dictionary import Identity, as_dictionary
from .edmd import EDMD
from .sampling import Regular, regular, without_gaps

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
    cut = _without_times(tables, dt) if series.times is None else _by_times(tables, series.times, dt)
    said = (*cut.said, *_standing_still(states.names, cut.pieces))
    pieces: list[Array] = list(cut.pieces)
    steered = [piece[:, width:].real for piece in pieces] if control else None
    pieces = [piece[:, :width] for piece in pieces] if control else pieces
    return Observations(pieces, steered, cut.starts, cut.dt, states.names, said)


def _without_times(tables: list[Array], dt: float | None) -> Regular:
    """Rows that follow one another; where some are missing, the pieces between."""
    pieces: list[Array] = []
    for table in tables:
        pieces += [table] if np.isfinite(table).all() else without_gaps(table)
    said = (f"missing values cut the file into {len(pieces)} pieces",) if len(pieces) > len(tables) else ()
    return Regular(pieces, [0.0] * len(pieces), 1.0 if dt is None else dt, said)


def _by_times(tables: list[Array], times: list[Array], dt: float | None) -> Regular:
    """Pieces of even steps: `dt`, or what the first table's times say."""
    pieces: list[Array] = []
    starts: list[float] = []
    said = ["the column of times is taken as time, not as a state"]
    for t, table in zip(times, tables, strict=True):
        found = regular(t, table, dt)
        dt, pieces, starts = found.dt, pieces + found.pieces, starts + found.starts
        said += [note for note in found.said if note not in said]
    return Regular(pieces, starts, 1.0 if dt is None else dt, tuple(said))


def _standing_still(names: tuple[str, ...], pieces: list[Array]) -> tuple[str, ...]:
    """What to say of columns that never change; if none does, there is nothing to fit."""
    still = [name for j, name in enumerate(names) if all(np.ptp(p[:, j].real) == 0 for p in pieces)]
    if len(still) == len(names):
        raise ValueError(f"nothing ever changes in its {len(pieces[0])} samples; there are no dynamics to find")
    return (f"{', '.join(still[:5])}{' ...' if len(still) > 5 else ''} never changes",) if still else ()


def fitted(seen: Observations, dictionary: Any = None, delays: int | None = None, rank: Any = None) -> EDMD:
    """EDMD of the pieces. `delays` None: some for a single series, none otherwise; 0: none."""
    d = seen.pieces[0].shape[1]
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
