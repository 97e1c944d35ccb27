"""What `spectrum` and `forecast` ask about a file of trajectories."""

from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from koopsim.errors import KoopsimError

MOST_OBSERVABLES = 2000


@dataclass(frozen=True)
class DataArguments:
    """Which file, and how it is read and fitted."""

    what: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE_OR_RUN")]
    """A run directory, or a file: .csv, .npy, .npz, .parquet, .nc, .h5. Rows are times; a column t or time is time."""
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
    if arguments.dictionary == "rff":
        return RandomFourier(arguments.features, arguments.bandwidth or 1.0)
    if arguments.dictionary == "nystrom":
        return Nystrom(arguments.features, arguments.bandwidth)
    if arguments.dictionary == "identity":
        return Identity()
    if arguments.dictionary is None and arguments.degree is None and degree is None:
        return None
    degree = arguments.degree or degree or 2
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


def data_lines(path: Path, seen: Any, model: Any) -> list[str]:
    """The head of an answer: what was read, what was fitted."""
    first, count = seen.pieces[0], len(seen.pieces)
    what = f"1 trajectory of {len(first)}" if count == 1 else f"{count} trajectories of {len(first)} and the like"
    steered = f", {model.n_controls_} controls" if model.n_controls_ else ""
    return [
        f"{path}: {what} x {first.shape[1]}{steered}, dt {seen.dt:.6g}",
        *(f"  {note}" for note in seen.said),
        f"{model.n_observables_} observables, rank {model.rank_}, {model.n_samples_seen_} pairs, "
        f"misfit {model.solution_.relative_residual:.1e}",
    ]


def write_files(named: dict[str, bytes], out: Path, overwrite: bool, verb: str) -> list[str]:
    """Each whole or not at all; the paths written."""
    from koopsim.files import folders
    from koopsim.runs import write_atomically

    with folders.held(out):
        folders.claim(out, verb, list(named), overwrite)
        try:
            for name, data in named.items():
                write_atomically(out / name, data)
        except OSError as error:
            raise KoopsimError(f"Cannot write into {out}: {error.strerror}.") from error
    return [str(out / name) for name in named]
