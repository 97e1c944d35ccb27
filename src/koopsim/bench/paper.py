"""The paper's own code on the same work: its networks at the presets' sizes, stepped as its training loops do.

It is nobody's package: KOOPSIM_PAPER_CODE names a folder that has `sim/net.py`, such as `src` of a checkout. Its module
is run from there; nothing of it is in here. One picture's network is stepped beside one of ours. On a CPU the two have
a process each (apart.py): ours trains as every training does (engine/drive.py), all else is left as it is. Neither side
has learnt anything yet.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.bench.apart import apart
from koopsim.bench.result import Comparison, Side
from koopsim.bench.setting import Setting, in_precision, model_of
from koopsim.bench.stacks import PICTURE, picture_maker, random_pictures
from koopsim.bench.timing import Maker, Work, measure
from koopsim.bench.training import copy_stepping, image_stepping, steps_of
from koopsim.config import IdentityConfig, SIMConfig, TCNConfig, VGGConfig
from koopsim.engine.drive import as_it_trains
from koopsim.engine.freed import freed_memory_kept
from koopsim.errors import KoopsimError
from koopsim.presets import PRESETS

VARIABLE = "KOOPSIM_PAPER_CODE"
COPY, IMAGES = "copy/sim-single", "cifar10/sim-single"
BATCH = 20  # of copy memory
Pair = tuple[Maker, Callable[[nn.Module], Maker], int]  # ours, theirs of a network, steps in a turn
SIDES = ("koopsim", "paper")
AGAIN = 4  # times as many turns on a CPU, where a ratio of five turns moves by a tenth


@dataclass(frozen=True)
class PaperWork:
    """What both sides do."""

    title: str
    preset: str
    training: Pair
    inference: Pair


Build = Callable[[Setting], PaperWork]


def paper_networks() -> ModuleType:
    """The module `sim.net` of the paper's code."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise KoopsimError(f"The paper's code is not named: set {VARIABLE} to a folder that has sim/net.py.")
    file = Path(folder) / "sim" / "net.py"
    spec = importlib.util.spec_from_file_location("paper_networks", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise KoopsimError(f"{VARIABLE} is {folder}, where there is no sim/net.py.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _temporal(theirs: Any, c: SIMConfig, lift: TCNConfig) -> nn.Module:
    sizes = [lift.channels] * lift.levels
    return theirs.SingleTierTempConvNet(lift.input_channels, c.outputs, sizes, lift.kernel, 0.0, c.lift_dim, c.hidden)


def _images(theirs: Any, c: SIMConfig, lift: VGGConfig) -> nn.Module:
    depth, height, _ = lift.image
    return theirs.SingleTierConvNet(height, c.outputs, depth, lift.channels, c.lift_dim, c.hidden)


def _points(theirs: Any, c: SIMConfig, lift: IdentityConfig) -> nn.Module:
    assert c.fourier is not None
    bandwidth = c.fourier.bandwidth
    return theirs.SingleTierFourierNet(lift.inputs, c.outputs, c.fourier.features, c.hidden, bandwidth=bandwidth)


THEIRS: dict[type, Callable[[Any, SIMConfig, Any], nn.Module]]
THEIRS = {TCNConfig: _temporal, VGGConfig: _images, IdentityConfig: _points}  # their network for each of our lifts


def their_model(name: str) -> nn.Module:
    """Their network at the sizes of a preset."""
    config = cast(SIMConfig, PRESETS[name].model)
    if type(config.lift) not in THEIRS:
        raise KoopsimError(f"The paper's code has no network for {name}.")
    return THEIRS[type(config.lift)](paper_networks(), config, config.lift)


def fresh(name: str, setting: Setting) -> nn.Module:
    """Ours, before its first step."""
    return model_of(name, setting.device, trained=False)


def their_steps(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, batch: int) -> Maker:
    """Their loop: a slice of the data, zeroed gradients, forward, backward, Adam."""

    def make() -> Work:
        optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-6)

        def work() -> None:
            for first in range(0, len(x), batch):
                optimizer.zero_grad()
                loss(model(x[first : first + batch]), y[first : first + batch]).backward()
                optimizer.step()

        return work

    return make


def applied(model: nn.Module, x: Tensor) -> Maker:
    """Inference."""

    def work() -> None:
        with torch.no_grad():
            model.eval()(x)

    return lambda: work


def copy_work(setting: Setting) -> PaperWork:
    horizon, steps = setting.sizes.horizon, steps_of(setting)
    ours = copy_stepping(fresh(COPY, setting), setting, BATCH, horizon)
    x = ours.x.float()[:, None]
    return PaperWork(
        f"copy memory T={horizon}, batch {BATCH}", COPY,
        (ours.maker(setting, setting.capture), lambda m: their_steps(m, _sequence_loss, x, ours.y, BATCH), steps),
        (applied(fresh(COPY, setting), ours.x[:BATCH]), lambda m: applied(m, x[:BATCH]), 1),
    )  # fmt: skip


def cifar10_work(setting: Setting) -> PaperWork:
    ours = image_stepping(fresh(IMAGES, setting), setting, setting.sizes.image_batch, (3, 32, 32))
    x, y, batch = ours.x, ours.y, ours.batch
    return PaperWork(
        f"CIFAR-10, batch {batch}", IMAGES,
        (ours.maker(setting, setting.capture), lambda m: their_steps(m, F.cross_entropy, x, y, batch), ours.steps),
        (applied(fresh(IMAGES, setting), x[:batch]), lambda m: applied(m, x[:batch]), 1),
    )  # fmt: skip


def picture_work(setting: Setting) -> PaperWork:
    size, steps = setting.sizes.picture_size, steps_of(setting)
    given = random_pictures(1, size, setting.device).split("train")
    points, colours = (t.view(1, *t.shape[-2:]).expand(steps, -1, -1) for t in given)
    return PaperWork(
        f"a picture of {size} x {size}", PICTURE,
        (picture_maker(setting, 1), lambda m: their_steps(m, F.mse_loss, points, colours, 1), steps),
        (applied(fresh(PICTURE, setting), points[0]), lambda m: applied(m, points[0]), 1),
    )  # fmt: skip


TASKS: tuple[Build, ...] = (copy_work, cifar10_work, picture_work)


def paper_rows(setting: Setting) -> list[Comparison]:
    """A training step and inference of the three tasks."""
    paper_networks()  # or say so before anything is built
    found, turns = [], setting.sizes.turns * (AGAIN if setting.device.type == "cpu" else 1)
    for build in TASKS:
        task = build(setting)
        for kind, pair in (("train step", task.training), ("inference", task.inference)):
            answers, own = pair is task.inference, setting.device.type == "cpu"  # process
            makers = {s: alone(setting, build, s, answers) if own else _maker(setting, task, pair, s) for s in SIDES}
            with in_precision(setting.precision):
                timings = measure(makers, setting.device, turns, dict.fromkeys(SIDES, pair[2]))
            sides = (Side(task.preset, timings["koopsim"]), Side("the paper's code", timings["paper"]))
            found.append(Comparison("paper", f"{kind}, {task.title}", *sides))
    return found


def _maker(setting: Setting, task: PaperWork, pair: Pair, side: str) -> Maker:
    ours, theirs, _ = pair
    return ours if side == "koopsim" else theirs(their_model(task.preset).to(setting.device))


def alone(setting: Setting, build: Build, side: str, answers: bool = False, kept: bool | None = None) -> Maker:
    """A step, or an answer, in a process of its own, ours as it trains; `kept`: only keeping what it frees, or not."""
    if kept is not None:
        inside = freed_memory_kept if kept else _as_it_is
    else:
        inside = as_it_trains if side == "koopsim" and not answers else _as_it_is
    return apart(partial(_made, setting, build, side, answers), partial(_as_run, setting, inside))


def _made(setting: Setting, build: Build, side: str, answers: bool) -> Work:
    torch.manual_seed(0)  # the same data for both
    task = build(setting)
    return _maker(setting, task, task.inference if answers else task.training, side)()


Inside = Callable[[torch.device], AbstractContextManager[None]]


@contextmanager
def _as_run(setting: Setting, inside: Inside) -> Iterator[None]:
    with in_precision(setting.precision), inside(setting.device):
        yield


def _as_it_is(device: torch.device) -> AbstractContextManager[None]:
    return nullcontext()


def _sequence_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))
