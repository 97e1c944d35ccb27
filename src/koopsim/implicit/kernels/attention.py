"""Causal attention in float32 on tensor cores, as Triton kernels for CUDA.

    p_ij = exp(c q_i.k_j) / sum_{j' <= i} exp(c q_i.k_j'),   o_i = sum_{j <= i} p_ij v_j
    delta_i = do_i.o_i,   ds_ij = p_ij (do_i.v_j - delta_i),   dq_i = c sum_j ds_ij k_j,   dk_j = c sum_i ds_ij q_i

A library's attention in full float32 does without tensor cores, and takes nine tenths of a DEQ's solver step. Here the
products are three TF32 parts that together are float32 (`inverse.py`), and no T x T matrix is written: a program has
some queries (or, for dk and dv, some keys) of a head and walks over the other side (Dao et al., NeurIPS 2022). The twin
is torch's scaled_dot_product_attention; tests/implicit/kernels/test_attention_kernels.py holds them together, on a CPU
through Triton's interpreter. Shapes: q, k (B, T, H, D), v and o (B, T, H, E), D <= 64 and E <= 32; any strides. `block`
is how many queries a program has and how many keys it looks at together, and the other way round: 32 or 64. Samples
whose entry of `active` (B, 1) is zero when a kernel runs are left out, and their results are zero.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false, reportOperatorIssue=false

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.nn.kernels.operators import operator

LARGEST = (64, 32)  # D and E
PRECISION = "tf32x3"
LAUNCH = {"num_warps": 4, "num_stages": 2}


@triton.jit
def _tile(at, t, d, T, s_t, D: tl.constexpr):
    """Rows t, columns d of a head, zero outside."""
    return tl.load(at + t[:, None] * s_t + d[None, :], mask=(t < T)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def _head(at, s_b, s_h, H):
    b = (tl.program_id(1) // H).to(tl.int64)
    return at + b * s_b + (tl.program_id(1) % H) * s_h


@triton.jit
def _end(active, last, H, MASKED: tl.constexpr):
    """Where a program's walk ends: at once for a sample that is left out."""
    if MASKED:
        last = tl.where(tl.load(active + tl.program_id(1) // H) != 0, last, 0)
    return last


@triton.jit
def _forward(
    q, k, v, o, sizes, active, scale, T, H, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    D: tl.constexpr, E: tl.constexpr, PD: tl.constexpr, PE: tl.constexpr, N: tl.constexpr, PRODUCT: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """o, and log2 of the sums of exponentials: what the gradient needs to have p again. `scale` is c log2(e)."""
    q, k, v = _head(q, q_b, q_h, H), _head(k, k_b, k_h, H), _head(v, v_b, v_h, H)
    first = tl.program_id(0) * N
    i, d, e = first + tl.arange(0, N), tl.arange(0, PD), tl.arange(0, PE)
    q_i = _tile(q, i, d, T, q_t, D)
    top = tl.full((N,), -float("inf"), tl.float32)
    total = tl.zeros((N,), tl.float32)
    found = tl.zeros((N, PE), tl.float32)
    for start in range(0, _end(active, first + N, H, MASKED), N):
        j = start + tl.arange(0, N)
        s = tl.dot(q_i, tl.trans(_tile(k, j, d, T, k_t, D)), input_precision=PRODUCT) * scale
        s = tl.where(i[:, None] >= j[None, :], s, -float("inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(p, 1)
        found = tl.dot(p, _tile(v, j, e, T, v_t, E), found * fade[:, None], input_precision=PRODUCT)
        top = higher
    row = (tl.program_id(1) // H).to(tl.int64) * T * H + i.to(tl.int64) * H + tl.program_id(1) % H
    total = tl.where(total > 0, total, 1.0)  # nothing was seen: left out
    tl.store(o + row[:, None] * E + e[None, :], found / total[:, None], mask=(i < T)[:, None] & (e < E)[None, :])
    tl.store(sizes + row, top + tl.log2(total), mask=i < T)


@triton.jit
def _weights(q_i, k_j, v_j, do, i, j, size, delta, scale, T, PRODUCT: tl.constexpr):
    """p and ds of some queries and keys."""
    s = tl.dot(q_i, tl.trans(k_j), input_precision=PRODUCT) * scale
    seen = (i[:, None] >= j[None, :]) & (i < T)[:, None]
    p = tl.where(seen, tl.exp2(s - size[:, None]), 0.0)
    return p, p * (tl.dot(do, tl.trans(v_j), input_precision=PRODUCT) - delta[:, None])


@triton.jit
def _answers(o, do, sizes, i, e, T, H, o_t, E: tl.constexpr):
    """do, delta and log2 of the sums of some queries. o and do lie alike, (B, T, H, E)."""
    head = (tl.program_id(1) // H).to(tl.int64) * T * H + tl.program_id(1) % H
    do_i = _tile(do + head * E, i, e, T, o_t, E)
    delta = tl.sum(do_i * _tile(o + head * E, i, e, T, o_t, E), 1)
    return do_i, delta, tl.load(sizes + head + i.to(tl.int64) * H, mask=i < T, other=0.0)


@triton.jit
def _of_queries(
    q, k, v, o, do, sizes, dq, active, scale, c, T, H, o_t, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    D: tl.constexpr, E: tl.constexpr, PD: tl.constexpr, PE: tl.constexpr, N: tl.constexpr, PRODUCT: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    q, k, v = _head(q, q_b, q_h, H), _head(k, k_b, k_h, H), _head(v, v_b, v_h, H)
    first = tl.program_id(0) * N
    i, d, e = first + tl.arange(0, N), tl.arange(0, PD), tl.arange(0, PE)
    q_i = _tile(q, i, d, T, q_t, D)
    do_i, delta, size = _answers(o, do, sizes, i, e, T, H, o_t, E)
    total = tl.zeros((N, PD), tl.float32)
    for start in range(0, _end(active, first + N, H, MASKED), N):
        j = start + tl.arange(0, N)
        k_j = _tile(k, j, d, T, k_t, D)
        _, ds = _weights(q_i, k_j, _tile(v, j, e, T, v_t, E), do_i, i, j, size, delta, scale, T, PRODUCT)
        total = tl.dot(ds, k_j, total, input_precision=PRODUCT)
    row = (tl.program_id(1) // H).to(tl.int64) * T * H + i.to(tl.int64) * H + tl.program_id(1) % H
    tl.store(dq + row[:, None] * D + d[None, :], total * c, mask=(i < T)[:, None] & (d < D)[None, :])


@triton.jit
def _of_keys(
    q, k, v, o, do, sizes, dk, dv, active, scale, c, T, H, o_t, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    D: tl.constexpr, E: tl.constexpr, PD: tl.constexpr, PE: tl.constexpr, N: tl.constexpr, PRODUCT: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    q, k, v = _head(q, q_b, q_h, H), _head(k, k_b, k_h, H), _head(v, v_b, v_h, H)
    first = tl.program_id(0) * N
    j, d, e = first + tl.arange(0, N), tl.arange(0, PD), tl.arange(0, PE)
    k_j, v_j = _tile(k, j, d, T, k_t, D), _tile(v, j, e, T, v_t, E)
    of_k, of_v = tl.zeros((N, PD), tl.float32), tl.zeros((N, PE), tl.float32)
    for start in range(first, _end(active, T, H, MASKED), N):
        i = start + tl.arange(0, N)
        q_i = _tile(q, i, d, T, q_t, D)
        do_i, delta, size = _answers(o, do, sizes, i, e, T, H, o_t, E)
        p, ds = _weights(q_i, k_j, v_j, do_i, i, j, size, delta, scale, T, PRODUCT)
        of_v = tl.dot(tl.trans(p), do_i, of_v, input_precision=PRODUCT)
        of_k = tl.dot(tl.trans(ds), q_i, of_k, input_precision=PRODUCT)
    row = (tl.program_id(1) // H).to(tl.int64) * T * H + j.to(tl.int64) * H + tl.program_id(1) % H
    tl.store(dk + row[:, None] * D + d[None, :], of_k * c, mask=(j < T)[:, None] & (d < D)[None, :])
    tl.store(dv + row[:, None] * E + e[None, :], of_v, mask=(j < T)[:, None] & (e < E)[None, :])


def _shape(q: Tensor, v: Tensor, block: int, active: Tensor | None) -> dict[str, Any]:
    D, E = q.shape[3], v.shape[3]
    padded = {"PD": max(16, triton.next_power_of_2(D)), "PE": max(16, triton.next_power_of_2(E))}
    return {"D": D, "E": E, **padded, "N": block, "PRODUCT": PRECISION, "MASKED": active is not None, **LAUNCH}


def _rows(*tensors: Tensor) -> list[Tensor]:
    """In float32, each head's row without gaps; how far apart rows, heads and samples lie is free."""
    return [t.float() if t.stride(3) == 1 else t.float().contiguous() for t in tensors]


def _bytes(active: Tensor | None, q: Tensor) -> Tensor:
    """As kernels read it; where there is none, something that is not read."""
    return q if active is None else active.contiguous().view(torch.uint8)


def _strides(*tensors: Tensor) -> list[int]:
    return [s for t in tensors for s in t.stride()[:3]]


def _run(q: Tensor, k: Tensor, v: Tensor, c: float, block: int, active: Tensor | None = None) -> tuple[Tensor, Tensor]:
    q, k, v = _rows(q, k, v)
    B, T, H, _ = q.shape
    o, sizes = q.new_empty(v.shape), q.new_empty(B, T, H)
    with torch.cuda.device_of(q):
        _forward[(triton.cdiv(T, block), B * H)](
            q, k, v, o, sizes, _bytes(active, q), c * math.log2(math.e), T, H, *_strides(q, k, v),
            **_shape(q, v, block, active),
        )  # fmt: skip
    return o, sizes


def _run_backward(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, sizes: Tensor, do: Tensor, c: float, block: int,
    active: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v = _rows(q, k, v)
    o, sizes, do = o.contiguous(), sizes.contiguous(), do.float().contiguous()
    B, T, H, E = o.shape
    dq, dk, dv = (q.new_empty(t.shape) for t in (q, k, v))
    grid, scale, fixed = (triton.cdiv(T, block), B * H), c * math.log2(math.e), _shape(q, v, block, active)
    alive = _bytes(active, q)
    with torch.cuda.device_of(q):
        _of_queries[grid](q, k, v, o, do, sizes, dq, alive, scale, c, T, H, H * E, *_strides(q, k, v), **fixed)
        _of_keys[grid](q, k, v, o, do, sizes, dk, dv, alive, scale, c, T, H, H * E, *_strides(q, k, v), **fixed)
    return dq, dk, dv


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    # `active` is kept beside the saved ones, which may not change: it says who is left out when the gradient is taken.
    *tensors, ctx.c, ctx.block, ctx.active = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, do: Tensor, of_sizes: None) -> tuple[Tensor | None, ...]:
    return (*attention_backward(*ctx.saved_tensors, do, ctx.c, ctx.block, ctx.active), None, None, None)


def _one_by_one(info: Any, dims: Any, *inputs: Any) -> Any:
    """Of a stack of calls each by itself: a Jacobian's rows."""
    calls = [
        [t if d is None else t.select(d, n) for t, d in zip(inputs, dims, strict=True)]
        for n in range(info.batch_size)
    ]  # fmt: skip
    found = zip(*(attention_backward(*call) for call in calls), strict=True)
    return tuple(torch.stack(part) for part in found), (0, 0, 0)


attention_backward = operator(
    "attention_backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor sizes, Tensor do, float c, int block, "
    "Tensor? active=None) "
    "-> (Tensor, Tensor, Tensor)",
    _run_backward,
    fake=lambda q, k, v, o, sizes, do, c, block, active=None: tuple(o.new_empty(t.shape) for t in (q, k, v)),
    vmap=_one_by_one,
)
attention = operator(
    "attention(Tensor q, Tensor k, Tensor v, float c, int block, Tensor? active=None) -> (Tensor, Tensor)",
    _run,
    fake=lambda q, k, v, c, block, active=None: (
        v.new_empty(v.shape, dtype=torch.float32),
        v.new_empty(v.shape[:3], dtype=torch.float32),
    ),
    setup=_keep,
    backward=_gradients,
)  # -> o (B, T, H, E), and what the gradient needs: nobody else's


def fits(q: Tensor, v: Tensor) -> bool:
    """Whether the kernels can be used: float32, sizes that a multiprocessor holds."""
    exact = q.dtype == v.dtype == torch.float32 and not torch.is_autocast_enabled(q.device.type)
    return exact and q.shape[-1] <= LARGEST[0] and v.shape[-1] <= LARGEST[1] and q.numel() > 0
