"""An image's answer in one CUDA kernel, `vgg.cu`: its sizes, its shared memory, and what lies ready in that.

The twin is `fuse.FusedVGG` with the head behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.nn.fuse import FusedVGG

SOURCE = Path(__file__).with_name("vgg.cu")
STRIPS, HALVES, THREADS = 8, 2, 256  # blocks of an image: strips of rows, parts of the channels
OUTS = 5  # channels a thread has, at most


def fours(n: int) -> int:
    """Rounded up: a vector of four numbers is what a thread reads at once."""
    return -(-n // 4) * 4


@dataclass(frozen=True)
class Sizes:
    """An image (D, H, W), C channels, the head; blocks of a cluster and threads of a block."""

    D: int
    H: int
    W: int
    C: int
    hidden: int
    outputs: int
    strips: int
    halves: int
    threads: int

    @property
    def own(self) -> int:
        """Channels of a block."""
        return -(-self.C // self.halves)

    @property
    def groups(self) -> int:
        return -(-self.own // OUTS)

    @property
    def Q(self) -> int:
        """Channels of a thread."""
        return -(-self.own // self.groups)

    @property
    def taps(self) -> int:
        """Numbers of a row of a kernel for Q channels."""
        return fours(3 * self.Q)

    @property
    def units(self) -> int:
        """Rows of a strip after both poolings."""
        return -(-(self.H // 4) // self.strips)

    @property
    def blocks(self) -> int:
        return self.strips * self.halves

    def defines(self) -> dict[str, int]:
        """What the compiler is told."""
        head = {"HIDDEN": self.hidden, "OUTPUTS": self.outputs}
        shape = {"CLUSTER": self.blocks, "HALVES": self.halves, "Q": self.Q, "THREADS": self.threads}
        return {"D": self.D, "C": self.C, "H": self.H, "W": self.W} | head | shape

    def shared_bytes(self) -> int:
        """Of a block: what is packed, the planes of the layers, room for parts of sums."""
        rows, wide, narrow = 4 * self.units, fours(self.W) + 4, fours(self.W // 2) + 4
        features, kernel = self.groups * self.Q * self.units * (self.W // 4), 3 * self.groups * self.taps
        kernels = fours(self.D * kernel + 4 * self.groups * self.Q) + 3 * self.C * kernel
        head = fours((features + self.hidden + 2) * self.hidden + (self.hidden + 1) * self.outputs)
        planes = (self.D + self.C) * (rows + 2) * wide + 2 * self.C * (2 * self.units + 2) * narrow
        sums = 4 * self.Q * (max(self.threads, rows * (fours(self.W) // 4) * self.groups) + 8)
        return 4 * (kernels + head + planes + max(sums, self.threads + 2 * self.hidden))


def sizes(
    lift: FusedVGG, head: Sequence[nn.Linear], shape: Sequence[int], strips: int = STRIPS, halves: int = HALVES
) -> Sizes | None:
    """For an image of this shape, or None where it does not go into strips."""
    if len(shape) != 3:
        return None
    (D, H, W), first = shape, convolutions(lift)[0]
    found = Sizes(
        D, H, W, first.out_channels, head[0].out_features, head[2].out_features, strips, halves, THREADS
    )  # fmt: skip
    whole = H % 4 == 0 and W % 4 == 0 and (H // 4) % max(1, found.units) == 0 and halves <= found.C
    known = first.in_channels == D and head[0].in_features == found.C * (H // 4) * (W // 4)
    return found if whole and known else None


def convolutions(lift: FusedVGG) -> list[nn.Conv2d]:
    """The four of them."""
    return [layer for layer in lift.stages if isinstance(layer, nn.Conv2d)]


@torch.no_grad()
def packed(lift: FusedVGG, head: Sequence[nn.Linear], s: Sizes) -> Tensor:
    """(blocks, numbers): what each block of the kernel has in its shared memory before it sees an image."""
    first = head[0].weight.unflatten(1, (s.C, s.H // 4, s.W // 4))
    first = F.pad(first, (0, 0, 0, s.units * s.strips - s.H // 4))  # strips that are empty
    tail = [head[0].bias, *(t for layer in head[1:] for t in (layer.weight.mT.flatten(), layer.bias))]
    found = []
    for strip in range(s.strips):
        seen = first[:, :, strip * s.units : (strip + 1) * s.units].permute(1, 2, 3, 0)  # (C, units, W/4, hidden)
        for half in range(s.halves):
            kernels = [_kernel(conv.weight, half, s) for conv in convolutions(lift)]
            biases = [_own(cast(Tensor, conv.bias), half, s) for conv in convolutions(lift)]
            parts = ([kernels[0], *biases], kernels[1:], [_own(seen, half, s).flatten(), *tail])
            found.append(torch.cat([_in_fours(torch.cat(part)) for part in parts]))
    return torch.stack(found).contiguous()


def _own(t: Tensor, half: int, s: Sizes) -> Tensor:
    """The channels (first axis) that a block has, and zeros where its threads have none."""
    mine = t[half * s.own : min(s.C, (half + 1) * s.own)]
    return F.pad(mine, (*[0, 0] * (t.ndim - 1), 0, s.groups * s.Q - len(mine)))


def _kernel(weight: Tensor, half: int, s: Sizes) -> Tensor:
    """(C, in, 3, 3) -> by input, row of the kernel and group of channels: the row's taps, each of Q channels."""
    rows = _own(weight, half, s).unflatten(0, (s.groups, s.Q)).permute(2, 3, 0, 4, 1).flatten(3)
    return F.pad(rows, (0, s.taps - rows.shape[-1])).flatten()


def _in_fours(t: Tensor) -> Tensor:
    return F.pad(t, (0, -len(t) % 4))
