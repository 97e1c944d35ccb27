"""Sines and cosines of learnt phases in one pass, in Triton kernels for CUDA.

    phi = (sin(p), cos(p))          dp = dsin cos(p) - dcos sin(p)

A library reads and writes the phases of all pixels for each of these by itself, and once more to put them side by side.
The phases stay in float32, for they reach hundreds of radians; phi may be in bfloat16. The readable twin is
`torch.cat([p.sin(), p.cos()], dim=-1)`; tests/nn/kernels/test_waves_kernels.py holds them together,
on a CPU through Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

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


class Waves(torch.autograd.Function):
    """(p (..., F) in float32, dtype) -> (..., 2 F) in dtype."""

    @staticmethod
    def forward(p: Tensor, dtype: torch.dtype) -> Tensor:
        p = p.contiguous()
        phi = p.new_empty(*p.shape[:-1], 2 * p.shape[-1], dtype=dtype)
        rows, shape = _shape(p)
        _forward[(triton.cdiv(rows, TILE),)](p, phi, rows, **shape)
        return phi

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.dtype = output.dtype

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        p = ctx.saved_tensors[0].contiguous()
        dphi, dp = grads[0].to(ctx.dtype).contiguous(), torch.empty_like(p)
        rows, shape = _shape(p)
        _backward[(triton.cdiv(rows, TILE),)](p, dphi, dp, rows, **shape)
        return dp, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        """Every number is by itself, so a stack of calls is one call."""
        p, dtype = inputs
        return cast(Tensor, Waves.apply(p.movedim(in_dims[0], 0), dtype)), 0


def _shape(p: Tensor) -> tuple[int, dict[str, Any]]:
    width = p.shape[-1]
    return p.numel() // width, {"WIDTH": width, "BLOCK": triton.next_power_of_2(width), "TILE": TILE, "num_warps": 8}
