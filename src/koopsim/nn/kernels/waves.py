"""Sines and cosines of learnt phases in one pass, in Triton kernels for CUDA.

    phi = (sin(p), cos(p))          dp = dsin cos(p) - dcos sin(p)

A library reads and writes the phases of all pixels for each of these by itself, and once more to put them side by side.
The phases stay in float32, for they reach hundreds of radians; phi may be in bfloat16. The readable twin is
`torch.cat([p.sin(), p.cos()], dim=-1)`; tests/nn/kernels/test_waves_kernels.py holds them together,
on a CPU through Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.nn.kernels.operators import operator

TILE = 4  # rows a program looks at: sines are long code, and it is written out for every number of a thread


@triton.jit
def _forward(p, phi, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    c = tl.arange(0, BLOCK)
    inside = (r < rows)[:, None] & (c < WIDTH)[None, :]
    phase = tl.load(p + r[:, None] * WIDTH + c[None, :], mask=inside, other=0.0)
    there = phi + r[:, None] * (2 * WIDTH) + c[None, :]
    tl.store(there, tl.sin(phase).to(phi.dtype.element_ty), mask=inside)
    tl.store(there + WIDTH, tl.cos(phase).to(phi.dtype.element_ty), mask=inside)


@triton.jit
def _backward(p, dphi, dp, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    c = tl.arange(0, BLOCK)
    inside = (r < rows)[:, None] & (c < WIDTH)[None, :]
    here = r[:, None] * WIDTH + c[None, :]
    phase = tl.load(p + here, mask=inside, other=0.0)
    there = dphi + r[:, None] * (2 * WIDTH) + c[None, :]
    dsin = tl.load(there, mask=inside, other=0.0).to(tl.float32)
    dcos = tl.load(there + WIDTH, mask=inside, other=0.0).to(tl.float32)
    tl.store(dp + here, dsin * tl.cos(phase) - dcos * tl.sin(phase), mask=inside)


def _run(p: Tensor, dtype: torch.dtype) -> Tensor:
    p = p.float().contiguous()
    phi = p.new_empty(*p.shape[:-1], 2 * p.shape[-1], dtype=dtype)
    rows, shape = _shape(p)
    _forward[(triton.cdiv(rows, TILE),)](p, phi, rows, **shape)
    return phi


def _run_backward(p: Tensor, dphi: Tensor) -> Tensor:
    p, dphi = p.float().contiguous(), dphi.contiguous()
    dp = torch.empty_like(p)
    rows, shape = _shape(p)
    _backward[(triton.cdiv(rows, TILE),)](p, dphi, dp, rows, **shape)
    return dp


def _shape(p: Tensor) -> tuple[int, dict[str, Any]]:
    width = p.shape[-1]
    return p.numel() // width, {"WIDTH": width, "BLOCK": triton.next_power_of_2(width), "TILE": TILE, "num_warps": 8}


def _stacked(info: Any, dims: Any, p: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
    """Every number is by itself, so a stack of calls is one call."""
    return waves(p.movedim(dims[0], 0), dtype), 0


waves_backward = operator(
    "waves_backward(Tensor p, Tensor dphi) -> Tensor",
    _run_backward,
    fake=lambda p, dphi: p.new_empty(p.shape, dtype=torch.float32),
)
waves = operator(
    "waves(Tensor p, ScalarType dtype) -> Tensor",
    _run,
    fake=lambda p, dtype: p.new_empty(*p.shape[:-1], 2 * p.shape[-1], dtype=dtype),
    setup=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    backward=lambda ctx, dphi: (waves_backward(*ctx.saved_tensors, dphi), None),
    vmap=_stacked,
)  # (p (..., F) in float32, dtype) -> (..., 2 F) in dtype
