"""Batch normalisation, ReLU and max pooling as one map, in Triton kernels for CUDA.

    y = pool(relu(gamma (x - mean) / sqrt(var + eps) + beta))        mean, var over batch and pixels

A library runs these as separate kernels and writes every intermediate picture to memory. Here the forward map reads
x twice (moments, then the result) and the backward map reads x and dy twice; nothing else of that size is stored.
Pictures are (B, H, W, P), channels last, with P >= C channels: those above C are padding that makes convolutions
fit the tensor cores; they are zero and stay zero. The readable twin is `lift.VGG.stages`;
tests/nn/kernels/test_norm_kernels.py holds them together, on a CPU through Triton's interpreter.

All of it is a matter of memory, so two things are minded. Many loads are on their way at once: a sum takes several
tiles before it adds them up. And what was read last is read first by the next kernel, while it is still in the cache:
sums walk from the first row to the last, maps from the last to the first.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.errors import KoopsimError
from koopsim.nn.kernels.operators import operator

PARTS = 792  # programs that share a sum, each leaving its part: six for each of an H200's 132 multiprocessors
ROWS = 16  # pixels of a tile: one for each group of threads that reads a row's channels


@triton.jit
def _tile(x, r, c, rows, P: tl.constexpr):
    """Rows r of x; zero beyond the last row and channel."""
    inside = (r < rows)[:, None] & (c < P)[None, :]
    return tl.load(x + r[:, None] * P + c[None, :], mask=inside, other=0.0)


@triton.jit
def _of_channel(table, which, c, P: tl.constexpr):
    """Row `which` of a table with an entry for each channel."""
    return tl.load(table + which * P + c, mask=c < P, other=0.0)[None, :]


@triton.jit
def _moments(x, sums, rows, turns, P: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr):
    """sums[0 and 1, channel, part] = sum of x and of x^2 over the part's tiles, four at a time."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    c = tl.arange(0, BLOCK)
    first = tl.zeros((R, BLOCK), tl.float32)
    second = tl.zeros((R, BLOCK), tl.float32)
    for turn in range(0, turns):
        r = (turn * parts + part) * (4 * R) + tl.arange(0, R)
        v0 = _tile(x, r, c, rows, P)
        v1 = _tile(x, r + R, c, rows, P)
        v2 = _tile(x, r + 2 * R, c, rows, P)
        v3 = _tile(x, r + 3 * R, c, rows, P)
        v0, v1, v2, v3 = v0.to(tl.float32), v1.to(tl.float32), v2.to(tl.float32), v3.to(tl.float32)
        first += (v0 + v1) + (v2 + v3)
        second += (v0 * v0 + v1 * v1) + (v2 * v2 + v3 * v3)
    tl.store(sums + c * parts + part, tl.sum(first, 0), mask=c < P)
    tl.store(sums + (P + c) * parts + part, tl.sum(second, 0), mask=c < P)


@triton.jit
def _sum_of_parts(sums, which, PARTS: tl.constexpr, ALL: tl.constexpr):
    """ALL is the power of two that holds all parts."""
    part = tl.arange(0, ALL)
    return tl.sum(tl.load(sums + which * PARTS + part, mask=part < PARTS, other=0.0), 0)


