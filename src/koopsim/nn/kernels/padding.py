"""What `padding` does on CUDA, each in one Triton kernel that pads, casts and puts in order.

    taken            y_i = x_{index_i}, or 0 where the index is -1
    channels_last    (B, C, H, W) -> (B, H, W, C'), zeros beyond C
    patches_of       (B, C, H, W) -> (B, H, W, P), the 3 x 3 neighbours of each pixel, zeros beyond 9 C

The readable twins are in `padding`, which calls these; tests/nn/test_padding.py holds them together, on a CPU through
Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.nn.kernels.operators import operator

BLOCK = 512  # entries a program takes
PIXELS = 128  # pixels a program turns


@triton.jit
def _taken(x, index, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(index + i, mask=i < n, other=-1)
    v = tl.load(x + at, mask=at >= 0, other=0.0)
    tl.store(y + i, v.to(y.dtype.element_ty), mask=i < n)


@triton.jit
def _channels_last(
    x, y, pixels, C: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    picture = tl.program_id(0)
    p = tl.program_id(1) * R + tl.arange(0, R)
    c = tl.arange(0, BLOCK)
    inside = (p < pixels)[:, None] & (c < C)[None, :]
    v = tl.load(x + (picture * C + c[None, :]) * pixels + p[:, None], mask=inside, other=0.0)
    inside = (p < pixels)[:, None] & (c < WIDE)[None, :]
    tl.store(y + (picture * pixels + p[:, None]) * WIDE + c[None, :], v.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _patches(x, y, H, W, C: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr):
    picture = tl.program_id(0).to(tl.int64)
    p = tl.program_id(1) * R + tl.arange(0, R)
    e = tl.arange(0, BLOCK)
    row = (p // W)[:, None] + (e // (3 * C))[None, :] - 1
    column = (p % W)[:, None] + (e // C % 3)[None, :] - 1
    seen = (p < H * W)[:, None] & (e < 9 * C)[None, :] & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    v = tl.load(x + ((picture * C + (e % C)[None, :]) * H + row) * W + column, mask=seen, other=0.0)
    inside = (p < H * W)[:, None] & (e < P)[None, :]
    tl.store(y + (picture * H * W + p[:, None]) * P + e[None, :], v.to(y.dtype.element_ty), mask=inside)


def _run_taken(x: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    x, index = x.contiguous(), index.contiguous()
    y = x.new_empty(len(index), dtype=dtype)
    _taken[(triton.cdiv(len(index), BLOCK),)](x, index, y, len(index), BLOCK=BLOCK)
    return y


def _run_channels_last(x: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    x = x.contiguous()
    B, C, H, W = x.shape
    y = x.new_empty(B, H, W, channels, dtype=dtype)
    shape = {"C": C, "WIDE": channels, "BLOCK": triton.next_power_of_2(channels), "R": PIXELS}
    _channels_last[(B, triton.cdiv(H * W, PIXELS))](x, y, H * W, **shape)
    return y


def _run_patches(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    x = x.contiguous()
    B, C, H, W = x.shape
    y = x.new_empty(B, H, W, width, dtype=dtype)
    shape = {"C": C, "P": width, "BLOCK": triton.next_power_of_2(width), "R": PIXELS}
    _patches[(B, triton.cdiv(H * W, PIXELS))](x, y, H, W, **shape)
    return y


patches_of = operator(
    "patches(Tensor x, int width, ScalarType dtype) -> Tensor",
    _run_patches,
    fake=lambda x, width, dtype: x.new_empty(len(x), *x.shape[2:], width, dtype=dtype),
)
taken = operator(
    "taken(Tensor x, Tensor index, ScalarType dtype) -> Tensor",
    _run_taken,
    fake=lambda x, index, dtype: x.new_empty(len(index), dtype=dtype),
)  # x[index] as `dtype`, zero where the index is -1
pixels_last = operator(
    "channels_last(Tensor x, int channels, ScalarType dtype) -> Tensor",
    _run_channels_last,
    fake=lambda x, channels, dtype: x.new_empty(len(x), *x.shape[2:], channels, dtype=dtype),
)


def channels_last(x: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    """(B, C, H, W) -> (B, channels, H, W), channels last in memory."""
    return pixels_last(x, channels, dtype).permute(0, 3, 1, 2)
