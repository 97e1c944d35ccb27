"""The weight norm of all layers of a TCN at once, in Triton kernels for CUDA.

    W_l = g_l v_l / |v_l|                                      for each layer l and output channel
    dv = g/|v| (dW - v (v . dW) / |v|^2)      dg = v . dW / |v|

Layer by layer this is a few launches for each; here it is one kernel forward and one backward. They read directions v,
gains g and biases b where the trainer keeps them, in one vector (`flat`), and write the gradients in the same order, so
that nothing is copied together. The first layer may have fewer input channels: its W is filled up with zeros. The
readable twin is `lift.TCN.normed_weights`; tests/nn/kernels/test_weight_norm_kernels.py holds them together,
on a CPU through Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

import functools
import itertools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from koopsim.nn.flat import common_vector


@triton.jit
def _row(places, layer, channel, e, INPUTS: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    """Where a row of v begins, where its entries for e = tap * C + input lie beyond that, and which there are."""
    inputs = tl.where(layer == 0, INPUTS, C)
    there = (e < K * C) & (e % C < inputs)
    return tl.load(places + layer) + channel * K * inputs, (e // C) * inputs + e % C, there


@triton.jit
def _forward(
    vector, places, W, b, layers, INPUTS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """A program has a layer and an output channel. places (3, L): where the vector has v, g and b of each layer."""
    layer, channel = tl.program_id(0), tl.program_id(1)
    e = tl.arange(0, BLOCK)
    begin, at, there = _row(places, layer, channel, e, INPUTS, C, K)
    v = tl.load(vector + begin + at, mask=there, other=0.0)
    g = tl.load(vector + tl.load(places + layers + layer) + channel)
    row = layer * C + channel
    tl.store(W + row * (K * C) + e, v * (g / tl.sqrt(tl.sum(v * v, 0))), mask=e < K * C)
    tl.store(b + row, tl.load(vector + tl.load(places + 2 * layers + layer) + channel))


@triton.jit
def _backward(
    vector, places, dW, db, out, outs, layers,
    INPUTS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """outs (3, L): where the gradients of v, g and b of each layer go."""
    layer, channel = tl.program_id(0), tl.program_id(1)
    e = tl.arange(0, BLOCK)
    begin, at, there = _row(places, layer, channel, e, INPUTS, C, K)
    v = tl.load(vector + begin + at, mask=there, other=0.0)
    g = tl.load(vector + tl.load(places + layers + layer) + channel)
    row = layer * C + channel
    d = tl.load(dW + row * (K * C) + e, mask=there, other=0.0)
    size = tl.sqrt(tl.sum(v * v, 0))
    along = tl.sum(v * d, 0) / size
    begin, at, there = _row(outs, layer, channel, e, INPUTS, C, K)
    tl.store(out + begin + at, g / size * (d - v * (along / size)), mask=there)
    tl.store(out + tl.load(outs + layers + layer) + channel, along)
    tl.store(out + tl.load(outs + 2 * layers + layer) + channel, tl.load(db + row))


class NormedWeights(torch.autograd.Function):
    """(taps K, directions, gains, biases of layer 0, of layer 1, ...) -> W (L, C, K, C) and b (L, C)."""

    @staticmethod
    def forward(ctx: Any, taps: int, *layers: Tensor) -> tuple[Tensor, Tensor]:
        vector, offsets = common_vector(layers)
        L, C = len(layers) // 3, len(layers[2])
        shape = {"INPUTS": layers[0].shape[1] // taps, "C": C, "K": taps, "BLOCK": triton.next_power_of_2(taps * C)}
        places = _table(offsets, vector.device)
        W, b = vector.new_empty(L, C, taps, C), vector.new_empty(L, C)
        _forward[(L, C)](vector, places, W, b, L, **shape)
        ctx.save_for_backward(vector, places)
        ctx.shape, ctx.shapes = shape, [t.shape for t in layers]
        return W, b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        vector, places = ctx.saved_tensors
        dW, db = (g.contiguous() for g in grads)
        sizes = [shape.numel() for shape in ctx.shapes]
        outs = _table(tuple(itertools.accumulate(sizes[:-1], initial=0)), vector.device)
        out = vector.new_empty(sum(sizes))
        L, C = db.shape
        _backward[(L, C)](vector, places, dW, db, out, outs, L, **ctx.shape)
        return None, *(part.view(shape) for part, shape in zip(out.split(sizes), ctx.shapes, strict=True))


@functools.cache  # kept for good: a captured CUDA graph that reads a table must never find it gone
def _table(offsets: tuple[int, ...], device: torch.device) -> Tensor:
    """(3, L): the places of the directions, of the gains, of the biases."""
    return torch.tensor(offsets, dtype=torch.int64).view(-1, 3).t().contiguous().to(device)
