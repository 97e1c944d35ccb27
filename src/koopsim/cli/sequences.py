"""Runs of sequences in the verbs: forecast RUN --data, eval RUN --data, predict RUN FILE."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from koopsim.cli.written import refuse_existing, say_figures, say_files, write_answers, write_forecast
from koopsim.datasets.inputs import read_inputs
from koopsim.datasets.sequence_inputs import SequenceInputs
from koopsim.errors import KoopsimError
from koopsim.files.json import json_text


def takes_sequences(what: Path | str) -> SequenceInputs | None:
    """What the run in a folder takes, where that is sequences."""
    found = read_inputs(Path(what)) if Path(what).is_dir() else None
    return found if isinstance(found, SequenceInputs) else None


def _inputs_of(what: Path | str) -> SequenceInputs:
    found = takes_sequences(what)
    if found is None:
        raise KoopsimError(
            f"{what} is no run that learnt sequences; 'koopsim train --data FILE --goal forecast' makes one, and a "
            "file of trajectories is forecast without training: koopsim forecast FILE."
        )
    return found


def _intervals(what: Path | str) -> dict[str, Any]:
    """The calibrated radii in a finished run's result, checked."""
    from koopsim.runs import RunDirectory

    if not RunDirectory(what).result_file.exists():
        raise KoopsimError(f"{what} is unfinished: koopsim train --resume {what}.")
    found = RunDirectory(what).read_result().get("intervals")
    if found is None:
        raise KoopsimError(f"{what} has no calibrated intervals: it was not trained to forecast.")
    return found


def forecast_run(arguments: Any) -> int:
    """How each sequence of a file goes on, by a trained run."""
    from koopsim import zoo
    from koopsim.engine.drive import pick_device
    from koopsim.sequence_answers import draw_forecasts, forecasts, read_for

    if arguments.data is None:
        raise KoopsimError(f"{arguments.what} is a run; say what it should forecast: --data FILE.")
    inputs = _inputs_of(arguments.what)
    intervals = _intervals(arguments.what)
    ahead = inputs.ahead if arguments.steps is None else arguments.steps
    if ahead > inputs.ahead:
        raise KoopsimError(
            f"--steps is {ahead}; {arguments.what} answers for {inputs.ahead} at once, and its intervals are "
            f"calibrated for no more. Ask for at most {inputs.ahead}, or train with --horizon {ahead}."
        )
    model = zoo.load(arguments.what, pick_device(arguments.device))
    found = forecasts(model, inputs, read_for(inputs, arguments.data), intervals)
    found = replace(  # of what is answered at once, the first steps
        found, middle=found.middle[:, :ahead], radii=found.radii[:ahead], times=[t[:ahead] for t in found.times]
    )
    rows = found.rows()
    values = {"what": str(arguments.what), "data": str(arguments.data), "coverage": found.coverage}
    values |= {"ahead": ahead, "forecasts": rows.as_list()}
    json_text(values)  # what is no figure is said before anything is drawn
    files = write_forecast(arguments, lambda: draw_forecasts(found), rows.csv(), values)
    if arguments.json:
        print(json_text(values | {"files": files}))
        return 0
    targets = ", ".join(inputs.targets)
    print(f"{len(found.names)} sequences, {ahead} steps ahead of {targets}; intervals of {found.coverage:.0%}")
    for line in rows.csv().splitlines()[: 1 + min(12, len(rows.rows))]:
        print(f"  {line}")
    if len(rows.rows) > 12:
        print(f"  ... {len(rows.rows) - 12} rows more" + ("" if files else "; --out FOLDER writes all of them"))
    say_files(arguments.out, files)
    return 0


def answer_sequences(what: str, path: Path | str, device: str, judge: bool = True) -> Any:
    """Labels of the sequences in a file by a trained run, or how each goes on; `judge`: and how good forecasts were."""
    from koopsim import zoo
    from koopsim.engine.drive import pick_device
    from koopsim.sequence_answers import answers, backtest, forecasts, read_for

    inputs = _inputs_of(what)
    found = read_for(inputs, path)
    model = zoo.load(what, pick_device(device))
    if inputs.goal != "forecast":
        return answers(model, inputs, found)
    intervals = _intervals(what)
    rows = forecasts(model, inputs, found, intervals).rows()
    if judge:
        rows.figures.update(backtest(model, inputs, found, intervals))
    return rows


def evaluate_sequences(arguments: Any, name: str) -> int:
    """The figures of a run on another file, by the scaling and the intervals it was trained with; all rows to --out."""
    if arguments.out is not None and arguments.out.suffix != ".csv":
        raise KoopsimError(f"--out is {arguments.out}; the answers for other sequences go into a .csv.")
    refuse_existing(arguments.out, arguments.overwrite)
    found = answer_sequences(arguments.what, arguments.data, arguments.device)
    if not found.figures and arguments.out is None:
        raise KoopsimError(f"{arguments.data} has no labels to compare with; koopsim predict names the sequences.")
    if arguments.out is not None:
        write_answers(found, arguments.out)
    files = [str(arguments.out)] if arguments.out else []
    if arguments.json:
        print(json_text({"name": name, "data": arguments.data, **found.figures, "files": files}))
        return 0
    print(f"{name} on {arguments.data}")
    say_figures(found.figures)
    if files:
        print(f"  {len(found.rows)} rows are in {files[0]}")
    return 0
