"""Where a step's batch comes from. It asks the host for nothing: data, order and draws live on the device.

    resident   samples on the device, each member's own order of them, drawn from its seed and epoch alone
    whole      every step sees everything: the pixels of a picture, or features of them that nothing learnt precedes
    drawn      a function makes each batch: random pixels of a large picture
    streamed   a Dataset of somebody's own: the host brings each batch to a fixed place on the device (streamed.py)

A feed says how many steps an epoch has and, for each tensor of a batch, whether all members share it.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from koopsim.config import Recipe
from koopsim.engine.world import ALONE, World
from koopsim.errors import KoopsimError
from koopsim.nn.transforms import TRITON
from koopsim.tasks.augment import draws_needed
from koopsim.tasks.base import Samples, Whole
from koopsim.tasks.rows import Rows, Stream
from koopsim.tasks.streaming import Streaming

LITTLE = 2**26  # bytes of samples that may lie in memory twice


class Feed:
    """The base: batches of a fixed size from the members' positions in the epoch."""

    epoch_steps: int
    shared: tuple[bool, ...] = (False, False)
    lost: Mapping[int, str] = {}  # rows that cannot be read and were left out, and why
    world: World = ALONE  # of a batch each process has its share; alone it has all

    def size_at(self, position: int) -> int:
        """How many samples the step at this position of an epoch has; each size is captured by itself."""
        return 0

    def sizes(self) -> set[int]:
        """All of them."""
        return {self.size_at(0), self.size_at(self.epoch_steps - 1)}

    def batch(self, positions: Tensor, size: int) -> tuple[Tensor, ...]:
        """The tensors of a step; `positions` (P,) are the members' places in the epoch."""
        raise NotImplementedError

    def weight(self, size: int) -> float:
        """The share of the batch that this process has."""
        return 1.0 if self.world.alone else self.world.weight(size)

    def first(self, positions: Tensor, size: int) -> tuple[Tensor, ...]:
        """The epoch's first batch, before any step has asked for it."""
        return self.batch(positions, size)

    def begin_epoch(self, seeds: Sequence[int], epochs: Sequence[int]) -> None:
        """Draw what an epoch needs from each member's seed and epoch alone, so a resumed run needs no history."""

    def fetch(self, position: int) -> None:
        """What the host has to bring before the step at this position; nothing, of all that lies on the device."""

    def put(self, row: int, model: nn.Module) -> None:
        """A new model is in this row."""

    def close(self) -> None:
        """No batch will be asked for any more."""