@triton.jit
def _statistics(
    sums, gamma, beta, bias, table, rows, eps,
    C: tl.constexpr, P: tl.constexpr, PARTS: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """One channel: its moments, and the rows (mean, 1/std, scale, shift, and what running averages see) of `table`.

    The convolution before leaves out its bias, which the normalisation takes away again: only the running mean sees it.
    """
    c = tl.program_id(0)
    mean = _sum_of_parts(sums, c, PARTS, ALL) / rows
    var = _sum_of_parts(sums, P + c, PARTS, ALL) / rows - mean * mean
    var = tl.where(var < 0, 0.0, var)  # not a maximum, here and below: a nan must stay one, as in PyTorch
    rstd = 1.0 / tl.sqrt(var + eps)
    real = c < C
    scale = tl.load(gamma + c, mask=real, other=0.0) * rstd
    shift = tl.load(beta + c, mask=real, other=0.0) - mean * scale
    tl.store(table + c, mean)
    tl.store(table + P + c, rstd)
    tl.store(table + 2 * P + c, scale)
    tl.store(table + 3 * P + c, shift)
    tl.store(table + 4 * P + c, mean + tl.load(bias + c, mask=real, other=0.0))
    tl.store(table + 5 * P + c, var * rows / (rows - 1))


@triton.jit
def _corner(r, W: tl.constexpr):
    """The upper left of the 2 x 2 rows of x that row r of the pooled picture looks at."""
    return (r // (W // 2)) * (2 * W) + (r % (W // 2)) * 2


@triton.jit
def _square(x, r, c, rows, W: tl.constexpr, P: tl.constexpr):
    """All four of them: the loads first, so that none waits for another's conversion."""
    at = _corner(r, W)
    v0 = _tile(x, at, c, 4 * rows, P)
    v1 = _tile(x, at + 1, c, 4 * rows, P)
    v2 = _tile(x, at + W, c, 4 * rows, P)
    v3 = _tile(x, at + W + 1, c, 4 * rows, P)
    return v0.to(tl.float32), v1.to(tl.float32), v2.to(tl.float32), v3.to(tl.float32)


@triton.jit
def _forward(
    x, table, y, rows,
    W: tl.constexpr, POOL: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    r = (tl.num_programs(0) - 1 - tl.program_id(0)) * R + tl.arange(0, R)
    c = tl.arange(0, BLOCK)
    scale = _of_channel(table, 2, c, P)
    shift = _of_channel(table, 3, c, P)
    if POOL:
        v0, v1, v2, v3 = _square(x, r, c, rows, W, P)
        z = tl.maximum(v0 * scale + shift, v1 * scale + shift)
        z = tl.maximum(z, tl.maximum(v2 * scale + shift, v3 * scale + shift))
    else:
        z = _tile(x, r, c, rows, P).to(tl.float32) * scale + shift
    inside = (r < rows)[:, None] & (c < P)[None, :]
    z = tl.where(z < 0, 0.0, z)
    tl.store(y + r[:, None] * P + c[None, :], z.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _larger(v, z, other, scale, shift):
    """(v, z) or, where its z is larger, the other: the first of the largest wins, as in PyTorch."""
    z_other = other * scale + shift
    return tl.where(z_other > z, other, v), tl.maximum(z, z_other)


@triton.jit
def _gradient_sums(
    x, table, dy, sums, rows, turns,
    W: tl.constexpr, POOL: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """sums[0 and 1, channel, part] = sum of dz and of dz xhat over the part's tiles: gradients of beta and gamma."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    c = tl.arange(0, BLOCK)
    mean = _of_channel(table, 0, c, P)
    scale = _of_channel(table, 2, c, P)
    shift = _of_channel(table, 3, c, P)
    first = tl.zeros((R, BLOCK), tl.float32)
    second = tl.zeros((R, BLOCK), tl.float32)
    for turn in range(0, turns):
        if POOL:
            r = (turn * parts + part) * R + tl.arange(0, R)
            g = _tile(dy, r, c, rows, P)
            v, v1, v2, v3 = _square(x, r, c, rows, W, P)
            z = v * scale + shift
            v, z = _larger(v, z, v1, scale, shift)
            v, z = _larger(v, z, v2, scale, shift)
            v, z = _larger(v, z, v3, scale, shift)
            dz = tl.where(z > 0, g.to(tl.float32), 0.0)
            first += dz
            second += dz * (v - mean)
        else:
            r = (turn * parts + part) * (2 * R) + tl.arange(0, R)
            g = _tile(dy, r, c, rows, P)
            v = _tile(x, r, c, rows, P)
            g1 = _tile(dy, r + R, c, rows, P)
            v1 = _tile(x, r + R, c, rows, P)
            v, v1 = v.to(tl.float32), v1.to(tl.float32)
            dz = tl.where(v * scale + shift > 0, g.to(tl.float32), 0.0)
            dz1 = tl.where(v1 * scale + shift > 0, g1.to(tl.float32), 0.0)
            first += dz + dz1
            second += dz * (v - mean) + dz1 * (v1 - mean)
    rstd = tl.load(table + P + c, mask=c < P, other=0.0)
    tl.store(sums + c * parts + part, tl.sum(first, 0), mask=c < P)
    tl.store(sums + (P + c) * parts + part, tl.sum(second, 0) * rstd, mask=c < P)


@triton.jit
def _totals(sums, table, totals, count, P: tl.constexpr, PARTS: tl.constexpr, ALL: tl.constexpr):
    """One channel: d beta, d gamma, and (slope, offset) such that dx = scale dz - slope x - offset."""
    c = tl.program_id(0)
    beta = _sum_of_parts(sums, c, PARTS, ALL)
    gamma = _sum_of_parts(sums, P + c, PARTS, ALL)
    scale = tl.load(table + 2 * P + c)
    slope = scale * tl.load(table + P + c) * gamma / count
    tl.store(totals + c, beta)
    tl.store(totals + P + c, gamma)
    tl.store(totals + 2 * P + c, slope)
    tl.store(totals + 3 * P + c, scale * beta / count - slope * tl.load(table + c))


@triton.jit
def _backward(
    x, table, dy, totals, dx, rows,
    W: tl.constexpr, POOL: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """dx = scale (dz - mean(dz) - xhat mean(dz xhat)), dz being dy where it passes the ReLU and the pooling."""
    r = (tl.num_programs(0) - 1 - tl.program_id(0)) * R + tl.arange(0, R)
    c = tl.arange(0, BLOCK)
    g = _tile(dy, r, c, rows, P)
    if POOL:
        v0, v1, v2, v3 = _square(x, r, c, rows, W, P)
    else:
        v0 = _tile(x, r, c, rows, P).to(tl.float32)
    scale = _of_channel(table, 2, c, P)
    shift = _of_channel(table, 3, c, P)
    slope = _of_channel(totals, 2, c, P)
    offset = _of_channel(totals, 3, c, P)
    inside = (r < rows)[:, None] & (c < P)[None, :]
    z0 = v0 * scale + shift
    g = g.to(tl.float32) * scale
    if POOL:
        z1, z2, z3 = v1 * scale + shift, v2 * scale + shift, v3 * scale + shift
        best = tl.maximum(tl.maximum(z0, z1), tl.maximum(z2, z3))
        g = tl.where(best > 0, g, 0.0)
        won1 = (z1 == best) & (z0 != best)
        won2 = (z2 == best) & (z0 != best) & (z1 != best)
        won3 = (z0 != best) & (z1 != best) & (z2 != best)
        at = _corner(r, W)
        _store_dx(dx, at, c, inside, tl.where(z0 == best, g, 0.0) - slope * v0 - offset, P)
        _store_dx(dx, at + 1, c, inside, tl.where(won1, g, 0.0) - slope * v1 - offset, P)
        _store_dx(dx, at + W, c, inside, tl.where(won2, g, 0.0) - slope * v2 - offset, P)
        _store_dx(dx, at + W + 1, c, inside, tl.where(won3, g, 0.0) - slope * v3 - offset, P)
    else:
        _store_dx(dx, r, c, inside, tl.where(z0 > 0, g, 0.0) - slope * v0 - offset, P)


@triton.jit
def _store_dx(dx, row, c, inside, d, P: tl.constexpr):
    tl.store(dx + row[:, None] * P + c[None, :], d.to(dx.dtype.element_ty), mask=inside)


def mapped(x: Tensor, table: Tensor, pool: bool) -> Tensor:
    """pool(relu(scale x + shift)) with the table's scale and shift."""
    B, H, W, P = x.shape
    if pool and (H % 2 or W % 2):
        raise KoopsimError(f"Pictures of {H} x {W} pixels were to be pooled by twos; expected even sides.")
    y = x.new_empty(B, H // 2, W // 2, P) if pool else torch.empty_like(x)
    rows, shape = y.numel() // P, _map_shape(W, P, pool)
    _forward[(triton.cdiv(rows, shape["R"]),)](x, table, y, rows, **shape)
    return y


def _run_plain(x: Tensor, bias: Tensor, pool: bool) -> Tensor:
    table = torch.stack([bias, bias, torch.ones_like(bias), bias]).float()  # the first two rows are for gradients
    return mapped(x.contiguous(), table, pool)


def moments(x: Tensor) -> Tensor:
    """(2, P, PARTS): sums of x (B, H, W, P) and of its squares, part by part."""
    P, rows = x.shape[3], x.numel() // x.shape[3]
    sums = x.new_empty(2, P, PARTS, dtype=torch.float32)
    block, turns = triton.next_power_of_2(P), triton.cdiv(rows, 4 * ROWS * PARTS)
    _moments[(PARTS,)](x, sums, rows, turns, P=P, BLOCK=block, R=ROWS)
    return sums


def statistics(sums: Tensor, rows: int, gamma: Tensor, beta: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The table of `_statistics` from the sums of so many pixels."""
    gamma, beta, bias = (t.float().contiguous() for t in (gamma, beta, bias))
    P = sums.shape[1]
    table = sums.new_empty(6, P)
    _statistics[(P,)](sums, gamma, beta, bias, table, rows, eps, C=len(gamma), **_parts(sums))
    return table


def gradient_sums(x: Tensor, table: Tensor, dy: Tensor, pool: bool) -> Tensor:
    """(2, P, PARTS): sums of dz and of dz xhat, part by part."""
    _, _, W, P = x.shape
    rows, sums = dy.numel() // P, table.new_empty(2, P, PARTS)
    turns = triton.cdiv(rows, (ROWS if pool else 2 * ROWS) * PARTS)
    _gradient_sums[(PARTS,)](x, table, dy, sums, rows, turns, **_map_shape(W, P, pool) | {"R": ROWS})
    return sums


def through_norm(x: Tensor, table: Tensor, dy: Tensor, sums: Tensor, pool: bool) -> tuple[Tensor, Tensor]:
    """dx from the sums of `_gradient_sums`, and a table whose first rows are d beta and d gamma."""
    _, _, W, P = x.shape
    rows, shape, totals, dx = dy.numel() // P, _map_shape(W, P, pool), table.new_empty(4, P), torch.empty_like(x)
    _totals[(P,)](sums, table, totals, x.numel() // P, **_parts(sums))
    _backward[(triton.cdiv(rows, shape["R"]),)](x, table, dy, totals, dx, rows, **shape)
    return dx, totals


def _parts(sums: Tensor) -> dict[str, Any]:
    return {"P": sums.shape[1], "PARTS": sums.shape[2], "ALL": triton.next_power_of_2(sums.shape[2])}


def _run(x: Tensor, gamma: Tensor, beta: Tensor, bias: Tensor, eps: float, pool: bool) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    table = statistics(moments(x), x.numel() // x.shape[3], gamma, beta, bias, eps)
    return mapped(x, table, pool), table


def _run_backward(x: Tensor, table: Tensor, dy: Tensor, pool: bool) -> tuple[Tensor, Tensor]:
    x, table, dy = x.contiguous(), table.contiguous(), dy.contiguous()
    return through_norm(x, table, dy, gradient_sums(x, table, dy, pool), pool)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor, float, bool], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], output[1])
    ctx.pool, ctx.channels = inputs[5], len(inputs[1])


def _gradients(ctx: Any, dy: Tensor, of_table: None) -> tuple[Tensor | None, ...]:
    dx, totals = norm_relu_pool_backward(*ctx.saved_tensors, dy, ctx.pool)
    return dx, totals[1, : ctx.channels], totals[0, : ctx.channels], None, None, None


def _like_map(x: Tensor, pool: bool) -> Tensor:
    B, H, W, P = x.shape
    return x.new_empty(B, H // 2, W // 2, P) if pool else x.new_empty(x.shape)


bias_relu_pool = operator(
    "bias_relu_pool(Tensor x, Tensor bias, bool pool) -> Tensor",
    _run_plain,
    fake=lambda x, bias, pool: _like_map(x, pool),
)  # pool(relu(x + bias)) for inference, where the normalisation is in the convolution: (B, H, W, P), (P,)
norm_relu_pool_backward = operator(
    "norm_relu_pool_backward(Tensor x, Tensor table, Tensor dy, bool pool) -> (Tensor, Tensor)",
    _run_backward,
    fake=lambda x, table, dy, pool: (x.new_empty(x.shape), table.new_empty(4, x.shape[3])),
)
norm_relu_pool = operator(
    "norm_relu_pool(Tensor x, Tensor gamma, Tensor beta, Tensor bias, float eps, bool pool) -> (Tensor, Tensor)",
    _run,
    fake=lambda x, gamma, beta, bias, eps, pool: (_like_map(x, pool), gamma.new_empty(6, x.shape[3])),
    setup=_keep,
    backward=_gradients,
)  # (x (B, H, W, P), gamma (C,), beta (C,), the convolution's bias (C,)) -> the map, and the table of `_statistics`


def _map_shape(W: int, P: int, pool: bool) -> dict[str, Any]:
    """What a map is compiled for. Without the pooling a tile has more rows, to read the channels' tables less often."""
    return {"W": W, "POOL": pool, "P": P, "BLOCK": triton.next_power_of_2(P), "R": ROWS if pool else 4 * ROWS}
