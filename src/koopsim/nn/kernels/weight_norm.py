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
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.nn.flat import common_vector
from koopsim.nn.kernels.operators import operator


@triton.jit
def weight_row(places, layer, channel, e, INPUTS: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
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
    begin, at, there = weight_row(places, layer, channel, e, INPUTS, C, K)
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
    begin, at, there = weight_row(places, layer, channel, e, INPUTS, C, K)
    v = tl.load(vector + begin + at, mask=there, other=0.0)
    g = tl.load(vector + tl.load(places + layers + layer) + channel)
    row = layer * C + channel
    d = tl.load(dW + row * (K * C) + e, mask=there, other=0.0)
    size = tl.sqrt(tl.sum(v * v, 0))
    along = tl.sum(v * d, 0) / size
    begin, at, there = weight_row(outs, layer, channel, e, INPUTS, C, K)
    tl.store(out + begin + at, g / size * (d - v * (along / size)), mask=there)
    tl.store(out + tl.load(outs + layers + layer) + channel, along)
    tl.store(out + tl.load(outs + 2 * layers + layer) + channel, tl.load(db + row))


def _run(layers: Sequence[Tensor], taps: int) -> tuple[Tensor, Tensor]:
    vector, offsets = common_vector([t.float() for t in layers])
    L, C = len(layers) // 3, len(layers[2])
    W, b = vector.new_empty(L, C, taps, C), vector.new_empty(L, C)
    _forward[(L, C)](vector, _table(offsets, vector.device), W, b, L, **_shape(layers, taps))
    return W, b


def _run_backward(layers: Sequence[Tensor], dW: Tensor, db: Tensor) -> Tensor:
    """The gradients of all layers one after the other."""
    vector, offsets = common_vector([t.float() for t in layers])
    dW, db = dW.float().contiguous(), db.float().contiguous()
    sizes, places = [t.numel() for t in layers], _table(offsets, vector.device)
    outs = _table(tuple(itertools.accumulate(sizes[:-1], initial=0)), vector.device)
    out = vector.new_empty(sum(sizes))
    _backward[db.shape](vector, places, dW, db, out, outs, len(db), **_shape(layers, dW.shape[2]))
    return out


def _shape(layers: Sequence[Tensor], taps: int) -> dict[str, Any]:
    C = len(layers[2])
    return {"INPUTS": layers[0].shape[1] // taps, "C": C, "K": taps, "BLOCK": triton.next_power_of_2(taps * C)}


def _gradients(ctx: Any, dW: Tensor, db: Tensor) -> tuple[list[Tensor], None]:
    layers = ctx.saved_tensors
    parts = normed_weights_backward(layers, dW, db).split([t.numel() for t in layers])
    return [part.view(t.shape) for part, t in zip(parts, layers, strict=True)], None


normed_weights_backward = operator(
    "normed_weights_backward(Tensor[] layers, Tensor dW, Tensor db) -> Tensor",
    _run_backward,
    fake=lambda layers, dW, db: dW.new_empty(sum(t.numel() for t in layers)),
)
normed_weights = operator(
    "normed_weights(Tensor[] layers, int taps) -> (Tensor, Tensor)",
    _run,
    fake=lambda layers, taps: (
        layers[0].new_empty(len(layers) // 3, len(layers[2]), taps, len(layers[2])),
        layers[0].new_empty(len(layers) // 3, len(layers[2])),
    ),
    setup=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[0]),
    backward=_gradients,
)  # (directions, gains, biases of layer 0, of layer 1, ...; taps K) -> W (L, C, K, C) and b (L, C)


@functools.cache  # kept for good: a captured CUDA graph that reads a table must never find it gone
def _table(offsets: tuple[int, ...], device: torch.device) -> Tensor:
    """(3, L): the places of the directions, of the gains, of the biases."""
    return torch.tensor(offsets, dtype=torch.int64).view(-1, 3).t().contiguous().to(device)
