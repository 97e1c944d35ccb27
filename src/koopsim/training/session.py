"""Where a run takes place, and who hears of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from koopsim.engine.world import ALONE, World
from koopsim.files.mirror import Mirror

Listener = Callable[[dict[str, Any]], None]


def unheard(event: dict[str, Any]) -> None:
    """Who listens where nobody does."""


@dataclass(frozen=True)
class Session:
    """Where something is trained, and who hears of it.

    capture   replay steps from CUDA graphs; None: where there is CUDA
    compile   let torch.compile fuse small kernels
    world     the processes that train together; the first of them writes and speaks
    shard     they share the model too, not only the batch;   recompute   its blocks again in the backward pass
    mirror    where the run directory is kept besides, for machines that do not share it
    """

    device: torch.device
    capture: bool | None = None
    compile: bool = False
    listen: Listener = unheard
    world: World = ALONE
    shard: bool = False
    recompute: bool = False
    mirror: Mirror | None = None
