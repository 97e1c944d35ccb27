"""Processes that train one model together, each on its share of every batch.

    g = sum_r w_r g_r,   w_r = rows of rank r / rows of the batch        loss and gradient of the whole batch

so the global batch decides the numbers: N processes give those of one, up to the order of additions. Each rank has all
parameters and makes the same update; only rank 0 writes. torch.distributed carries the sums: NCCL between GPUs, gloo
between CPUs. A process started by torchrun, by `koopsim train --devices N` or by Ray Train finds its place in the
environment (`joined_world`).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from koopsim.errors import KoopsimError, LostOthers
from koopsim.runs import version_of

PATIENCE = timedelta(minutes=10)  # that a rank waits for the others, rank 0's evaluations included
CARRIERS = ("gloo", "NCCL", "Connection reset", "Connection closed")  # words in an error of theirs
LOST = "This rank lost the others: one of them ended or cannot be reached."


@dataclass(frozen=True)
class World:
    """This process's place among `size`."""

    rank: int = 0
    size: int = 1

    @property
    def alone(self) -> bool:
        return self.size == 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def rows(self, count: int) -> slice:
        """This rank's rows of a batch; where there are fewer rows than ranks some have one that counts nothing."""
        start, stop = self.rank * count // self.size, (self.rank + 1) * count // self.size
        return slice(min(start, count - 1), max(stop, min(start, count - 1) + 1))

    def weight(self, count: int) -> float:
        """The share of a batch that `rows` is."""
        return ((self.rank + 1) * count // self.size - self.rank * count // self.size) / count

    def add_up(self, *tensors: Tensor) -> None:
        """Each tensor becomes its sum over all ranks, the same bits on each."""
        if not self.alone:
            for tensor in tensors:
                _surely(torch.distributed.all_reduce, tensor)

    def largest(self, tensor: Tensor) -> None:
        if not self.alone:
            _surely(torch.distributed.all_reduce, tensor, torch.distributed.ReduceOp.MAX)

    def agreed(self, chunk: int, stop: bool) -> tuple[int, bool]:
        """(rank 0's chunk of steps, whether anybody was asked to stop)."""
        if self.alone:
            return chunk, stop
        said = torch.tensor([chunk if self.first else 0, int(stop)], dtype=torch.int64, device=_device())
        self.add_up(said)
        return int(said[0]), bool(said[1])

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Around what exchanges tensors deep inside torch: that the others are gone is said as that."""
        try:
            yield
        except RuntimeError as error:
            if self.alone or not any(word in str(error) for word in CARRIERS):
                raise
            raise LostOthers(f"{LOST} ({str(error).strip().splitlines()[0][:160]})") from error

    def told(self, value: Any) -> Any:
        """What rank 0 says, to all; others' values are not looked at. It waits for rank 0."""
        if self.alone:
            return value
        box = [value]
        _surely(torch.distributed.broadcast_object_list, box, src=0, device=_device())
        return box[0]

    def gathered(self, value: Any) -> list[Any]:
        """What every rank says, in their order, on each of them."""
        if self.alone:
            return [value]
        found = [None] * self.size
        _surely(torch.distributed.all_gather_object, found, value)
        return found

    def all_well(self, problem: str = "") -> None:
        """Where a rank has a problem all stop, and each of them can say which it was."""
        found = next((said for said in self.gathered(problem) if said), "")
        if found:
            raise KoopsimError(found)


ALONE = World()


def _device() -> torch.device:
    return torch.device("cuda" if torch.distributed.get_backend() == "nccl" else "cpu")


def _surely(call: Any, *arguments: Any, **options: Any) -> None:
    """A collective; what its failure means, instead of where in a library it was noticed."""
    try:
        call(*arguments, **options)
    except (RuntimeError, ValueError) as error:
        raise LostOthers(f"{LOST} ({str(error).strip().splitlines()[0][:160]})") from error


def expected() -> int:
    """How many processes this one belongs to, by its environment."""
    try:
        return max(1, int(os.environ.get("WORLD_SIZE", "1")))
    except ValueError:
        raise KoopsimError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}; expected a number of processes.") from None


@contextmanager
def joined_world(device: torch.device) -> Iterator[World]:
    """The world of this process, left at the end; alone where nobody started several."""
    distributed = torch.distributed
    if expected() == 1:
        yield ALONE
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing and not distributed.is_initialized():
        raise KoopsimError(f"WORLD_SIZE is set but {', '.join(missing)} is not; start with torchrun, or unset it.")
    here = not distributed.is_initialized()  # Ray Train has joined already
    if device.type == "cuda":
        torch.cuda.set_device(device)  # objects travel by the current one
    if here:
        try:
            distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
        except (RuntimeError, ValueError) as error:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise KoopsimError(
                f"Rank {os.environ['RANK']} of {expected()} cannot meet the others at {where}: "
                f"{str(error).strip().splitlines()[0][:160]}. Is the port free, and rank 0 running?"
            ) from error
    try:
        world = World(distributed.get_rank(), distributed.get_world_size())
        _same_versions(world)
        yield world
    finally:
        if here and distributed.is_initialized():
            distributed.destroy_process_group()


def _same_versions(world: World) -> None:
    """Ranks of other versions would not compute the same update; all say so, and none waits."""
    own = {"koopsim": version_of("koopsim") or "source", "torch": torch.__version__}
    own["python"] = platform.python_version()
    first, *others = world.gathered(own)
    for rank, theirs in enumerate(others, 1):
        other = [f"{name} {theirs[name]} where rank 0 has {first[name]}" for name in own if theirs[name] != first[name]]
        if other:
            raise KoopsimError(f"Rank {rank} has {', '.join(other)}; use the same on every machine.")


def device_of_rank(name: str) -> str:
    """The device of this process: of several GPUs on a machine its own."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if expected() == 1 or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    if local >= torch.cuda.device_count():
        raise KoopsimError(
            f"Process {local} of this machine has no GPU of its own: there are {torch.cuda.device_count()}. "
            "Start as many as there are, or give --device cpu."
        )
    return f"cuda:{local}"
