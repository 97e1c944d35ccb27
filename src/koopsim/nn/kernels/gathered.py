"""The gradient of a SIM with a TCN from the parts that its kernels leave, in one Triton kernel, for CUDA.

    dW, db = sum of the TCN's parts    ->   dv = g/|v| (dW - v (v . dW) / |v|^2),   dg = v . dW / |v|      (weight norm)
    all else = sum of its parts        ->   where the parameter's gradient belongs

`tcn` and `tail` leave a part of every weight's gradient for each share of the rows. Added up, taken through the weight
norm and laid side by side by kernels of their own they are five launches of two to four microseconds, each of which
waits for memory once; together they wait once. The gradient is written as the trainer keeps the parameters, a row a
model, so that nothing is copied together afterwards. The order of addition is fixed. The readable twin is autograd's
sum, weight norm and cat; tests/nn/kernels/test_gathered_kernels.py holds them together.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.nn.kernels.operators import without_gaps, writer
from koopsim.nn.kernels.weight_norm import weight_row

TILE = 32  # parts that a program reads together
ENTRIES = 64  # of a vector that a program adds up


@triton.jit
def _sum(at, parts, apart, j, inside, TILE: tl.constexpr, N: tl.constexpr):
    """The sum over parts of their entries j: N of them."""
    total = tl.zeros((N,), tl.float32)
    for first in range(0, parts, TILE):
        p = first + tl.arange(0, TILE)
        seen = (p < parts)[:, None] & inside[None, :]
        total += tl.sum(tl.load(at + p.to(tl.int64)[:, None] * apart + j[None, :], mask=seen, other=0.0), 0)
    return total


@triton.jit
def _of_one(at, parts, apart, TILE: tl.constexpr):
    """The sum over parts of a single number."""
    one = tl.arange(0, 16)  # as few as a vector has: it stands in the first
    return tl.sum(_sum(at, parts, apart, one, one < 1, TILE, 16), 0)


@triton.jit
def _of_channel(
    flat, places, lift, out, row, layers, parts, apart, scale,
    INPUTS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Direction, gain and bias of one output channel of a layer: row = layer C + channel."""
    layer, channel, e = row // C, row % C, tl.arange(0, BLOCK)
    begin, place, there = weight_row(places, layer, channel, e, INPUTS, C, K)
    gain = tl.load(places + layers + layer) + channel
    bias = tl.load(places + 2 * layers + layer) + channel
    v, g = tl.load(flat + begin + place, mask=there, other=0.0), tl.load(flat + gain)
    db = _of_one(lift + layers * (C * K * C) + row, parts, apart, TILE)
    d = scale * _sum(lift + row * (K * C), parts, apart, e, there, TILE, BLOCK)
    length = tl.sqrt(tl.sum(v * v, 0))
    along = tl.sum(v * d, 0) / length
    tl.store(out + begin + place, g / length * (d - v * (along / length)), mask=there)
    tl.store(out + gain, along)
    tl.store(out + bias, scale * db)


@triton.jit
def _plainly(at, to, out, count, block, parts, apart, scale, N: tl.constexpr, TILE: tl.constexpr):
    """A block of a vector of `count` numbers, each to its place."""
    j = block * N + tl.arange(0, N)
    d = _sum(at, parts, apart, j, j < count, TILE, N)
    tl.store(out + tl.load(to + j, mask=j < count, other=0), scale * d, mask=j < count)


@triton.jit
def _gather(
    flat, places, lift, tail, to, lost, out, losses, n, layers, parts, size, tail_parts, tail_size, rest, scale,
    INPUTS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, N: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Programs of a model: one for each layer's channel, then for the residual's entries, for the tail's and the loss.

    places (3, layers): where a model's row has v, g and b of each layer; to: where it has the rest and the tail's.
    """
    at, m, models = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    flat, out, lift, tail = flat + m * n, out + m * n, lift + m * size, tail + m * tail_size
    for_rest = layers * C
    for_tail = for_rest + (rest + N - 1) // N
    if at < for_rest:
        _of_channel(
            flat, places, lift, out, at, layers, parts, models * size, scale, INPUTS, C, K, BLOCK, TILE
        )  # fmt: skip
    elif at < for_tail:
        behind = lift + layers * (C * K * C + C)
        _plainly(behind, to, out, rest, at - for_rest, parts, models * size, scale, N, TILE)
    else:
        _plainly(tail, to + rest, out, tail_size, at - for_tail, tail_parts, models * tail_size, scale, N, TILE)
        if at == for_tail:
            tl.store(losses + m, _of_one(lost + m, tail_parts, models, TILE))


def _run(
    flat: Tensor, places: Tensor, to: Tensor, lift: Tensor, tail: Tensor, lost: Tensor, out: Tensor, losses: Tensor,
    inputs: int, channels: int, taps: int, scale: float,
) -> None:  # fmt: skip
    without_gaps("gathered_gradient", out, losses)
    flat, places, to, lift, tail, lost = (t.contiguous() for t in (flat, places, to, lift, tail, lost))
    layers, (M, n) = places.shape[1], flat.shape
    rest = len(to) - tail.shape[2]
    grid = (layers * channels + triton.cdiv(rest, ENTRIES) + triton.cdiv(tail.shape[2], ENTRIES), M)
    shape = {"INPUTS": inputs, "C": channels, "K": taps, "BLOCK": max(16, triton.next_power_of_2(taps * channels))}
    _gather[grid](
        flat, places, lift, tail, to, lost, out, losses, n, layers, len(lift), lift.shape[2],
        len(tail), tail.shape[2], rest, scale, **shape, N=ENTRIES, TILE=TILE,
    )  # fmt: skip


gathered_gradient = writer(
    "gathered_gradient(Tensor flat, Tensor places, Tensor to, Tensor lift, Tensor tail, Tensor lost, Tensor(a!) out, "
    "Tensor(b!) losses, int inputs, int channels, int taps, float scale) -> ()",
    _run,
)  # flat, out (M, n); lift, tail (parts, M, .): of `temporal_stack_parts` and `tail_loss`; lost (parts, M), losses (M,)


def tables(layers: list[Any], plain: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """(places, to) for the kernel: of each layer where v, g and b begin; of the plain ones (begin, length) in order."""
    places = torch.tensor(layers, dtype=torch.int64).t().contiguous()
    to = torch.cat([torch.arange(begin, begin + length, dtype=torch.int32) for begin, length in plain])
    return places.to(device), to.to(device)
