"""How cost grows: with the horizon T, the lifted dimension N, the number of pictures, the number of trials."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from koopsim.bench.limit import floor_of
from koopsim.bench.result import GrowthCurve
from koopsim.bench.setting import Setting, in_precision, model_of
from koopsim.bench.stacks import picture_demand, picture_maker, stack_maker
from koopsim.bench.timing import Maker, measure
from koopsim.bench.training import Stepping, copy_stepping, steps_of
from koopsim.config import MLPConfig, SIMConfig
from koopsim.models import build
from koopsim.runs import write_figure

POINTS_WIDTH = 256  # of the lift and the readout in the curve over N


def growth_curves(setting: Setting) -> list[GrowthCurve]:
    """The four curves."""
    with in_precision(setting.precision):
        return [over_horizons(setting), over_lifted(setting), over_pictures(setting), over_trials(setting)]


def over_horizons(setting: Setting) -> GrowthCurve:
    """A training step on copy memory, batch 1: a convolution grows with T, attention with T^2 besides."""
    horizons, solver = setting.sizes.growth_horizons, setting.sizes.growth_solver
    sim, deq = (
        {T: copy_stepping(model_of(name, setting.device), setting, 1, T) for T in horizons if longest >= T}
        for name, longest in (("copy/sim-single", max(horizons)), ("copy/deq", solver))
    )
    seconds: dict[str, tuple[float | None, ...]] = {}
    for name, steppings in (("copy/sim-single", sim), ("copy/deq", deq)):
        if steppings:
            seconds[name] = tuple(stepped(steppings[T], setting) if T in steppings else None for T in horizons)
    floors = tuple(_floor(sim[T], setting) for T in horizons)
    return GrowthCurve("T", "train step, copy memory, batch 1", horizons, seconds, floors)


def over_lifted(setting: Setting) -> GrowthCurve:
    """A training step of a SIM of points, K = N/2: products with U and V take N^2 a point."""
    found, floors = [], []
    for N in setting.sizes.growth_lifted:
        stepping = points_stepping(N, setting)
        found.append(stepped(stepping, setting))
        floors.append(_floor(stepping, setting))
    work = f"train step, {setting.sizes.points:,} points"
    return GrowthCurve("N", work, setting.sizes.growth_lifted, {"SIM": tuple(found)}, tuple(floors))


def points_stepping(N: int, setting: Setting) -> Stepping:
    """Steps of a SIM with an MLP lift to N dimensions, on random points."""
    torch.manual_seed(0)
    model = build(SIMConfig(MLPConfig(2, POINTS_WIDTH), lift_dim=N, hidden=POINTS_WIDTH, outputs=3))
    count = setting.sizes.points * steps_of(setting)
    x, y = (torch.rand(count, width, device=setting.device) for width in (2, 3))
    return Stepping(model.to(setting.device), _squares, x, y, setting.sizes.points)


def over_pictures(setting: Setting) -> GrowthCurve:
    """A training step of the networks of so many pictures, by picture."""
    counts, size = setting.sizes.growth_pictures, setting.sizes.picture_size
    found = by_member(counts, lambda count: picture_maker(setting, count), setting)
    floor = floor_of(picture_demand(size), setting.machine, setting.precision).seconds
    work = f"train step a picture of {size} x {size}"
    return GrowthCurve("pictures", work, counts, {"together": found}, (floor,) * len(counts))


def over_trials(setting: Setting) -> GrowthCurve:
    """A training step of a stack of so many trials, by trial."""
    counts = setting.sizes.growth_trials
    found = by_member(counts, lambda count: stack_maker(setting, count), setting)
    work = f"train step a trial, copy memory T={setting.sizes.horizon}, batch 1"
    stepping = copy_stepping(model_of("copy/sim-single", setting.device), setting, 1, setting.sizes.horizon)
    return GrowthCurve("trials", work, counts, {"stacked": found}, (_floor(stepping, setting),) * len(counts))


def by_member(counts: Sequence[int], maker: Callable[[int], Maker], setting: Setting) -> tuple[float | None, ...]:
    times = [seconds_alone(maker(count), setting, steps_of(setting)) for count in counts]
    return tuple(None if t is None else t / count for t, count in zip(times, counts, strict=True))


def stepped(stepping: Stepping, setting: Setting) -> float | None:
    """Seconds a step of its trainer."""
    return seconds_alone(stepping.maker(setting, setting.capture), setting, stepping.steps)


def seconds_alone(maker: Maker, setting: Setting, steps: int) -> float | None:
    """Seconds a step of a work of so many; None where it does not fit into memory."""
    try:
        return measure({"": maker}, setting.device, 3, {"": steps})[""].seconds
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None


def exponent(points: Sequence[int], seconds: Sequence[float | None]) -> float | None:
    """p of seconds ~ points^p, over the last doubling or more: what the growth has come to at the end."""
    known = [(math.log(x), math.log(s)) for x, s in zip(points, seconds, strict=True) if s is not None]
    if len(known) < 2:
        return None
    (x0, y0), (x1, y1) = known[-2:]
    return (y1 - y0) / (x1 - x0)


def draw_growth(curves: Sequence[GrowthCurve], title: str, file: Path) -> Path:
    """The curves side by side on logarithmic axes, floors dotted, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(curves), 3.6), layout="constrained")
    figure.suptitle(title, fontsize=9)
    for axis, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
        for name, seconds in curve.seconds.items():
            milliseconds = [math.nan if s is None else 1e3 * s for s in seconds]
            axis.plot(curve.points, milliseconds, marker="o", markersize=3, label=name)
        if curve.floors:
            axis.plot(curve.points, [1e3 * s for s in curve.floors], ":", color="grey", label="floor")
        axis.set(xscale="log", yscale="log", xlabel=curve.axis, ylabel="milliseconds")
        axis.set_xticks(curve.points, [f"{point:,}" for point in curve.points], fontsize=7, rotation=45)
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axis.set_title(curve.what, fontsize=8, pad=18)
        axis.legend(fontsize=7, frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 0.99))
        axis.spines[["top", "right"]].set_visible(False)
    write_figure(file, figure)
    return file


def _squares(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().mean()


def _floor(stepping: Stepping, setting: Setting) -> float:
    return floor_of(stepping.demand(), setting.machine, setting.precision).seconds
