"""Training steps: SIMs beside DEQ and monDEQ, captured beside eager, each beside its floor.

A step is the whole one: batch, forward, backward, Adam. Weights are the zoo's where it has all sides, so that solvers
do the work they do late in training; images are random, of the right shape.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim import zoo
from koopsim.bench.limit import Demand, floor_of, train_demand
from koopsim.bench.result import Comparison, Side
from koopsim.bench.setting import Setting, in_precision, model_of, solver_note
from koopsim.bench.timing import Maker, Timing, Work, measure
from koopsim.config import CopyMemoryConfig, Recipe
from koopsim.engine.part import Way, part_of_one
from koopsim.presets import PRESETS
from koopsim.tasks import CopyMemory
from koopsim.tasks.base import Samples
from koopsim.tasks.tagging import OfTags

CUDA_STEPS = 16  # in a turn, so that the host is not measured
SOLVER_STEPS = 4  # of a model with a solver: each takes as long as many of another's


@dataclass
class Stepping:
    """A model, batches, and the trainer that steps it once it is built."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    x: Tensor
    y: Tensor
    batch: int
    whole: Callable[..., Tensor] | None = None  # (model, x, y) -> loss, as the task's trainer is given it

    def maker(self, setting: Setting, capture: bool) -> Maker:
        """Builds a work of as many steps as there are batches."""

        def make() -> Work:
            recipe = Recipe(batch_size=self.batch, epochs=1, learning_rate=1e-6)  # the weights stay where they are

            def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
                return self.loss(model(x), y)

            way = Way(setting.autocast, capture)
            part = part_of_one(self.model.train(), self.whole or loss, Samples(self.x, self.y), recipe, way=way)
            part.begin_epoch()

            def work() -> None:
                part.rewind()
                part.advance(0, self.steps)

            for _ in range(2 * capture):  # until the graph has as many solver steps as the model needs
                work()
            part.adaptive = False  # in training the host looks every 64 steps
            return work

        return make

    @property
    def steps(self) -> int:
        return len(self.x) // self.batch

    def demand(self) -> Demand:
        return train_demand(self.model, self.loss, self.x[: self.batch], self.y[: self.batch])


def steps_of(setting: Setting, model: nn.Module | None = None) -> int:
    """How many steps a turn has."""
    return 1 if not setting.capture else SOLVER_STEPS if hasattr(model, "diagnostics") else CUDA_STEPS


def copy_stepping(model: nn.Module, setting: Setting, batch: int, horizon: int) -> Stepping:
    """Steps on copy memory."""
    config = CopyMemoryConfig(horizon=horizon, train=batch * steps_of(setting, model), valid=1, test=1)
    task = CopyMemory(config, setting.device)
    return Stepping(model, task.loss, *task.split("train"), batch, OfTags(task.loss))


def image_stepping(model: nn.Module, setting: Setting, batch: int, image: tuple[int, int, int]) -> Stepping:
    """Steps on random images of ten classes."""
    count = batch * steps_of(setting, model)
    x = torch.randn(count, *image, device=setting.device)
    return Stepping(model, F.cross_entropy, x, torch.randint(0, 10, (count,), device=setting.device), batch)


def image_of(name: str) -> tuple[int, int, int]:
    model = PRESETS[name].model
    return model.image if hasattr(model, "image") else model.lift.image  # pyright: ignore


def train_rows(setting: Setting) -> list[Comparison]:
    """SIMs beside the DEQ on copy memory, and beside monDEQs on images."""
    found, sizes = [], setting.sizes
    for batch in sizes.copy_batches:
        names = ("copy/sim-single", "copy/sim-two", "copy/deq")
        sides = {n: copy_stepping(model_of(n, setting.device), setting, batch, sizes.horizon) for n in names}
        work = f"train step, copy memory T={sizes.horizon}, batch {batch}"
        found += compared_steps("train", work, sides, setting)
    for dataset in sizes.image_sets:
        names = [f"{dataset}/{kind}" for kind in ("sim-single", "sim-two", "mondeq-single", "mondeq-multi")]
        trained = all(n in zoo.cards() for n in names)
        sides = {
            n: image_stepping(model_of(n, setting.device, trained), setting, sizes.image_batch, image_of(n))
            for n in names
        }
        found += compared_steps("train", f"train step, {dataset}, batch {sizes.image_batch}", sides, setting)
    return found


def compared_steps(row: str, work: str, steppings: dict[str, Stepping], setting: Setting) -> list[Comparison]:
    """Every SIM against every model with a solver, all measured in turns."""
    with in_precision(setting.precision):
        makers = {name: s.maker(setting, setting.capture) for name, s in steppings.items()}
        timings = measure(makers, setting.device, setting.sizes.turns, {n: s.steps for n, s in steppings.items()})
        sides = {name: side(name, timings[name], s, setting) for name, s in steppings.items()}
    sims, others = ([n for n in sides if ("/sim" in n) == ours] for ours in (True, False))
    return [Comparison(row, work, sides[a], sides[b]) for b in others for a in sims]


def side(name: str, timing: Timing, stepping: Stepping, setting: Setting) -> Side:
    floor = floor_of(stepping.demand(), setting.machine, setting.precision)
    return Side(name, timing, floor, solver_note(stepping.model))


def capture_rows(setting: Setting) -> list[Comparison]:
    """The same step replayed from a CUDA graph, and run by the host."""
    found, sizes = [], setting.sizes
    works = [("copy/sim-single", batch) for batch in sizes.copy_batches]
    works += [(f"{dataset}/sim-single", sizes.image_batch) for dataset in sizes.image_sets]
    for name, batch in works:

        def stepping(name: str = name, batch: int = batch) -> Stepping:
            model = model_of(name, setting.device)
            if name.startswith("copy"):
                return copy_stepping(model, setting, batch, sizes.horizon)
            return image_stepping(model, setting, batch, image_of(name))

        both = {"captured": stepping(), "eager": stepping()}
        with in_precision(setting.precision):
            makers = {kind: s.maker(setting, kind == "captured") for kind, s in both.items()}
            timings = measure(makers, setting.device, sizes.turns, {kind: s.steps for kind, s in both.items()})
        ours, other = (side(f"{name}, {kind}", timings[kind], both[kind], setting) for kind in both)
        found.append(Comparison("capture", f"train step, batch {batch}", ours, other))
    return found
