"""Bias and ReLU of very many rows in one pass, in Triton kernels for CUDA.

    y = relu(x + b)          dx = dy [y > 0]          db = sum of dx over the rows

As a library runs them, x + b, its ReLU, the ReLU's gradient and the bias' gradient read and write all rows each by
itself; a network for a picture has 65,536 of them and its products with matrices are over as soon. Here forward is one
pass and backward another one. x may be in bfloat16; sums are in float32, the order of addition is fixed.
The readable twin is `F.relu(x + b)`; tests/nn/kernels/test_bias_relu_kernels.py holds them together,
on a CPU through Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.errors import KoopsimError
from koopsim.nn.kernels.operators import fronts, operator

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


def _run(x: Tensor, b: Tensor) -> Tensor:
    models, rows, width = x.shape
    if b.shape != (models, width):
        raise KoopsimError(f"Rows of {width} numbers for {models} models have biases {tuple(b.shape)}.")
    x, b = x.contiguous(), b.float().contiguous()
    y = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _forward[(triton.cdiv(rows, TILE), models)](x, b, y, rows, WIDTH=width, BLOCK=block, TILE=TILE, num_warps=8)
    return y


def _run_backward(y: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    models, rows, width = y.shape
    y, dy = y.contiguous(), dy.to(y.dtype).contiguous()
    parts = max(1, min(PARTS // models, triton.cdiv(rows, TILE)))
    dx, sums = torch.empty_like(y), y.new_empty(parts, models, width, dtype=torch.float32)
    chunk, block = triton.cdiv(rows, parts), triton.next_power_of_2(width)
    _backward[(parts, models)](y, dy, dx, sums, rows, chunk, WIDTH=width, BLOCK=block, TILE=TILE, num_warps=8)
    return dx, sums.sum(0)


def _stacked(info: Any, dims: Any, *inputs: Tensor) -> tuple[Tensor, int]:
    """A stack of calls is one call with more models."""
    y = bias_relu_of_models(*fronts(info.batch_size, dims, inputs))
    return y.unflatten(0, (info.batch_size, -1)), 0


bias_relu_backward = operator(
    "bias_relu_backward(Tensor y, Tensor dy) -> (Tensor, Tensor)",
    _run_backward,
    fake=lambda y, dy: (y.new_empty(y.shape), y.new_empty(y.shape[0], y.shape[2], dtype=torch.float32)),
)
bias_relu_of_models = operator(
    "bias_relu(Tensor x, Tensor b) -> Tensor",
    _run,
    fake=lambda x, b: x.new_empty(x.shape),
    setup=lambda ctx, inputs, output: ctx.save_for_backward(output),
    backward=lambda ctx, dy: bias_relu_backward(*ctx.saved_tensors, dy),
    vmap=_stacked,
)  # (x (M, R, W), b (M, W) in float32) -> relu(x + b), in x's precision. M is for models side by side.


def bias_relu(x: Tensor, b: Tensor) -> Tensor:
    """relu(x + b), (..., W) and (W,) -> (..., W), in x's precision."""
    return bias_relu_of_models(x.reshape(1, -1, x.shape[-1]), b.float()[None]).reshape(x.shape)