class Batches(Feed):
    """Samples by the batch, and what is left of them in the last of an epoch."""

    def __init__(self, count: int, batch_size: int):
        self.n, self.size = count, min(batch_size, count)
        self.epoch_steps = -(-count // self.size)

    def size_at(self, position: int) -> int:
        return min(self.size, self.n - position * self.size)


class Resident(Batches):
    """Shuffled batches of samples that are on the device."""

    def __init__(self, samples: Samples, recipe: Recipe, members: int):
        n, device = len(samples.x), samples.x.device
        super().__init__(n, recipe.batch_size)
        self.samples, self.recipe = samples, recipe
        self.order = torch.zeros(members, n, dtype=torch.int64, device=device)
        self.draws = torch.zeros(members, n, draws_needed(recipe), device=device) if recipe.augments else None
        self.offsets = torch.arange(self.size, device=device)
        self.laid = self._room() if members == 1 and device.type == "cpu" and self.draws is None else None

    def _room(self) -> tuple[Tensor, Tensor] | None:
        """For samples in the order of an epoch: a little data is fetched from memory faster at once than by rows."""
        x, y = self.samples.x, self.samples.y
        return (torch.empty_like(x), torch.empty_like(y)) if x.nbytes + y.nbytes <= LITTLE else None

    def places(self, positions: Tensor, size: int) -> Tensor:
        """(P, rows): which samples the step has of each member."""
        at = torch.add(self.offsets[:size][self.world.rows(size)], positions.unsqueeze(1), alpha=self.size)
        return self.order.gather(1, at)

    def batch(self, positions: Tensor, size: int) -> tuple[Tensor, ...]:
        if self.laid is not None:
            own, first = self.world.rows(size), int(positions) * self.size
            x, y = (t[first + own.start : first + own.stop] for t in self.laid)
            return self.samples.inputs(x, self.recipe, None).unsqueeze(0), y.unsqueeze(0)
        if self._kernel_fits():
            return self._copied(positions, size)
        rows = self.places(positions, size)
        flat, draws = rows.flatten(), None
        if self.draws is not None:
            places = rows.unsqueeze(-1).expand(-1, -1, self.draws.shape[-1])
            draws = self.draws.gather(1, places).flatten(0, 1)
        x = self.samples.inputs(self.samples.x.index_select(0, flat), self.recipe, draws)
        return x.unflatten(0, rows.shape), self.samples.y.index_select(0, flat).unflatten(0, rows.shape)

    def _kernel_fits(self) -> bool:
        """Whether one kernel brings the batch: five launches of tensor operations count where a step has twenty."""
        if self.draws is not None or not (TRITON and self.order.is_cuda):
            return False
        from koopsim.nn.kernels.batch import copyable

        return copyable(self.samples.x, self.samples.y)

    def _copied(self, positions: Tensor, size: int) -> tuple[Tensor, ...]:
        """The batch by `nn.kernels.batch`."""
        from koopsim.nn.kernels.batch import batch_rows

        own, members = self.world.rows(size), len(self.order)
        count = own.stop - own.start
        x, y = batch_rows(self.samples.x, self.samples.y, self.order, positions, self.size, own.start, count)
        x = self.samples.inputs(x, self.recipe, None)
        return x.unflatten(0, (members, count)), y.unflatten(0, (members, count))

    def begin_epoch(self, seeds: Sequence[int], epochs: Sequence[int]) -> None:
        for row, (seed, epoch) in enumerate(zip(seeds, epochs, strict=True)):
            shuffle(self.order[row], None if self.draws is None else self.draws[row], seed, epoch)
        if self.laid is not None:
            for laid, own in zip(self.laid, (self.samples.x, self.samples.y), strict=True):
                torch.index_select(own, 0, self.order[0], out=laid)


class Shuffled(Resident):
    """The same of any number of tensors, of one member: inputs and target as they are."""

    def __init__(self, rows: Rows, recipe: Recipe):
        first, *_ = rows.tensors
        super().__init__(Samples(first, first), recipe, 1)
        self.tensors, self.shared, self.laid = rows.tensors, (False,) * len(rows.tensors), None

    def batch(self, positions: Tensor, size: int) -> tuple[Tensor, ...]:
        rows = self.places(positions, size)
        return tuple(t.index_select(0, rows.flatten()).unflatten(0, rows.shape) for t in self.tensors)


def shuffle(order: Tensor, draws: Tensor | None, seed: int, epoch: int) -> None:
    """Fill the order of the samples, and the numbers augmentation goes by, from seed and epoch alone."""
    generator = torch.Generator(order.device).manual_seed(seed * 1_000_003 + epoch)
    torch.randperm(len(order), generator=generator, device=order.device, out=order)
    if draws is not None:
        draws.uniform_(generator=generator)


class Everything(Feed):
    """The same tensors every step: points that all members share, or features of them that each has of its own."""

    def __init__(self, whole: Whole, models: Sequence[nn.Module]):
        self.whole, self.epoch_steps = whole, whole.epoch_steps
        first = whole.features(models[0])
        if first is None:
            self.x, self.shared = whole.x, (True, False)
            return
        self.x, self.shared = first.new_empty(len(models), *first.shape), (False, False)
        for row, model in enumerate(models):  # one by one, since two whole copies may not fit
            self.put(row, model)

    def size_at(self, position: int) -> int:
        return self.whole.y.shape[1]

    def batch(self, positions: Tensor, size: int) -> tuple[Tensor, ...]:
        if self.world.alone:
            return self.x, self.whole.y
        own = self.world.rows(size)
        return self.x[own] if self.shared[0] else self.x[:, own], self.whole.y[:, own]

    def put(self, row: int, model: nn.Module) -> None:
        features = self.whole.features(model)
        if features is not None:
            self.x[row].copy_(features)


class Drawn(Feed):
    """Batches that a function makes."""

    def __init__(self, draw: Callable[[], tuple[Tensor, ...]], epoch_steps: int, shared: tuple[bool, ...]):
        self.draw, self.epoch_steps, self.shared = draw, epoch_steps, shared

    def batch(self, positions: Tensor, size: int) -> tuple[Tensor, ...]:
        return self.draw()


def feed_of(data: Samples | Whole | Rows | Stream | Streaming, recipe: Recipe, models: Sequence[nn.Module]) -> Feed:
    """The feed of a task's data for these models."""
    if isinstance(data, Rows):
        return Shuffled(data, recipe)
    if isinstance(data, Streaming):
        from koopsim.engine.ahead import Ahead

        if len(models) > 1:
            raise KoopsimError(f"{len(models)} models cannot share a stream: each has an order of its own.")
        return Ahead(data, recipe, next(models[0].parameters()).device)
    if isinstance(data, Stream):
        from koopsim.engine.streamed import Streamed

        first = next(models[0].parameters())
        return Streamed(data, recipe.batch_size, first.device)
    return Everything(data, models) if isinstance(data, Whole) else Resident(data, recipe, len(models))
