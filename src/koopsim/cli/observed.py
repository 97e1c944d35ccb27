"""What `spectrum` and `forecast` ask about a file of trajectories."""

from dataclasses import dataclass, fields
from math import comb, isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from koopsim.errors import KoopsimError

MOST_OBSERVABLES = 2000


@dataclass(frozen=True)
class DataArguments:
    """Which file, and how it is read and fitted."""

    what: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE_OR_RUN")]
    """A run directory, or a file: .csv, .npy, .npz, .parquet, .nc, .h5. Rows are times; a column t, time or time (s)
    is time."""
    dt: float | None = None
    """Time between samples, where the file has no times; frequencies and rates are in its units."""
    rank: int | None = None
    """Keep so many directions of the data; by default all above rounding, or above the noise where samples are few."""
    delays: int | None = None
    """Earlier samples that belong to a state; by default some for a single series, else none."""
    control: tuple[str, ...] = ()
    """Columns that are inputs to the system and no states."""
    dictionary: Literal["monomials", "rff", "nystrom", "identity"] | None = None
    """The observables; by default monomials, or the states themselves where there are more than 30."""
    degree: int | None = None
    """Of the monomials: 2 for trajectories, 1 for the many dimensions of a DEQ."""
    features: int = 100
    """How many random Fourier features or Nystrom centres."""
    bandwidth: float | None = None
    """Their length scale; by default 1 for rff, the median distance for nystrom."""


def dictionary_of(arguments: DataArguments, dims: int, degree: int | None = None) -> Any:
    """The observables asked for, refused where there would be too many; None: the default."""
    from koopsim.spectral import Identity, Monomials, Nystrom, RandomFourier

    if arguments.dictionary in ("rff", "nystrom") and not 1 <= arguments.features <= MOST_OBSERVABLES:
        raise KoopsimError(f"--features is {arguments.features}; it lies between 1 and {MOST_OBSERVABLES:,}.")
    if arguments.bandwidth is not None and not (isfinite(arguments.bandwidth) and arguments.bandwidth > 0):
        raise KoopsimError(f"--bandwidth is {arguments.bandwidth:g}; a length scale is above 0.")
    if arguments.degree is not None and arguments.degree < 1:
        raise KoopsimError(f"--degree is {arguments.degree}; monomials have a degree of 1 or more.")
    if arguments.dictionary == "rff":
        return RandomFourier(arguments.features, 1.0 if arguments.bandwidth is None else arguments.bandwidth)
    if arguments.dictionary == "nystrom":
        return Nystrom(arguments.features, arguments.bandwidth)
    if arguments.dictionary == "identity":
        return Identity()
    if arguments.dictionary is None and arguments.degree is None and degree is None:
        return None
    degree = next((n for n in (arguments.degree, degree) if n is not None), 2)
    count = comb(dims + degree, degree)
    if count > MOST_OBSERVABLES:
        raise KoopsimError(
            f"Monomials of degree {degree} in {dims} dimensions are {count:,}, more than {MOST_OBSERVABLES:,}; "
            "lower --degree, or use --dictionary rff."
        )
    return Monomials(degree)


def fit_series(arguments: DataArguments, series: Any) -> tuple[Any, Any]:
    """What was observed, and EDMD of it."""
    from koopsim.spectral.observations import fitted, observations

    seen = observations(series, arguments.control, arguments.dt)
    width = seen.pieces[0].shape[1] * ((arguments.delays or 0) + 1)
    return seen, fitted(seen, dictionary_of(arguments, width), arguments.delays, arguments.rank)


def not_for(arguments: DataArguments, names: tuple[str, ...], what: str) -> None:
    """An option that would change nothing is refused, and not swallowed."""
    usual = {one.name: one.default for one in fields(arguments)}
    given = [f"--{name}" for name in names if getattr(arguments, name) != usual[name]]
    if given:
        raise KoopsimError(f"{', '.join(given)}: {what}; leave {'it' if len(given) == 1 else 'them'} out.")


def data_lines(path: Path, seen: Any, model: Any = None) -> list[str]:
    """The head of an answer: what was read, and what EDMD was fitted, if any."""
    first, sizes = seen.pieces[0], sorted(len(piece) for piece in seen.pieces)
    count, lengths = len(sizes), f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    what = f"{count} {_pieces(seen)} of {lengths}" if count > 1 else f"1 trajectory of {lengths}"
    steered = f", {seen.control[0].shape[1]} controls" if seen.control else ""
    head = [f"{path}: {what} x {first.shape[1]}{steered}, dt {seen.dt:.6g}", *(f"  {note}" for note in seen.said)]
    if model is None:
        return head
    return [
        *head,
        f"{model.n_observables_} observables, rank {model.rank_}, {model.n_samples_seen_} pairs, "
        f"misfit {model.solution_.relative_residual:.1e}",
    ]


def _pieces(seen: Any) -> str:
    return "trajectories" if len(set(seen.trajectories)) == len(seen.pieces) else "pieces"
