"""Convolution kernels with their channels padded to whole tiles.

    (out, in, 3, 3) of any sizes  ->  (out', in', 3, 3), out' and in' multiples of TILE, zeros in between

Tensor cores take channels in eights; 38 of them would fall back to something slower. The parameters keep their
number: padding is a gather from all kernels in a row and one entry that is zero, and its gradient is a gather back, so
a whole network's kernels cost a few launches, not a few each.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

TILE = 16
EIGHT = 8

Shapes = tuple[tuple[int, int, int, int], ...]


def padded(channels: int) -> int:
    """The next multiple of TILE."""
    return -(-channels // TILE) * TILE


def padded_images(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, C, H, W) -> (B, C', H, W), channels last in memory. The first layer's channels only go to the next eight."""
    return F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % EIGHT)).to(dtype, memory_format=torch.channels_last)


class PaddedKernels(torch.autograd.Function):
    """(dtype, kernels...) -> the padded kernels, channels last in memory."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *kernels: Tensor) -> tuple[Tensor, ...]:
        shapes: Shapes = tuple(tuple(k.shape) for k in kernels)  # pyright: ignore[reportAssignmentType]
        sizes, forth, ctx.back = _maps(shapes, TILE, kernels[0].device)
        ctx.shapes, ctx.dtype = shapes, kernels[0].dtype
        row = torch.cat([*(k.reshape(-1) for k in kernels), kernels[0].new_zeros(1)])
        parts = row.index_select(0, forth).to(dtype).split([out * h * w * into for out, into, h, w in sizes])
        return tuple(
            part.view(out, h, w, into).permute(0, 3, 1, 2) for part, (out, into, h, w) in zip(parts, sizes, strict=True)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        row = torch.cat([g.permute(0, 2, 3, 1).reshape(-1) for g in grads])
        parts = row.index_select(0, ctx.back).to(ctx.dtype).split([o * i * h * w for o, i, h, w in ctx.shapes])
        return None, *(part.view(shape) for part, shape in zip(parts, ctx.shapes, strict=True))


@functools.cache  # kept for good: a captured CUDA graph that reads a table must never find it gone
def _maps(shapes: Shapes, tile: int, device: torch.device) -> tuple[Shapes, Tensor, Tensor]:
    """The padded shapes, where each padded entry comes from, and where each entry of the kernels went."""
    sizes, forth, start = [], [], 0
    nowhere = sum(o * i * h * w for o, i, h, w in shapes)
    for layer, (o, i, h, w) in enumerate(shapes):
        inputs = padded(i) if layer else i + (-i % EIGHT)
        own = torch.arange(start, start + o * i * h * w).view(o, i, h, w)
        own = F.pad(own, (0, 0, 0, 0, 0, inputs - i, 0, padded(o) - o), value=nowhere)
        forth.append(own.permute(0, 2, 3, 1).reshape(-1))
        sizes.append((padded(o), inputs, h, w))
        start += o * i * h * w
    there = torch.cat(forth)
    back = torch.empty(nowhere + 1, dtype=torch.int64)
    back[there] = torch.arange(len(there))
    return tuple(sizes), there.to(device), back[:nowhere].to(device)
