"""Samples that do not fit: where they are read from, which of them, and how they are shuffled.

    blocks of neighbouring rows in random order, mixed within a buffer of some blocks        from seed and epoch alone

so that a disk is read in stretches and a run that was stopped anywhere goes on with the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from koopsim.config import Recipe
from koopsim.datasets.blocks import Rows, Source

BLOCK, BUFFER = 256, 32  # rows of a block, blocks of a buffer


@dataclass(frozen=True)
class Streaming:
    """Rows of a source; `inputs` makes of them, on the device, what a model sees."""

    source: Source
    rows: Rows  # which ones, in rising order
    inputs: Callable[[Tensor, Recipe | None, Tensor | None], Tensor]
    workers: int = 0  # processes that read and decode; 0: a thread of this one
    block: int = BLOCK
    buffer: int = BUFFER
    skip: bool = False  # what cannot be read is left out, and another of its batch counts twice

    def __len__(self) -> int:
        return len(self.rows)

    def order(self, seed: int, epoch: int) -> Rows:
        """All rows in the order of an epoch."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        n = len(self.rows)
        blocks = torch.randperm(-(-n // self.block), generator=generator).numpy()
        found = np.empty(n, np.int64)
        at = 0
        for i in range(0, len(blocks), self.buffer):
            some = [np.arange(b * self.block, min((b + 1) * self.block, n)) for b in blocks[i : i + self.buffer]]
            mixed = np.concatenate(some)
            mixed = mixed[torch.randperm(len(mixed), generator=generator).numpy()]
            found[at : at + len(mixed)] = self.rows[mixed]
            at += len(mixed)
        return found
