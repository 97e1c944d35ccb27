"""Convolution kernels with their channels padded to whole tiles.

    (out, in, h, w) of any sizes  ->  (out', in', h, w), out' and in' multiples of TILE, zeros in between

Tensor cores take channels in eights; 38 of them would fall back to something slower. The parameters keep their
number: padding is a gather from the vector that holds all kernels, and its gradient is a gather back, so a whole
network's kernels cost a launch or two, not a few each. The last kernel, as large as its picture, is a linear layer: it
takes the padded picture as it lies in memory, and its outputs are not padded.

The first kernel sees three channels, of which a convolution's library makes little. The picture is written out as
patches instead, its 3 x 3 x 3 neighbours beside each pixel, and the convolution is a product:

    (B, C, H, W) -> (B, H, W, 9 C)  times  (9 C, out'),    9 C filled up to a multiple of TILE
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from koopsim.nn.flat import common_vector
from koopsim.nn.kernels.operators import operator
from koopsim.nn.transforms import usable

TILE = 16
SLICES = 256  # of the pixels
MOST = 2**31  # numbers of a tensor, where kernels count them in 32 bits

Shapes = tuple[tuple[int, ...], ...]  # (out, in, height, width) each


def padded(channels: int, tile: int = TILE) -> int:
    """The next multiple of TILE, or of what a kernel takes at once."""
    return -(-channels // tile) * tile


def countable(x: Tensor, channels: int) -> bool:
    """Whether a place in pictures (B, C, H, W) of so many channels, or in their patches, is a number of 32 bits."""
    B, C, H, W = x.shape
    return B * H * W * padded(max(channels, 9 * C)) < MOST


def patches(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, C, H, W) -> (B, H, W, P): the 3 x 3 neighbours of every pixel, row by row and then the channels; zeros after.

    On CUDA one pass.
    """
    B, C, H, W = x.shape
    if usable(x) and not x.requires_grad:
        from koopsim.nn.kernels.padding import patches_of

        return patches_of(x, padded(9 * C), dtype)
    found = F.unfold(x, 3, padding=1).view(B, C, 9, H, W).permute(0, 3, 4, 2, 1).flatten(3)
    return F.pad(found, (0, padded(9 * C) - 9 * C)).to(dtype).contiguous()


