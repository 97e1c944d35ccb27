"""Many models as one: a stack of trials, a set of pictures, each beside the same models one after the other.

"One by one" is one model's step, measured alone by its own fastest path, times their number.
"""

from dataclasses import replace

import numpy as np
import torch

from koopsim.bench.limit import Demand, floor_of, folded_demand
from koopsim.bench.result import Comparison, Side
from koopsim.bench.setting import Setting, in_precision, model_of
from koopsim.bench.timing import Maker, Timing, Work, measure
from koopsim.bench.training import copy_stepping, steps_of
from koopsim.config import CopyMemoryConfig, ImageRegressionConfig, Run, SIMConfig
from koopsim.engine.part import Way
from koopsim.engine.stacked import Stacked
from koopsim.models import build
from koopsim.nn.folded import folded
from koopsim.pictures import PictureSet
from koopsim.presets import run_of
from koopsim.tasks import CopyMemory, ImageRegression

TRIAL, PICTURE = "copy/sim-single", "image/sim-rff"
BATCH = 1


def stacked_run(setting: Setting) -> Run:
    """The run whose trials are stacked, with as many batches as a turn has steps."""
    run = replace(run_of(TRIAL), train_on="train", precision=setting.precision)
    task = CopyMemoryConfig(horizon=setting.sizes.horizon, train=BATCH * steps_of(setting), valid=1, test=1)
    return replace(run, task=task, recipe=replace(run.recipe, batch_size=BATCH))


def stepping(stack: Stacked, steps: int) -> Work:
    """The first so many steps of an epoch."""
    stack.begin_epoch()

    def work() -> None:
        stack.part.rewind()
        stack.advance(0, steps)

    return work


def stack_maker(setting: Setting, trials: int) -> Maker:
    """Builds a work of `steps_of` steps of a stack of trials."""

    def make() -> Work:
        run = stacked_run(setting)
        assert isinstance(run.task, CopyMemoryConfig)
        task, steps = CopyMemory(run.task, setting.device), steps_of(setting)
        runs = [replace(run, seed=seed) for seed in range(trials)]
        stack = Stacked(runs, task, setting.device, epochs=1, way=Way(capture=setting.capture))
        return stepping(stack, steps)

    return make


def stack_rows(setting: Setting) -> list[Comparison]:
    """A step of all trials."""
    trials, steps = setting.sizes.trials, steps_of(setting)
    alone = copy_stepping(model_of(TRIAL, setting.device), setting, BATCH, setting.sizes.horizon)
    with in_precision(setting.precision):
        makers = {"stack": stack_maker(setting, trials), "alone": alone.maker(setting, setting.capture)}
        timings = measure(makers, setting.device, setting.sizes.turns, {"stack": steps, "alone": steps})
    floor = floor_of(alone.demand().times(trials), setting.machine, setting.precision)
    ours = Side(f"{trials} x {TRIAL}, stacked", timings["stack"], floor)
    other = Side(f"{trials} x {TRIAL}, one by one", repeated(timings["alone"], trials), floor)
    return [Comparison("stack", f"train step, T={setting.sizes.horizon}, batch {BATCH} each", ours, other)]


def random_pictures(count: int, size: int, device: torch.device) -> ImageRegression:
    """So many pictures of noise."""
    values = np.random.default_rng(0).random((count, size, size, 3), dtype=np.float32)
    names = tuple(f"noise{i}" for i in range(count))
    return ImageRegression(ImageRegressionConfig(size=size), device, PictureSet(names, values))


def picture_maker(setting: Setting, count: int) -> Maker:
    """Builds a work of `steps_of` steps of the networks of `count` pictures."""

    def make() -> Work:
        run, steps = run_of(PICTURE), steps_of(setting)
        task = random_pictures(count, setting.sizes.picture_size, setting.device)
        runs = [replace(run, precision=setting.precision)]
        stack = Stacked(runs, task, setting.device, 1, Way(capture=setting.capture))
        return stepping(stack, steps)

    return make


def picture_demand(size: int) -> Demand:
    """A step of one network on a quarter of the pixels, its products folded, its features given."""
    config = run_of(PICTURE).model
    assert isinstance(config, SIMConfig)
    model, rows = build(config), (size // 2) ** 2
    phi = torch.randn(4, config.lifted)  # no more rows are ever counted
    return folded_demand(model, lambda n: folded(model, phi[:n], given=True).square().mean(), rows)


def picture_rows(setting: Setting) -> list[Comparison]:
    """A step of the networks of all pictures."""
    count, steps, size = setting.sizes.pictures, steps_of(setting), setting.sizes.picture_size
    with in_precision(setting.precision):
        makers = {"many": picture_maker(setting, count), "one": picture_maker(setting, 1)}
        timings = measure(makers, setting.device, setting.sizes.turns, {"many": steps, "one": steps})
    floor = floor_of(picture_demand(size).times(count), setting.machine, setting.precision)
    ours = Side(f"{count} x {PICTURE}, together", timings["many"], floor)
    other = Side(f"{count} x {PICTURE}, one by one", repeated(timings["one"], count), floor)
    return [Comparison("pictures", f"train step, pictures of {size} x {size}", ours, other)]


def repeated(timing: Timing, count: int) -> Timing:
    """The same work `count` times in a row; its memory is used again each time."""
    return replace(timing, seconds=count * timing.seconds, spread=count * timing.spread)
