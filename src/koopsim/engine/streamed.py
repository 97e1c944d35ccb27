"""A Dataset of somebody's own, batch by batch: the host brings each to a fixed place, from which a captured step reads.

    order, and whatever the Dataset draws at random   <-   seed, epoch, number of the batch

so that a run which was stopped anywhere goes on with the samples it would have had. torch's DataLoader does the work.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from koopsim.engine.feeds import Batches
from koopsim.errors import KoopsimError
from koopsim.tasks.rows import Stream, collated


class Streamed(Batches):
    """Shuffled batches of a Dataset for one member."""

    def __init__(self, stream: Stream, batch_size: int, device: torch.device):
        super().__init__(len(stream), batch_size)
        self.stream, self.device = stream, device
        self.shared = (False,) * len(self._example(1))
        self.places: dict[int, tuple[Tensor, ...]] = {}  # of a batch of each size
        self.order, self.seed = list(range(self.n)), 0
        self.next, self.coming = 0, None

    def begin_epoch(self, seeds: Sequence[int], epochs: Sequence[int]) -> None:
        self.seed = seeds[0] * 1_000_003 + epochs[0]
        self.order = torch.randperm(self.n, generator=torch.Generator().manual_seed(self.seed)).tolist()
        self.coming = None

    def fetch(self, position: int) -> None:
        if self.coming is None or position != self.next:
            self.coming, self.next = self._from(position), position
        batch, size = next(self.coming), self.size_at(position)
        self.next += 1
        places = self.places.setdefault(size, tuple(t.to(self.device) for t in batch))
        for place, t in zip(places, batch, strict=True):
            if place.shape != t.shape or place.dtype != t.dtype:
                raise KoopsimError(
                    f"A batch of the Dataset is {t.dtype} {tuple(t.shape)} where an earlier one was {place.dtype} "
                    f"{tuple(place.shape)}; give samples of one shape, padded where they differ."
                )
            place.copy_(t, non_blocking=True)

    def batch(self, positions: Tensor, size: int) -> tuple[Tensor, ...]:
        if size not in self.places:  # a capture wants to know the shapes before the first batch has come
            self.places[size] = tuple(t.to(self.device) for t in self._example(size))
        return tuple(t.unsqueeze(0) for t in self.places[size])

    def first(self, positions: Tensor, size: int) -> tuple[Tensor, ...]:
        batch = _Batches(self.stream.dataset, [self.order[:size]], self.seed)[0]
        return tuple(t.to(self.device).unsqueeze(0) for t in batch)

    def _from(self, position: int) -> Iterator[tuple[Tensor, ...]]:
        """The rest of the epoch's batches."""
        lists = [self.order[i : i + self.size] for i in range(0, self.n, self.size)]
        lists = [rows[self.world.rows(len(rows))] for rows in lists]
        batches = _Batches(self.stream.dataset, lists, self.seed)
        loader: Any = DataLoader(
            batches, batch_size=None, sampler=range(position, len(lists)), num_workers=self.stream.workers,
            generator=torch.Generator(), pin_memory=self.device.type == "cuda",
        )  # fmt: skip
        return iter(loader)

    def _example(self, size: int) -> tuple[Tensor, ...]:
        return _Batches(self.stream.dataset, [list(range(size))[self.world.rows(size)]], 0)[0]


class _Batches(Dataset):
    """The batches of an epoch by number, each with random numbers of its own."""

    def __init__(self, dataset: Any, lists: list[list[int]], seed: int):
        self.dataset, self.lists, self.seed = dataset, lists, seed

    def __len__(self) -> int:
        return len(self.lists)

    def __getitem__(self, number: int) -> tuple[Tensor, ...]:
        before = random.getstate(), np.random.get_state()
        own = (self.seed * 1_000_003 + number) % 2**63
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(own)
                random.seed(own)
                np.random.seed(own % 2**32)
                return collated([self.dataset[i] for i in self.lists[number]])
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
