"""Bias and ReLU of very many rows in one pass, in Triton kernels for CUDA.

    y = relu(x + b)          dx = dy [y > 0]          db = sum of dx over the rows

As a library runs them, x + b, its ReLU, the ReLU's gradient and the bias' gradient read and write all rows each by
itself; a network for a picture has 65,536 of them and its products with matrices are over as soon. Here forward is one
pass and backward another one. x may be in bfloat16; sums are in float32, the order of addition is fixed.
The readable twin is `F.relu(x + b)`; tests/nn/kernels/test_bias_relu_kernels.py holds them together,
on a CPU through Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = 64  # rows a program looks at together
PARTS = 1024  # programs that share the sums over rows, of all models together


@triton.jit
def _forward(x, b, y, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr):
    model = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * TILE + tl.arange(0, TILE)
    c = tl.arange(0, BLOCK)
    inside = (r < rows)[:, None] & (c < WIDTH)[None, :]
    here = (model * rows + r)[:, None] * WIDTH + c[None, :]
    bias = tl.load(b + model * WIDTH + c, mask=c < WIDTH, other=0.0)
    value = tl.load(x + here, mask=inside, other=0.0).to(tl.float32) + bias[None, :]
    value = tl.where(value < 0, 0.0, value)  # as in PyTorch a nan stays one, which a maximum would not
    tl.store(y + here, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(y, dy, dx, sums, rows, chunk, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """dx of this part's rows, and sums[part, model] = their sum."""
    part, model, models = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    c = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, chunk, TILE):
        offset = start + tl.arange(0, TILE)
        r = part * chunk + offset
        inside = ((offset < chunk) & (r < rows))[:, None] & (c < WIDTH)[None, :]
        here = (model * rows + r)[:, None] * WIDTH + c[None, :]
        value = tl.load(y + here, mask=inside, other=0.0)
        gradient = tl.load(dy + here, mask=inside, other=0.0)
        gradient = tl.where(value > 0, gradient, 0.0)
        tl.store(dx + here, gradient, mask=inside)
        total += tl.sum(gradient.to(tl.float32), 0)
    tl.store(sums + (part * models + model) * WIDTH + c, total, mask=c < WIDTH)


class BiasRelu(torch.autograd.Function):
    """(x (M, R, W), b (M, W) in float32) -> relu(x + b), in x's precision. M is for models side by side."""

    @staticmethod
    def forward(x: Tensor, b: Tensor) -> Tensor:
        models, rows, width = x.shape
        x, b = x.contiguous(), b.contiguous()
        y = torch.empty_like(x)
        block = triton.next_power_of_2(width)
        _forward[(triton.cdiv(rows, TILE), models)](x, b, y, rows, WIDTH=width, BLOCK=block, TILE=TILE, num_warps=8)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        models, rows, width = y.shape
        dy = grads[0].to(y.dtype).contiguous()
        parts = max(1, min(PARTS // models, triton.cdiv(rows, TILE)))
        dx, sums = torch.empty_like(y), y.new_empty(parts, models, width, dtype=torch.float32)
        chunk, block = triton.cdiv(rows, parts), triton.next_power_of_2(width)
        _backward[(parts, models)](
            y, dy, dx, sums, rows, chunk, WIDTH=width, BLOCK=block, TILE=TILE, num_warps=8
        )  # fmt: skip
        return dx, sums.sum(0)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        """A stack of calls is one call with more models."""
        count = info.batch_size
        x, b = (
            t.expand(count, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(inputs, in_dims, strict=True)
        )
        y = cast(Tensor, BiasRelu.apply(x.flatten(0, 1), b.flatten(0, 1)))
        return y.unflatten(0, (count, -1)), 0


def bias_relu(x: Tensor, b: Tensor) -> Tensor:
    """relu(x + b), (..., W) and (W,) -> (..., W), in x's precision."""
    return cast(Tensor, BiasRelu.apply(x.reshape(1, -1, x.shape[-1]), b.float()[None])).reshape(x.shape)
