"""Convolution kernels with their channels padded to whole tiles.

    (out, in, h, w) of any sizes  ->  (out', in', h, w), out' and in' multiples of TILE, zeros in between

Tensor cores take channels in eights; 38 of them would fall back to something slower. The parameters keep their
number: padding is a gather from the vector that holds all kernels, and its gradient is a gather back, so a whole
network's kernels cost a launch or two, not a few each. The last kernel, as large as its picture, is a linear layer: it
takes the padded picture as it lies in memory, and its outputs are not padded.
"""

import functools
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from koopsim.nn.flat import common_vector, joined

TILE = 16
EIGHT = 8

Shapes = tuple[tuple[int, int, int, int], ...]


def padded(channels: int) -> int:
    """The next multiple of TILE."""
    return -(-channels // TILE) * TILE


def padded_images(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, C, H, W) -> (B, C', H, W), channels last in memory. The first layer's channels only go to the next eight."""
    return images_of_depth(x, x.shape[1] + -x.shape[1] % EIGHT, dtype)


def images_of_depth(x: Tensor, depth: int, dtype: torch.dtype) -> Tensor:
    """(B, C, H, W) -> (B, depth, H, W), zeros above C, channels last in memory: on CUDA one pass."""
    if _on_chip(x) and not x.requires_grad:
        from koopsim.nn.kernels.padding import channels_last

        return channels_last(x, depth, dtype)
    return F.pad(x, (0, 0, 0, 0, 0, depth - x.shape[1])).to(dtype, memory_format=torch.channels_last)


class PaddedKernels(torch.autograd.Function):
    """(dtype, kernels...) -> the padded kernels, channels last in memory."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *kernels: Tensor) -> tuple[Tensor, ...]:
        shapes: Shapes = tuple(tuple(k.shape) for k in kernels)  # pyright: ignore[reportAssignmentType]
        vector, offsets = common_vector(kernels)
        sizes, forth, ctx.back = _maps(shapes, offsets, TILE, vector.device)
        ctx.shapes, ctx.dtype = shapes, vector.dtype
        parts = _taken(vector, forth, dtype).split([out * h * w * into for out, into, h, w in sizes])
        return tuple(
            part.view(out, h, w, into).permute(0, 3, 1, 2) for part, (out, into, h, w) in zip(parts, sizes, strict=True)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        row = joined([g.permute(0, 2, 3, 1) for g in grads])
        parts = _taken(row, ctx.back, ctx.dtype).split([o * i * h * w for o, i, h, w in ctx.shapes])
        return None, *(part.view(shape) for part, shape in zip(parts, ctx.shapes, strict=True))


def _taken(x: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """x[index] as `dtype`, zero where the index is -1."""
    if _on_chip(x):
        from koopsim.nn.kernels.padding import taken

        return taken(x, index, dtype)
    return torch.where(index < 0, 0, x[index.clamp(min=0)]).to(dtype)


def _on_chip(x: Tensor) -> bool:
    return x.is_cuda and find_spec("triton") is not None


@functools.cache  # kept for good: a captured CUDA graph that reads a table must never find it gone
def _maps(shapes: Shapes, offsets: Sequence[int], tile: int, device: torch.device) -> tuple[Shapes, Tensor, Tensor]:
    """The padded shapes, where in their vector each padded entry comes from, and where each kernel's entry went."""
    sizes, forth, back, start = [], [], [], 0
    for layer, ((o, i, h, w), offset) in enumerate(zip(shapes, offsets, strict=True)):
        inputs = padded(i) if layer else i + (-i % EIGHT)
        outputs = padded(o) if layer < len(shapes) - 1 else o
        own = torch.arange(offset, offset + o * i * h * w).view(o, i, h, w)
        own = F.pad(own, (0, 0, 0, 0, 0, inputs - i, 0, outputs - o), value=-1)
        forth.append(own.permute(0, 2, 3, 1).reshape(-1))
        place = torch.arange(start, start + own.numel()).view(outputs, h, w, inputs)
        back.append(place[:o, :, :, :i].permute(0, 3, 1, 2).reshape(-1))
        sizes.append((outputs, inputs, h, w))
        start += own.numel()
    return tuple(sizes), torch.cat(forth).to(device), torch.cat(back).to(device)
