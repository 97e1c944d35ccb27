"""Samples of somebody's own data: tensors that lie on the device, or a Dataset that is asked for them.

    a sample is a tuple (inputs, ..., target)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, default_collate

from koopsim.errors import KoopsimError


@dataclass(frozen=True)
class Rows:
    """Tensors on the device, a sample a row of each: any number of inputs, then the target."""

    tensors: tuple[Tensor, ...]
    what: str = "training"

    def __post_init__(self) -> None:
        lengths = [len(t) if t.ndim else 0 for t in self.tensors]
        if len(lengths) < 2 or not lengths[0] or len(set(lengths)) > 1:
            raise KoopsimError(
                f"The {self.what} data has {' and '.join(map(str, lengths)) or 'no'} rows; expected inputs and "
                "a target of as many rows, at least one."
            )

    def __len__(self) -> int:
        return len(self.tensors[0])

    def some(self, index: Tensor) -> Rows:
        return Rows(tuple(t[index.to(t.device)] for t in self.tensors), self.what)

    def identity(self) -> str:
        return content_digest(self.tensors)


@dataclass(frozen=True)
class Stream:
    """A Dataset that is asked for its samples at every step; what it draws at random follows from seed and epoch."""

    dataset: Any
    workers: int = 0  # processes that do the asking

    def __len__(self) -> int:
        return len(self.dataset)

    def some(self, index: Tensor) -> Stream:
        return Stream(Subset(self.dataset, index.tolist()), self.workers)

    def identity(self) -> str:
        inner = self.dataset
        while isinstance(inner, Subset):
            inner = inner.dataset
        return f"{type(inner).__name__} {len(self.dataset)}"


def content_digest(tensors: Iterable[Tensor]) -> str:
    """SHA-256 over kind, shape and bytes."""
    found = hashlib.sha256()
    for t in tensors:
        plain = t.detach().cpu().contiguous()
        found.update(f"{plain.dtype}\0{tuple(plain.shape)}\0".encode())
        if plain.numel():
            found.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def collated(samples: Sequence[Any]) -> tuple[Tensor, ...]:
    """Samples as one batch: a tuple of tensors, the target last."""
    batch = default_collate(list(samples))
    if not isinstance(batch, (tuple, list)) or len(batch) < 2 or not all(isinstance(t, Tensor) for t in batch):
        raise KoopsimError("A sample of the Dataset is no tuple (inputs, ..., target) of tensors, arrays or numbers.")
    return tuple(t.float() if t.dtype == torch.float64 else t for t in batch)
