"""koopsim forecast: how a trajectory goes on, and how far that may be believed; by EDMD, or by a trained run."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from koopsim.cli import parse
from koopsim.cli.observed import DataArguments, data_lines, fit_series, not_for
from koopsim.cli.written import say_files, write_forecast
from koopsim.errors import KoopsimError
from koopsim.files.json import json_text

HELD_BACK = 0.25  # of the longest trajectory measures the errors
OF_EDMD = ("rank", "delays", "control", "dictionary", "degree", "features", "bandwidth")


@dataclass(frozen=True)
class Arguments(DataArguments):
    """How a trajectory goes on beyond its end, with bands of twice the error that forecasts of that length had.

    Of several trajectories, or pieces between gaps, the one that ends last goes on; where the file has no times, the
    last one in it. Of complex numbers both parts are forecast.

    Errors are measured on the last quarter, by a fit that has not seen it; the forecast is made by a fit of everything.

    koopsim forecast RUN --data FILE goes on with the sequences of FILE by the model that a run has trained, with its
    calibrated intervals.
    """

    data: Path | None = None
    """Of a run: the sequences to go on with, a file or folder like the one it was trained on."""
    device: str = "auto"
    """Of a run: cpu, cuda, cuda:1; auto takes a GPU where there is one."""

    steps: int | None = None
    """How many samples ahead; by default a quarter of the trajectory. Of a run: no more than it was trained for."""
    method: Literal["edmd", "optimised"] = "edmd"
    """EDMD, or optimised DMD with bagging: exponentials through all samples at once, for noisy oscillations."""
    modes: int | None = None
    """Of optimised DMD: how many exponentials, a conjugate pair counting as two."""
    out: Path | None = None
    """A folder for forecast.csv, forecast.json and forecast.png. Ours that are there are replaced."""
    overwrite: bool = False
    """Also replace files of the same names that koopsim did not write."""
    json: bool = False
    """Print the forecast as JSON on standard output."""


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "forecast")
    if arguments.what is None:
        raise KoopsimError("Say which file: koopsim forecast FILE.")
    if arguments.steps is not None and arguments.steps < 1:
        raise KoopsimError(f"--steps is {arguments.steps}; look at least one sample ahead.")
    if (arguments.what / "config.json").exists():
        from koopsim.cli.sequences import forecast_run

        own = (*OF_EDMD, "dt", "method", "modes")
        not_for(arguments, own, f"{arguments.what} is a run, which forecasts as it was trained")
        return forecast_run(arguments)
    if arguments.what.is_dir():
        raise KoopsimError(f"{arguments.what} is a folder; forecast takes a file of trajectories, or a run.")
    if arguments.data is not None:
        no_run = f"{arguments.what} is {'not' if arguments.what.exists() else 'no file and not'} a run"
        raise KoopsimError(f"{no_run}; --data is what a trained run goes on with: koopsim forecast RUN --data FILE.")
    if arguments.method == "optimised":
        not_for(arguments, OF_EDMD, "--method optimised fits exponentials to the states, and no EDMD")
    else:
        not_for(arguments, ("modes",), "exponentials are counted for --method optimised")
    import matplotlib as mpl

    mpl.use("Agg")
    from koopsim.datasets.series import read_series
    from koopsim.spectral.forecasts import forecast_by_edmd, forecast_by_exponentials
    from koopsim.spectral.observations import observations

    try:
        series = read_series(arguments.what)
        if arguments.method == "optimised":
            seen, model = observations(series, dt=arguments.dt), None
            found = forecast_by_exponentials(seen, _steps(arguments, seen), arguments.modes)
        else:
            seen, model = fit_series(arguments, series)
            found = forecast_by_edmd(seen, _steps(arguments, seen), model, HELD_BACK)
    except ValueError as error:
        raise KoopsimError(f"{arguments.what}: {' '.join(str(error).split()).rstrip('.')}.") from error
    values, table = found.to_dict(), io.StringIO()
    csv.writer(table).writerows(found.rows())
    files = write_forecast(arguments, found.plot, table.getvalue(), values)
    if arguments.json:
        print(json_text({"what": str(arguments.what), **values, "files": files}))
        return 0
    print("\n".join([*data_lines(arguments.what, seen, model), *found.lines()]))
    say_files(arguments.out, files)
    return 0


def _steps(arguments: Arguments, seen: Any) -> int:
    return max(1, len(seen.pieces[seen.longest]) // 4) if arguments.steps is None else arguments.steps
