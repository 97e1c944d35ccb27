"""One optimiser step, and the same step captured in a CUDA graph.

    loss(model(inputs(x)), y) -> gradient -> clip -> Adam -> average      clip after backward

The step takes nothing from the host: the data, the shuffled order, the numbers that augmentation goes by, the
schedule's table and the counters all live on the device. Run as it stands it is the readable twin; on CUDA it is
captured once for each batch size and replayed, which takes the host out of the loop.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from koopsim.config import Recipe
from koopsim.tasks.augment import numbers
from koopsim.tasks.base import Split
from koopsim.train.adam import Adam, Course
from koopsim.train.capture import captured
from koopsim.train.schedule import adam_table

ADAPT_EVERY = 64  # steps between looks at how much work the model's captured step should do


class Trainer:
    """Steps a model through epochs of a data set.

    inputs   (rows, draws) -> what the model sees; draws in [0, 1), for augmentation, a row a sample
    capture  replay the step from a CUDA graph;   compile  let torch.compile fuse the model's small kernels
    room     epochs there is room for, where `restart` is to give this trainer another, longer run
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        data: Split,
        recipe: Recipe,
        seed: int = 0,
        autocast: torch.dtype | None = None,
        capture: bool = False,
        compile: bool = False,
        inputs: Callable[[Tensor, Tensor | None], Tensor] = lambda x, draws: x,
        room: int = 0,
    ):
        self.model, self.loss, self.recipe, self.seed = model, loss, recipe, seed
        self.forward = torch.compile(model, dynamic=False) if compile else model
        self.x, self.y = data
        self.inputs = inputs
        self.device, self.autocast = self.x.device, autocast
        self.size = min(recipe.batch_size, len(self.x))
        self.steps_per_epoch = -(-len(self.x) // self.size)
        decays = recipe.weight_decay > 0
        self.adam = Adam(model.parameters(), recipe.eps, recipe.clip_norm, decays, recipe.average)
        self.averaged = self._averages()
        dtype = self.adam.flat.dtype
        self.table = torch.empty(max(room, recipe.epochs) * self.steps_per_epoch, 4, dtype=dtype, device=self.device)
        self._schedule(recipe)
        self.order = torch.empty(len(self.x), dtype=torch.int64, device=self.device)
        self.draws = torch.empty(len(self.x), numbers(recipe), device=self.device) if recipe.augments else None
        self.offsets = torch.arange(self.size, device=self.device)
        self.counters = torch.zeros(2, dtype=torch.int64, device=self.device)  # step of the run, step of the epoch
        self.losses = torch.zeros(self.steps_per_epoch, dtype=dtype, device=self.device)
        self.diagnostics: dict[str, Tensor] = {}  # sums over the epoch of what the model says of itself
        self.capture, self.adaptive = capture, True  # adaptive: let the model change what its captured step does
        self._graphs: dict[object, torch.cuda.CUDAGraph] = {}
        self.start_epoch(0)

    @property
    def steps(self) -> int:
        """How many steps the whole run has."""
        return self.recipe.epochs * self.steps_per_epoch

    def _schedule(self, recipe: Recipe) -> None:
        """Fill the table; what lies beyond the recipe's end is nan, so that a step too many is seen."""
        rows = torch.as_tensor(adam_table(recipe, self.steps_per_epoch), dtype=self.table.dtype)
        self.table.fill_(torch.nan)[: len(rows)] = rows.to(self.device)

    @torch.no_grad()
    def restart(self, model: nn.Module, recipe: Recipe, seed: int) -> None:
        """Begin another run of the same shapes in the same tensors, so that what was captured can be replayed.

        It may differ in weights and buffers, learning rate, schedule, length and seed, not in what a step does.
        """
        self.model.load_state_dict(model.state_dict())
        self.recipe, self.seed = recipe, seed
        self._schedule(recipe)
        for tensor in (self.adam.mean, self.adam.square, self.counters):
            tensor.zero_()
        for average in self.averaged.values():
            average.zero_()
        self.model.train()
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        """Shuffle on the device. The order depends on seed and epoch alone, so a resumed run needs no history."""
        shuffle(self.order, self.draws, self.seed, epoch)
        self.counters[1] = 0
        self.losses.zero_()
        for total in self.diagnostics.values():
            total.zero_()

    def tune(self) -> None:
        """Let a model that has settings besides its weights choose them by the epoch's first batch."""
        chosen: Callable[[Tensor], None] | None = getattr(self.model, "start_epoch", None)
        if chosen is not None:
            rows = self.order[: self.size]
            draws = None if self.draws is None else self.draws[rows]
            chosen(self.inputs(self.x[rows], draws))

    def step(self, size: int) -> None:
        """The next `size` samples of the order: one update. The readable twin of its captured form."""
        places = torch.add(self.offsets[:size], self.counters[1:], alpha=self.size)
        rows = self.order.index_select(0, places)
        draws = None if self.draws is None else self.draws.index_select(0, rows)
        x = self.inputs(self.x.index_select(0, rows), draws)
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            loss = self.loss(self.forward(x), self.y.index_select(0, rows))
        course = Course(self.table, self.counters, self.losses)
        self.adam.advance(self.adam.gradient(loss), loss, course)
        self._average_buffers()
        self._add_diagnostics()

    def _averages(self) -> dict[str, Tensor]:
        """What an average is kept of, where the recipe asks for one: the flat parameters, and running statistics."""
        if self.adam.averaged is None:
            return {}
        buffers = {name: torch.zeros_like(t) for name, t in self.model.named_buffers() if t.is_floating_point()}
        return {"parameters": self.adam.averaged} | buffers

    @torch.no_grad()
    def _average_buffers(self) -> None:
        """a <- a + (1 - average) (b - a), as `Adam` does with the parameters."""
        now = dict(self.model.named_buffers())
        names = [name for name in self.averaged if name in now]
        if names:
            averages = [self.averaged[name] for name in names]
            torch._foreach_lerp_(averages, [now[name] for name in names], 1 - self.recipe.average)

    def result(self) -> nn.Module:
        """The model to be judged: the trained one, or its average where the recipe asks for one."""
        steps = int(self.counters[0])
        if not self.averaged or not steps:
            return self.model
        model, start, weight = copy.deepcopy(self.model), 0, 1 - self.recipe.average**steps
        flat = self.averaged["parameters"] / weight
        with torch.no_grad():
            for p in (p for p in model.parameters() if p.requires_grad):
                p.copy_(flat[start : start + p.numel()].view_as(p))
                start += p.numel()
            for name, buffer in model.named_buffers():
                if name in self.averaged:
                    buffer.copy_(self.averaged[name] / weight)
        return model

    def _add_diagnostics(self) -> None:
        """Sum up what the model says of the step just taken, such as a solver's share of unconverged samples."""
        report: Callable[[], dict[str, Tensor]] | None = getattr(self.model, "diagnostics", None)
        for name, value in (report() if report else {}).items():
            if name not in self.diagnostics:
                self.diagnostics[name] = torch.zeros_like(value)
            self.diagnostics[name].add_(value)

    def run(self, first: int, last: int) -> None:
        """Steps `first` to `last` (exclusive) of the current epoch."""
        for position in range(first, last):
            size = min(self.size, len(self.x) - position * self.size)
            if not self.capture:
                self.step(size)
                continue
            if self.adaptive and position % ADAPT_EVERY == 0:
                getattr(self.model, "adapt", _nothing)()
            self.graph(size).replay()

    def warm_up(self) -> None:
        """Capture the step now, so that compiling kernels is not counted as training."""
        if self.capture:
            self.graph(self.size)

    def graph(self, size: int) -> torch.cuda.CUDAGraph:
        """The captured step for a batch of `size` and the model's present variant, captured on first use."""
        key = (size, getattr(self.model, "variant", None))
        if key not in self._graphs:
            self._graphs[key] = captured(lambda: self.step(size), self.state_tensors, self.device)
        return self._graphs[key]

    def state_tensors(self) -> dict[str, Tensor]:
        """Every tensor that a step changes."""
        own = {"flat": self.adam.flat, "mean": self.adam.mean, "square": self.adam.square}
        own |= {"counters": self.counters, "losses": self.losses}
        buffers = {f"buffer.{name}": t for name, t in self.model.named_buffers()}
        own |= {f"averaged.{name}": t for name, t in self.averaged.items()}
        return own | buffers | {f"diagnostics.{name}": t for name, t in self.diagnostics.items()}


def shuffle(order: Tensor, draws: Tensor | None, seed: int, epoch: int) -> None:
    """Fill the order of the samples, and the numbers augmentation goes by, from seed and epoch alone."""
    generator = torch.Generator(order.device).manual_seed(seed * 1_000_003 + epoch)
    torch.randperm(len(order), generator=generator, device=order.device, out=order)
    if draws is not None:
        draws.uniform_(generator=generator)


def _nothing() -> None:
    """What a model without an `adapt` does."""
