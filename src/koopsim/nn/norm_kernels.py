"""Batch normalisation, ReLU and max pooling as one map, in Triton kernels for CUDA.

    y = pool(relu(gamma (x - mean) / sqrt(var + eps) + beta))        mean, var over batch and pixels

A library runs these as separate kernels and writes every intermediate picture to memory. Here the forward map reads
x twice (moments, then the result) and the backward map reads x and dy twice; nothing else of that size is stored.
Pictures are (B, H, W, P), channels last, with P >= C channels: those above C are padding that makes convolutions
fit the tensor cores; they are zero and stay zero. The readable twin is `lift.VGG.stages`;
tests/nn/test_norm_kernels.py holds them together, on a CPU through Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

PARTS = 512  # programs that share a sum; each leaves its part, so that the order of addition is fixed
ROWS = 32  # pixels a program looks at together


@triton.jit
def _moments(x, sums, rows, chunk, P: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr):
    """sums[0 and 1, part] = sum of x and of x^2 over the part's rows."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    c = tl.arange(0, BLOCK)
    first = tl.zeros((R, BLOCK), tl.float32)
    second = tl.zeros((R, BLOCK), tl.float32)
    for start in range(0, chunk, R):
        offset = start + tl.arange(0, R)
        r = part * chunk + offset
        inside = ((offset < chunk) & (r < rows))[:, None] & (c < P)[None, :]
        v = tl.load(x + r[:, None] * P + c[None, :], mask=inside, other=0.0).to(tl.float32)
        first += v
        second += v * v
    tl.store(sums + part * P + c, tl.sum(first, 0), mask=c < P)
    tl.store(sums + (parts + part) * P + c, tl.sum(second, 0), mask=c < P)


