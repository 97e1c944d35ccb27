"""Pictures of a search: how it went, and what mattered.

best-so-far.png    the best metric against time
parallel.png       every trial as a line through its parameters, coloured by its metric
sensitivity.png    the metric against learning rate and bandwidth
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from koopsim.runs import write_figure
from koopsim.searching.results import best_so_far, ranked, value_of
from koopsim.searching.trial import Trial
from koopsim.spaces import BANDWIDTH, Choice, LogUniform, Median, SearchSpace

RATE = "recipe.learning_rate"
GONE = "0.6"  # the grey of trials without a figure


def save_plots(trials: Sequence[Trial], space: SearchSpace, folder: Path) -> list[str]:
    """Draw all that can be drawn into `folder`; the names of the files."""
    names = []
    for name, figure in (
        ("best-so-far.png", draw_best_so_far(trials, space)),
        ("parallel.png", draw_parallel(trials, space)),
        ("sensitivity.png", draw_sensitivity(trials, space)),
    ):
        if figure is not None:
            write_figure(folder / name, figure, dpi=120, bbox_inches="tight")
            names.append(name)
    return names


def _logarithmic(space: SearchSpace, values: Sequence[float]) -> bool:
    return space.metric == "loss" and min(values) > 0


def draw_best_so_far(trials: Sequence[Trial], space: SearchSpace) -> Figure | None:
    """A step down (or up) each time a report is better than all before."""
    points = best_so_far(trials, space)
    if not points:
        return None
    end = max(line["seconds"] for t in trials for line in t.curve)
    seconds, metric = [p[0] for p in points] + [end], [p[1] for p in points] + [points[-1][1]]
    figure = Figure(figsize=(6, 3.6))
    axes = figure.add_subplot()
    for t in trials:
        if t.curve:
            x, y = [line["seconds"] for line in t.curve], [line[space.metric] for line in t.curve]
            axes.plot(x, y, color="0.8", lw=0.7)
    axes.step(seconds, metric, where="post", color="C0", lw=2)
    if _logarithmic(space, [line[space.metric] for t in trials for line in t.curve]):
        axes.set_yscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel(f"best validation {space.metric}")
    return figure


def _axis(space: SearchSpace, path: str, raw: list[Any]) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Heights in [0, 1] of a parameter's values, and its tick labels."""
    parameter = space.parameters[path]
    if isinstance(parameter, Choice):
        options = sorted(set(parameter.values), key=lambda v: (str(type(v)), v))
        places = {v: (i / (len(options) - 1) if len(options) > 1 else 0.5) for i, v in enumerate(options)}
        return np.array([places.get(v, np.nan) for v in raw]), [(h, str(v)) for v, h in places.items()]
    numbers = np.array([v if isinstance(v, (int, float)) else np.nan for v in raw], dtype=float)
    if isinstance(parameter, (LogUniform, Median)):
        numbers = np.log10(numbers)
    low, high = np.nanmin(numbers), np.nanmax(numbers)
    scale = high - low or 1.0
    ends = [(0.0, low), (1.0, high)]
    shown = [(h, f"{10**v if isinstance(parameter, (LogUniform, Median)) else v:.2g}") for h, v in ends]
    return (numbers - low) / scale, shown


def draw_parallel(trials: Sequence[Trial], space: SearchSpace) -> Figure | None:
    """The best lines are dark and on top; trials without a figure are grey."""
    order = ranked(trials, space)
    paths = list(space.parameters)
    if not order or not paths:
        return None
    rest = [t for t in trials if t not in order]
    everyone = [*rest, *reversed(order)]
    heights, labels = zip(*(_axis(space, p, [value_of(t, p) for t in everyone]) for p in paths), strict=True)
    figure = Figure(figsize=(1.8 + 1.6 * len(paths), 4))
    axes = figure.add_subplot()
    from matplotlib import colormaps

    jitter = np.random.default_rng(0).uniform(-0.012, 0.012, len(everyone))  # equal choices are lines apart
    for k in range(len(everyone)):
        rank = k - len(rest)
        color = GONE if rank < 0 else colormaps["viridis_r"](rank / max(len(order) - 1, 1))
        axes.plot([h[k] + jitter[k] for h in heights], color=color, lw=2 if k == len(everyone) - 1 else 0.9)
    for x, ticks in enumerate(labels):
        axes.axvline(x, color="0.4", lw=0.8)
        for height, text in ticks:
            ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
            axes.text(x + 0.03, height, text, fontsize=7, va="center", bbox=ground)
    axes.set_xticks(range(len(paths)), [p.rpartition(".")[2].replace("_", " ") for p in paths])
    axes.set_yticks([])
    axes.set_title(f"{len(trials)} trials, dark: better {space.metric}", fontsize=9)
    return figure


def draw_sensitivity(trials: Sequence[Trial], space: SearchSpace) -> Figure | None:
    """A point a trial, its size by how long it was trained."""
    order = ranked(trials, space)
    paths = [p for p in (RATE, BANDWIDTH) if p in space.parameters]
    if not order or not paths:
        return None
    figure = Figure(figsize=(4.2 * len(paths), 3.4))
    metrics = [value for t in order if (value := t.judged(space)) is not None]
    for k, path in enumerate(paths):
        axes = figure.add_subplot(1, len(paths), k + 1)
        x = [value_of(t, path) for t in order]
        sizes = [8 + 40 * t.t / space.max_t for t in order]
        axes.scatter(x, metrics, s=sizes, c=["C0" if t.status == "finished" else "C1" for t in order], alpha=0.7)
        axes.set_xscale("log")
        if _logarithmic(space, metrics):
            axes.set_yscale("log")
        axes.set_xlabel(path.rpartition(".")[2].replace("_", " "))
        axes.set_ylabel(f"validation {space.metric}" if k == 0 else "")
    figure.suptitle("blue: to the end, orange: pruned", fontsize=8)
    return figure
