"""A feed of samples that do not fit: batches are read, decoded and sent ahead of the steps.

    batch k of all epochs  <-  order(seed, epoch)[rows of the batch]         k = epoch * steps an epoch + position
    worker processes, or a thread -> pinned memory -> a fixed place on the device, from which a captured step reads

Reading goes on over the ends of epochs. What is augmented is augmented on the device, by numbers drawn from seed, epoch
and batch. Of several processes each reads its share of a batch alone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from koopsim.config import Recipe
from koopsim.engine.feeds import Batches
from koopsim.engine.world import ALONE, World
from koopsim.errors import KoopsimError
from koopsim.tasks.augment import draws_needed
from koopsim.tasks.streaming import Streaming

AHEAD = 8  # batches that wait for their step
FOREVER = 2**62
OF_A_WORKER = 4  # batches that each process which reads has on its way
LOOK_UP, LAST = 0.1, 5.0  # seconds: of a thread that waits for room, and for its end
Batch = tuple[Tensor, ...]
Read = tuple[Batch, list[tuple[int, str]]]  # a batch, and the rows of it that cannot be read


class Ahead(Batches):
    """Batches of a source for one member, in the order of its blocks."""

    def __init__(self, data: Streaming, recipe: Recipe, device: torch.device):
        super().__init__(len(data), recipe.batch_size)
        self.data, self.recipe, self.device = data, recipe, device
        self.seed, self.epoch, self.next = 0, 0, -1
        self.coming: _Thread | None = None
        self.places: dict[int, Batch] = {}  # of a batch of each size
        self.lost: dict[int, str] = {}  # rows that cannot be read, and why

    def begin_epoch(self, seeds: Sequence[int], epochs: Sequence[int]) -> None:
        if seeds[0] != self.seed:
            self.next = -1  # what is on its way is another run's
        self.seed, self.epoch = seeds[0], epochs[0]

    def jobs(self, world: World) -> _Jobs:
        return _Jobs(self.data, self.recipe, self.seed, self.size, world)

    def fetch(self, position: int) -> None:
        number = self.epoch * self.epoch_steps + position
        if self.coming is None or number != self.next:
            self._begin(number)
        assert self.coming is not None
        (batch, lost), size = self.coming.get(), self.size_at(position)
        self.lost.update(lost)
        self.next = number + 1
        places = self.places.setdefault(size, tuple(t.to(self.device) for t in batch))
        for place, t in zip(places, batch, strict=True):
            place.copy_(t, non_blocking=True)

    def batch(self, positions: Tensor, size: int) -> Batch:
        if size not in self.places:  # a capture wants to know the shapes before the first batch has come
            self.places[size] = self._placed(self.jobs(self.world).example(size)[0])
        return self._seen(self.places[size])

    def first(self, positions: Tensor, size: int) -> Batch:
        return self._seen(self._placed(self.jobs(ALONE)[self.epoch * self.epoch_steps][0]))

    def _placed(self, batch: Batch) -> Batch:
        return tuple(t.to(self.device) for t in batch)

    def _seen(self, batch: Batch) -> Batch:
        x, y, *draws = batch
        x = self.data.inputs(x, self.recipe, draws[0] if draws else None)
        return x.unsqueeze(0), y.unsqueeze(0)

    def _begin(self, number: int) -> None:
        """Read on from batch `number`."""
        self.close()
        pinned = self.device.type == "cuda"
        loader: Any = DataLoader(
            self.jobs(self.world), batch_size=None, sampler=range(number, FOREVER), num_workers=self.data.workers,
            generator=torch.Generator(), pin_memory=pinned,
            prefetch_factor=OF_A_WORKER if self.data.workers else None,
        )  # fmt: skip
        self.coming = _Thread(iter(loader))

    def close(self) -> None:
        """Stop reading."""
        if self.coming is not None:
            self.coming.stop()
            self.coming = None

    def __del__(self) -> None:
        self.close()


class _Thread:
    """What an iterator gives, fetched before it is asked for; its error is raised where it is asked for."""

    def __init__(self, source: Iterator[Read]):
        self.source, self.stopped = source, threading.Event()
        self.waiting: queue.Queue[Read | BaseException] = queue.Queue(AHEAD)
        self.thread = threading.Thread(target=self._run, name="koopsim-reading", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for item in self.source:
                if not self._put(item):
                    return
        except BaseException as error:
            self._put(error)

    def _put(self, item: Read | BaseException) -> bool:
        while not self.stopped.is_set():
            try:
                self.waiting.put(item, timeout=LOOK_UP)
                return True
            except queue.Full:
                continue
        return False

    def get(self) -> Read:
        item = self.waiting.get()
        if isinstance(item, BaseException):
            self.stop()
            last = (str(item).strip().splitlines() or [type(item).__name__])[-1]  # a worker's has its traceback before
            if isinstance(item, KoopsimError):
                raise KoopsimError(last.split("KoopsimError: ")[-1]) from item
            raise KoopsimError(f"Reading the data failed: {last}") from item
        return item

    def stop(self) -> None:
        self.stopped.set()
        if threading.current_thread() is not self.thread:
            self.thread.join(LAST)
        self.source = iter(())


class _Jobs(Dataset):
    """The batches of all epochs by number: bytes, labels, and the numbers that augmentation goes by."""

    def __init__(self, data: Streaming, recipe: Recipe, seed: int, size: int, world: World):
        self.data, self.recipe, self.seed, self.size, self.world = data, recipe, seed, size, world
        self.steps = -(-len(data) // size)
        self.known: tuple[int | None, Any] = (None, None)  # the order of one epoch

    def __len__(self) -> int:
        return FOREVER

    def __getitem__(self, number: int) -> Read:
        epoch, position = divmod(number, self.steps)
        if self.known[0] != epoch:
            self.known = epoch, self.data.order(self.seed, epoch)
        rows = self.known[1][position * self.size : (position + 1) * self.size]
        return self._read(rows, (self.seed * 1_000_003 + epoch) * 1_000_033 + position)

    def example(self, size: int) -> Read:
        return self._read(self.data.rows[:size], 0)

    def _read(self, rows: Any, seed: int) -> Read:
        own = self.world.rows(len(rows))
        x, labels, lost = self._pictures(rows[own])
        batch: Batch = torch.from_numpy(x), torch.from_numpy(labels)
        if not self.recipe.augments:
            return batch, lost
        generator = torch.Generator().manual_seed(seed % 2**63)
        return (*batch, torch.rand(len(rows), draws_needed(self.recipe), generator=generator)[own]), lost

    def _pictures(self, mine: Any) -> tuple[Any, Any, list[tuple[int, str]]]:
        """Pictures and labels; in the place of what cannot be read, if that is to be skipped, others of the batch."""
        source = self.data.source
        if not self.data.skip:
            return source.read(mine), source.labels[mine], []
        x, good, lost = source.read_good(mine)
        if not good.any():
            raise KoopsimError(f"None of the {len(mine)} pictures of a batch can be read; the first: {lost[0][1]}")
        instead = np.flatnonzero(good)
        places = np.arange(len(mine))
        places[~good] = instead[np.arange(int((~good).sum())) % len(instead)]
        return x[places], source.labels[mine[places]], lost
