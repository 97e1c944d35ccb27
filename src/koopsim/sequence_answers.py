"""What a trained model says of sequences: a name for each, a name for each step, or how each goes on.

    koopsim predict RUN new.csv        koopsim forecast RUN --data new.csv        koopsim eval RUN --data new.csv

`SequenceInputs`, which the run wrote beside its weights, says how the new ones become what the model takes; the data it
was trained on is not needed. Where the truth is there too, it is told how good the answers are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from koopsim.answering import csv_text, evaluating
from koopsim.datasets.sequence_files import read_sequences
from koopsim.datasets.sequence_inputs import SequenceInputs
from koopsim.datasets.sequences import Sequences, filled_up
from koopsim.datasets.table import ENDINGS, read_table
from koopsim.errors import KoopsimError

BATCH = 64
Array = NDArray[Any]


@dataclass(frozen=True)
class SequenceAnswers:
    """Rows of a table, and the figures where the truth is known."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    figures: dict[str, float]

    def csv(self) -> str:
        return csv_text(self.columns, self.rows)

    def json(self) -> str:
        return json.dumps(self.as_list(), indent=2)

    def as_list(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def read_for(inputs: SequenceInputs, path: Path | str) -> Sequences:
    """The sequences of a file, read as the training file was; labels are not needed, and other columns may be there."""
    columns, file = inputs.columns, Path(path)
    if file.is_file() and file.suffix.lower() in ENDINGS and file.suffix.lower() != ".npz":
        there = read_table(file).names
        if inputs.target and inputs.goal != "forecast" and inputs.target[0] not in there:
            columns = replace(columns, target=(), goal=None)
        used = {columns.id, columns.time, columns.text, *columns.target, *inputs.channels}
        columns = replace(columns, drop=tuple(name for name in there if name not in used))
    return inputs.arranged(read_sequences(path, columns))


@torch.no_grad()
def outputs_of(model: nn.Module, inputs: SequenceInputs, values: list[Array]) -> Iterator[tuple[int, Array]]:
    """(number of the sequence, (T, outputs) of it): in batches, filled up on the right."""
    first = next(model.parameters())
    with evaluating(model):
        for start in range(0, len(values), BATCH):
            some = values[start : start + BATCH]
            x = filled_up(some)
            x = x[..., 0] if x.ndim == 3 and x.shape[2] == 1 else x
            tensor = torch.from_numpy(x).to(first.device)
            found = model(tensor if inputs.bytes else tensor.to(first.dtype)).double().cpu().numpy()
            if found.shape[-1] != inputs.outputs:
                raise KoopsimError(f"The model has {found.shape[-1]} outputs where {inputs.outputs} are named.")
            for i, own in enumerate(some):
                yield start + i, found[i, : len(own)]


def _shares(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def answers(model: nn.Module, inputs: SequenceInputs, found: Sequences) -> SequenceAnswers:
    """Labels of sequences or of their steps, with probabilities."""
    values = inputs.scaled(found.values, found.path)
    classes, rows = inputs.classes, []
    right, seen = 0, 0
    truth = _truth(inputs, found)
    for number, logits in outputs_of(model, inputs, values):
        steps = _shares(logits.mean(0, keepdims=True) if inputs.goal == "classify" else logits)
        named = steps.argmax(-1)
        for step, (which, shares) in enumerate(zip(named.tolist(), steps, strict=True)):
            place = () if inputs.goal == "classify" else (_moment(found, number, step),)
            rows.append((found.names[number], *place, classes[which], float(shares[which]), *shares.tolist()))
        if truth is not None:
            right += int((named == truth[number]).sum())
            seen += len(named)
    head = ("sequence", *(() if inputs.goal == "classify" else ("time",)), "class", "probability")
    figures = {"accuracy": right / seen} if seen else {}
    return SequenceAnswers((*head, *(f"p({name})" for name in classes)), rows, figures)


def _moment(found: Sequences, number: int, step: int) -> float | int | str:
    return step if found.times is None else _told(found, number, found.times[number][step : step + 1]).tolist()[0]


def _told(found: Sequences, number: int, times: Array) -> Array:
    """Times as the file has them: dates where it has dates."""
    if found.since is None:
        return times
    dates = found.since[number] + np.round(1e6 * times).astype("timedelta64[us]")
    whole = np.all(dates == dates.astype("datetime64[s]"))
    return np.datetime_as_string(dates, unit="s" if whole else "us")


def _truth(inputs: SequenceInputs, found: Sequences) -> list[Array] | None:
    """The labels in the numbers of the model's classes; an unknown one is refused."""
    given = found.labels if inputs.goal == "classify" else found.tags
    if given is None:
        return None
    strange = [c for c in found.classes if c not in inputs.classes]
    if strange:
        raise KoopsimError(f"{found.path} has the class {strange[0]!r}, which the model was never shown.")
    place = np.array([inputs.classes.index(c) for c in found.classes])
    return [place[np.atleast_1d(own)] for own in given]


# ---------------------------------------------------------------- how they go on


@dataclass(frozen=True)
class Forecasts:
    """(n, h, D) in the units of the data: the middle and the radius of each interval; and the ends they go on from."""

    names: tuple[str, ...]
    targets: tuple[str, ...]
    middle: Array
    radii: Array  # (h, D)
    coverage: float
    past: list[Array]  # of each sequence the targets so far
    times: list[Array]  # of the steps ahead; dates where the data have dates

    def rows(self) -> SequenceAnswers:
        columns = [c for name in self.targets for c in (name, f"{name} low", f"{name} high")]
        rows = []
        for name, middle, times in zip(self.names, self.middle, self.times, strict=True):
            for k, (when, own) in enumerate(zip(times.tolist(), middle, strict=True)):
                each = np.stack([own, own - self.radii[k], own + self.radii[k]], axis=1)
                rows.append((name, k + 1, when, *each.ravel().tolist()))
        return SequenceAnswers(("sequence", "ahead", "time", *columns), rows, {})


def forecasts(model: nn.Module, inputs: SequenceInputs, found: Sequences, intervals: dict[str, Any]) -> Forecasts:
    """How each sequence goes on after its last step."""
    radii = _radii(inputs, intervals)
    places = inputs.target_places
    scale = np.array(inputs.scale)[places]
    values = inputs.scaled(found.values, found.path)
    short = next((n for n, v in zip(found.names, values, strict=True) if len(v) < 2), None)
    if short is not None:
        raise KoopsimError(f"{found.path}: the sequence {short!r} has one step; a forecast looks back at some.")
    ends = [v[-inputs.length :] for v in values]
    middle = np.empty((len(values), inputs.ahead, len(places)))
    shift = np.array(inputs.shift)[places]
    for number, outputs in outputs_of(model, inputs, ends):
        last = ends[number][-1, places]
        steps = outputs[-1].reshape(inputs.ahead, len(places))
        middle[number] = (last + steps) / scale + shift
    past = [v[:, places] / scale + shift for v in values]
    times, coverage = _ahead(found, inputs), float(intervals["coverage"])
    return Forecasts(found.names, inputs.targets, middle, radii, coverage, past, times)


def _radii(inputs: SequenceInputs, intervals: dict[str, Any]) -> Array:
    """(h, D): one for every step ahead and every target, in their units."""
    if inputs.goal != "forecast":
        raise KoopsimError("This run does not forecast: it was trained to name sequences.")
    rows, wide = intervals["radii"], len(inputs.targets)
    if len(rows) != inputs.ahead or any(len(row) != wide or min(row) < 0 for row in rows):
        raise KoopsimError(f"The radii in result.json are not {inputs.ahead} x {wide} widths: one a step and target.")
    return np.array(rows, float)


def _ahead(found: Sequences, inputs: SequenceInputs) -> list[Array]:
    """Times of the steps ahead: as far apart as the last ones were, in the median."""
    steps = np.arange(1, inputs.ahead + 1)
    if found.times is None:
        return [len(v) - 1 + steps.astype(float) for v in found.values]
    usual = [float(np.median(np.diff(t[-50:]))) if len(t) > 1 else 1.0 for t in found.times]
    return [_told(found, n, t[-1] + steps * step) for n, (t, step) in enumerate(zip(found.times, usual, strict=True))]


def backtest(model: nn.Module, inputs: SequenceInputs, found: Sequences, intervals: dict[str, Any]) -> dict[str, float]:
    """Errors of forecasts from every step of these sequences that has a truth, and how often the intervals held it."""
    radii = _radii(inputs, intervals)
    h, places = inputs.ahead, inputs.target_places
    scale = np.array(inputs.scale)[places]
    errors, naive = [], []
    for name, own in zip(found.names, inputs.scaled(found.values, found.path), strict=True):
        L = min(inputs.length, max(2, len(own) - h))
        if len(own) < L + h:
            raise KoopsimError(f"{found.path}: {name!r} has {len(own)} steps; to be judged it needs {h + 2}.")
        starts = np.arange(len(own) - L - h + 1)
        starts = starts[np.linspace(0, len(starts) - 1, min(len(starts), 2000)).astype(int)]
        windows = [own[s : s + L] for s in starts.tolist()]
        for number, outputs in outputs_of(model, inputs, windows):
            s = int(starts[number])
            last, truth = own[s + L - 1, places], own[s + L : s + L + h, places]
            errors.append((last + outputs[-1].reshape(h, len(places)) - truth) / scale)
            naive.append((last - truth) / scale)
    off, plain = np.stack(errors), np.stack(naive)
    return {
        "rmse": float(np.sqrt(np.mean((off * scale) ** 2))), "mae": float(np.mean(np.abs(off * scale))),
        "coverage": float(np.mean(np.abs(off) <= radii)),
        "last_value_rmse": float(np.sqrt(np.mean((plain * scale) ** 2))),
    }  # fmt: skip


def draw_forecasts(found: Forecasts, most: int = 4) -> Any:
    """A figure: the end of each sequence, how it goes on, and the intervals."""
    from matplotlib.figure import Figure

    from koopsim.files.writing import figure_text

    shown = min(most, len(found.names))
    figure = Figure(figsize=(8, 2.2 * shown * len(found.targets) + 0.4), layout="constrained")
    axes = figure.subplots(shown * len(found.targets), 1, squeeze=False)[:, 0]
    h = found.middle.shape[1]
    for row, axis in enumerate(axes):
        n, d = divmod(row, len(found.targets))
        past = found.past[n][-4 * h - 20 :, d]
        ahead = np.arange(1, h + 1)
        axis.plot(np.arange(1 - len(past), 1), past, color="#374151", linewidth=1)
        middle, radius = found.middle[n, :, d], found.radii[:, d]
        axis.fill_between(ahead, middle - radius, middle + radius, color="#2563eb", alpha=0.2, linewidth=0)
        axis.plot(ahead, middle, color="#2563eb", linewidth=1.5)
        axis.axvline(0, color="#9ca3af", linewidth=0.8)
        axis.set_title(figure_text(f"{found.names[n]}: {found.targets[d]}", 80), fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel(f"steps from the end; the band holds {found.coverage:.0%} of what came in the calibrating part")
    return figure