@triton.jit
def _statistics(
    sums, gamma, beta, bias, running_mean, running_var, table, rows, momentum, eps,
    C: tl.constexpr, P: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One channel: its moments, the rows (mean, 1/std, scale, shift) of `table`, and the running averages.

    The convolution before leaves out its bias, which the normalisation takes away again: only the running mean sees it.
    """
    c = tl.program_id(0)
    part = tl.arange(0, PARTS)
    mean = tl.sum(tl.load(sums + part * P + c), 0) / rows
    var = tl.maximum(tl.sum(tl.load(sums + (PARTS + part) * P + c), 0) / rows - mean * mean, 0.0)
    rstd = 1.0 / tl.sqrt(var + eps)
    real = c < C
    scale = tl.load(gamma + c, mask=real, other=0.0) * rstd
    shift = tl.load(beta + c, mask=real, other=0.0) - mean * scale
    tl.store(table + c, mean)
    tl.store(table + P + c, rstd)
    tl.store(table + 2 * P + c, scale)
    tl.store(table + 3 * P + c, shift)
    old_mean = tl.load(running_mean + c, mask=real, other=0.0)
    old_var = tl.load(running_var + c, mask=real, other=0.0)
    seen = mean + tl.load(bias + c, mask=real, other=0.0)
    tl.store(running_mean + c, old_mean + momentum * (seen - old_mean), mask=real)
    tl.store(running_var + c, old_var + momentum * (var * rows / (rows - 1) - old_var), mask=real)


@triton.jit
def _corner(r, W: tl.constexpr, POOL: tl.constexpr):
    """The first of the input rows that output row r looks at: itself, or the upper left of a 2 x 2 square."""
    if POOL:
        return (r // (W // 2)) * (2 * W) + (r % (W // 2)) * 2
    else:
        return r


@triton.jit
def _value(x, table, row, c, inside, P: tl.constexpr):
    """x at a row, and what the normalisation makes of it before the ReLU."""
    v = tl.load(x + row[:, None] * P + c[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(table + 2 * P + c, mask=c < P, other=0.0)
    shift = tl.load(table + 3 * P + c, mask=c < P, other=0.0)
    return v, v * scale[None, :] + shift[None, :]


@triton.jit
def _forward(
    x, table, y, rows,
    W: tl.constexpr, POOL: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, BLOCK)
    inside = (r < rows)[:, None] & (c < P)[None, :]
    at = _corner(r, W, POOL)
    _, z = _value(x, table, at, c, inside, P)
    if POOL:
        for k in tl.static_range(1, 4):
            _, other = _value(x, table, at + (k // 2) * W + k % 2, c, inside, P)
            z = tl.maximum(z, other)
    tl.store(y + r[:, None] * P + c[None, :], tl.maximum(z, 0.0).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _gradient_sums(
    x, table, dy, sums, rows, chunk,
    W: tl.constexpr, POOL: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """sums[0 and 1, part] = sum of dz and of dz xhat over the part's output rows: the gradients of beta and gamma."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    c = tl.arange(0, BLOCK)
    mean = tl.load(table + c, mask=c < P, other=0.0)[None, :]
    rstd = tl.load(table + P + c, mask=c < P, other=0.0)[None, :]
    first = tl.zeros((R, BLOCK), tl.float32)
    second = tl.zeros((R, BLOCK), tl.float32)
    for start in range(0, chunk, R):
        offset = start + tl.arange(0, R)
        r = part * chunk + offset
        inside = ((offset < chunk) & (r < rows))[:, None] & (c < P)[None, :]
        g = tl.load(dy + r[:, None] * P + c[None, :], mask=inside, other=0.0).to(tl.float32)
        at = _corner(r, W, POOL)
        v, z = _value(x, table, at, c, inside, P)
        if POOL:
            for k in tl.static_range(1, 4):  # the first of the largest wins, as in PyTorch
                v_k, z_k = _value(x, table, at + (k // 2) * W + k % 2, c, inside, P)
                v = tl.where(z_k > z, v_k, v)
                z = tl.maximum(z, z_k)
        dz = tl.where(z > 0, g, 0.0)
        first += dz
        second += dz * (v - mean) * rstd
    tl.store(sums + part * P + c, tl.sum(first, 0), mask=c < P)
    tl.store(sums + (parts + part) * P + c, tl.sum(second, 0), mask=c < P)


@triton.jit
def _total(sums, totals, P: tl.constexpr, PARTS: tl.constexpr):
    """totals[which, c] = sum over the parts."""
    c, which = tl.program_id(0), tl.program_id(1)
    part = tl.arange(0, PARTS)
    tl.store(totals + which * P + c, tl.sum(tl.load(sums + (which * PARTS + part) * P + c), 0))


@triton.jit
def _backward(
    x, table, dy, totals, dx, rows, count,
    W: tl.constexpr, POOL: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """dx = scale (dz - mean(dz) - xhat mean(dz xhat)), dz being dy where it passes the ReLU and the pooling."""
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, BLOCK)
    inside = (r < rows)[:, None] & (c < P)[None, :]
    mean = tl.load(table + c, mask=c < P, other=0.0)[None, :]
    rstd = tl.load(table + P + c, mask=c < P, other=0.0)[None, :]
    scale = tl.load(table + 2 * P + c, mask=c < P, other=0.0)[None, :]
    first = tl.load(totals + c, mask=c < P, other=0.0)[None, :] / count
    second = tl.load(totals + P + c, mask=c < P, other=0.0)[None, :] / count
    g = tl.load(dy + r[:, None] * P + c[None, :], mask=inside, other=0.0).to(tl.float32)
    at = _corner(r, W, POOL)
    v, z = _value(x, table, at, c, inside, P)
    if POOL:
        v1, z1 = _value(x, table, at + 1, c, inside, P)
        v2, z2 = _value(x, table, at + W, c, inside, P)
        v3, z3 = _value(x, table, at + W + 1, c, inside, P)
        best = tl.maximum(tl.maximum(z, z1), tl.maximum(z2, z3))
        g = tl.where(best > 0, g, 0.0)
        won = z == best
        won1 = (z1 == best) & (z != best)
        won2 = (z2 == best) & (z != best) & (z1 != best)
        won3 = (z != best) & (z1 != best) & (z2 != best)
        _store_dx(dx, at, c, inside, tl.where(won, g, 0.0), v, mean, rstd, scale, first, second, P)
        _store_dx(dx, at + 1, c, inside, tl.where(won1, g, 0.0), v1, mean, rstd, scale, first, second, P)
        _store_dx(dx, at + W, c, inside, tl.where(won2, g, 0.0), v2, mean, rstd, scale, first, second, P)
        _store_dx(dx, at + W + 1, c, inside, tl.where(won3, g, 0.0), v3, mean, rstd, scale, first, second, P)
    else:
        _store_dx(dx, at, c, inside, tl.where(z > 0, g, 0.0), v, mean, rstd, scale, first, second, P)


@triton.jit
def _store_dx(dx, row, c, inside, dz, v, mean, rstd, scale, first, second, P: tl.constexpr):
    d = scale * (dz - first - (v - mean) * rstd * second)
    tl.store(dx + row[:, None] * P + c[None, :], d.to(dx.dtype.element_ty), mask=inside)


class NormReluPool(torch.autograd.Function):
    """(x (B, H, W, P), gamma (C,), beta (C,), ...) -> (B, H, W, P), or (B, H/2, W/2, P) with the pooling.

    `running` is (bias, running mean, running variance, momentum, eps); the two averages are updated in place.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, running: tuple[Tensor, Tensor, Tensor, float, float],
        pool: bool,
    ) -> Tensor:  # fmt: skip
        bias, mean, var, momentum, eps = running
        B, H, W, P = x.shape
        C, rows = len(gamma), B * H * W
        block = triton.next_power_of_2(P)
        sums, table = gamma.new_empty(2, PARTS, P), gamma.new_empty(4, P)
        _moments[(PARTS,)](x, sums, rows, triton.cdiv(rows, PARTS), P=P, BLOCK=block, R=ROWS)
        _statistics[(P,)](sums, gamma, beta, bias, mean, var, table, rows, momentum, eps, C=C, P=P, PARTS=PARTS)
        y = x.new_empty(B, H // 2, W // 2, P) if pool else torch.empty_like(x)
        out = y.numel() // P
        _forward[(triton.cdiv(out, ROWS),)](x, table, y, out, W=W, POOL=pool, P=P, BLOCK=block, R=ROWS)
        ctx.save_for_backward(x, table)
        ctx.pool, ctx.channels = pool, C
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, table = ctx.saved_tensors
        dy = grads[0].contiguous()
        _, _, W, P = x.shape
        rows, block = dy.numel() // P, triton.next_power_of_2(P)
        shape = {"W": W, "POOL": ctx.pool, "P": P, "BLOCK": block, "R": ROWS}
        sums, totals, dx = table.new_empty(2, PARTS, P), table.new_empty(2, P), torch.empty_like(x)
        _gradient_sums[(PARTS,)](x, table, dy, sums, rows, triton.cdiv(rows, PARTS), **shape)
        _total[(P, 2)](sums, totals, P=P, PARTS=PARTS)
        _backward[(triton.cdiv(rows, ROWS),)](x, table, dy, totals, dx, rows, x.numel() // P, **shape)
        return dx, totals[1, : ctx.channels], totals[0, : ctx.channels], None, None