def patch_product(found: Tensor, kernel: Tensor) -> Tensor:
    """(B, H, W, P) patches and the first kernel (out', P, 1, 1) -> (B, H, W, out').

    As a batch of products, so that the kernel's gradient, a sum over all pixels, fills the chip.
    """
    rows, P = found.numel() // found.shape[3], found.shape[3]
    slices = math.gcd(rows, SLICES)
    W = kernel.flatten(1).mT.expand(slices, P, -1)
    return torch.bmm(found.view(slices, rows // slices, P), W).view(*found.shape[:3], -1)


def images_of_depth(x: Tensor, depth: int, dtype: torch.dtype) -> Tensor:
    """(B, C, H, W) -> (B, depth, H, W), zeros above C, channels last in memory: on CUDA one pass."""
    if usable(x) and not x.requires_grad:
        from koopsim.nn.kernels.padding import channels_last

        return channels_last(x, depth, dtype)
    return F.pad(x, (0, 0, 0, 0, 0, depth - x.shape[1])).to(dtype, memory_format=torch.channels_last)


def padded_kernels(kernels: Sequence[Tensor], dtype: torch.dtype, tile: int = TILE) -> list[Tensor]:
    """The padded kernels, channels last in memory; patches of the first are padded by TILE in any case."""
    shapes = _padded_shapes(_shapes(kernels), tile)
    parts = _padded(kernels, dtype, tile).split([math.prod(shape) for shape in shapes])
    return [part.view(o, h, w, i).permute(0, 3, 1, 2) for part, (o, i, h, w) in zip(parts, shapes, strict=True)]


def _run(kernels: Sequence[Tensor], dtype: torch.dtype, tile: int) -> Tensor:
    vector, offsets = common_vector(kernels)
    return _taken(vector, _forth(_shapes(kernels), offsets, vector.device, tile), dtype)


def _run_backward(row: Tensor, kernels: Sequence[Tensor], tile: int) -> Tensor:
    """The kernels' gradients one after the other."""
    return _taken(row.contiguous(), _back(_shapes(kernels), row.device, tile), kernels[0].dtype)


def _keep(ctx: Any, inputs: tuple[list[Tensor], torch.dtype, int], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[0])
    ctx.tile = inputs[2]


def _gradients(ctx: Any, row: Tensor) -> tuple[list[Tensor], None, None]:
    kernels = ctx.saved_tensors
    parts = _padded_backward(row, kernels, ctx.tile).split([k.numel() for k in kernels])
    return [part.view(k.shape) for part, k in zip(parts, kernels, strict=True)], None, None


_padded_backward = operator(
    "padded_kernels_backward(Tensor row, Tensor[] kernels, int tile) -> Tensor",
    _run_backward,
    fake=lambda row, kernels, tile: kernels[0].new_empty(sum(k.numel() for k in kernels)),
)
_padded = operator(
    "padded_kernels(Tensor[] kernels, ScalarType dtype, int tile) -> Tensor",
    _run,
    fake=lambda kernels, dtype, tile: kernels[0].new_empty(
        sum(math.prod(shape) for shape in _padded_shapes(_shapes(kernels), tile)), dtype=dtype
    ),
    setup=_keep,
    backward=_gradients,
)


def _taken(x: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """x[index] as `dtype`, zero where the index is -1."""
    if usable(x):
        from koopsim.nn.kernels.padding import taken

        return taken(x, index, dtype)
    return torch.where(index < 0, 0, x[index.clamp(min=0)]).to(dtype)


def _shapes(kernels: Sequence[Tensor]) -> Shapes:
    return tuple(tuple(k.shape) for k in kernels)


def _padded_shapes(shapes: Shapes, tile: int) -> Shapes:
    last = len(shapes) - 1
    return tuple(
        (padded(o, tile) if layer < last else o, *((padded(i, tile), h, w) if layer else (padded(i * h * w), 1, 1)))
        for layer, (o, i, h, w) in enumerate(shapes)
    )


@functools.cache  # kept for good: a captured CUDA graph that reads a table must never find it gone
def _forth(shapes: Shapes, offsets: Sequence[int], device: torch.device, tile: int) -> Tensor:
    """Where in their vector each padded entry comes from; -1: from nowhere."""
    found = []
    for layer, ((o, i, h, w), wide, offset) in enumerate(
        zip(shapes, _padded_shapes(shapes, tile), offsets, strict=True)
    ):
        own = torch.arange(offset, offset + o * i * h * w).view(o, i, h, w).permute(0, 2, 3, 1)
        own = own if layer else own.reshape(o, 1, 1, -1)
        own = F.pad(own, (0, wide[1] - own.shape[3], 0, 0, 0, 0, 0, wide[0] - o), value=-1)
        found.append(own.reshape(-1))
    return torch.cat(found).to(device)


@functools.cache
def _back(shapes: Shapes, device: torch.device, tile: int) -> Tensor:
    """Where each kernel's entry went."""
    found, start = [], 0
    for layer, ((o, i, h, w), wide) in enumerate(zip(shapes, _padded_shapes(shapes, tile), strict=True)):
        place = torch.arange(start, start + math.prod(wide)).view(wide[0], *wide[2:], wide[1])
        place = place[:o, :, :, :i] if layer else place[:o, 0, 0, : i * h * w].reshape(o, h, w, i)
        found.append(place.permute(0, 3, 1, 2).reshape(-1))
        start += math.prod(wide)
    return torch.cat(found).to(device)
