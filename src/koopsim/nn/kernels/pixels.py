"""All pixels of a picture through its network and back: the loss, and the gradient of every weight.

    a_i = relu(W_i a_{i-1} + b_i),  a_0 = psi(x)        y = C a_L + c,  or its sigmoid        loss = mean (y - t)^2
    e = (y - t) y'      d_L = [a_L > 0] C^T e      d_i = [a_i > 0] W_{i+1}^T d_{i+1}      dW_i = d_i^T a_{i-1}

psi is not learnt, so nothing goes further down than W_1; and of a mean of squares the gradient is known as soon as the
answer is. So from the last product on, bias, ReLU, the three colours, the loss and the gradient of all of these are one
pass over the pixels: as a library runs them they are eight, each as long as the product before it. What lies between
layers is in the features' precision, bfloat16 or float16; sums over pixels, dW_i among them, are in float32, and the
mean is taken at the end: in float16 nothing is rounded to zero or grows too large. The order of addition is fixed.
The readable twin is `F.mse_loss` of `nn.folded`; tests/nn/kernels/test_pixels_kernels.py holds them together,
on a CPU through Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.errors import KoopsimError
from koopsim.nn.kernels.bias_relu import bias_relu_backward, bias_relu_of_models
from koopsim.nn.kernels.operators import fronts, operator
from koopsim.nn.kernels.relu_layer import divides, relu_layer

COLOURS = 3
TILE = 2  # rows a program looks at together
PARTS = 2112  # programs that share the pixels of all models
SLICES = 2  # of the rows, whose sums fill the chip
LAUNCH = {"num_warps": 2, "STAGES": 4}


@triton.jit
def _error(z, row, c, t, SIGMOID: tl.constexpr):
    """(e, (y - t)^2) of one colour, y = row z + c."""
    y = tl.sum(z * row[None, :], 1) + c
    if SIGMOID:
        y = 1.0 / (1.0 + tl.exp(-y))
    e = y - t
    square = e * e
    if SIGMOID:
        e = e * y * (1.0 - y)
    return e, square


@triton.jit
def _end(
    x, b, C, c, t, d, sums, ends, rows, chunk,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, SIGMOID: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """d_L of this part's rows, whose number TILE divides; sums[part, model] of e z and d_L, ends of e and e^2."""
    part, model, models = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    first = model.to(tl.int64) * rows + part * chunk
    x += first * WIDTH
    d += first * WIDTH
    t += first * 3
    k = tl.arange(0, BLOCK)
    inside = k < WIDTH
    whole: tl.constexpr = WIDTH == BLOCK
    bias = tl.load(b + model * WIDTH + k, mask=inside, other=0.0)
    C += model * 3 * WIDTH + k
    C_red = tl.load(C, mask=inside, other=0.0)
    C_green = tl.load(C + WIDTH, mask=inside, other=0.0)
    C_blue = tl.load(C + 2 * WIDTH, mask=inside, other=0.0)
    c += model * 3
    c_red, c_green, c_blue = tl.load(c), tl.load(c + 1), tl.load(c + 2)
    of_red, of_green = tl.zeros((TILE, BLOCK), tl.float32), tl.zeros((TILE, BLOCK), tl.float32)
    of_blue, of_bias = tl.zeros((TILE, BLOCK), tl.float32), tl.zeros((TILE, BLOCK), tl.float32)
    e_red, e_green = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
    e_blue, lost = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
    for start in tl.range(0, tl.minimum(chunk, rows - part * chunk), TILE, num_stages=STAGES):
        r = start + tl.arange(0, TILE)
        here = r[:, None] * WIDTH + k[None, :]
        if whole:
            z = tl.load(x + here).to(tl.float32)
        else:
            z = tl.load(x + here, mask=inside[None, :], other=0.0).to(tl.float32)
        z = tl.maximum(z + bias[None, :], 0.0, propagate_nan=tl.PropagateNan.ALL)
        red, red2 = _error(z, C_red, c_red, tl.load(t + 3 * r), SIGMOID)
        green, green2 = _error(z, C_green, c_green, tl.load(t + 3 * r + 1), SIGMOID)
        blue, blue2 = _error(z, C_blue, c_blue, tl.load(t + 3 * r + 2), SIGMOID)
        gradient = red[:, None] * C_red[None, :] + green[:, None] * C_green[None, :] + blue[:, None] * C_blue[None, :]
        gradient = tl.where(z > 0, gradient, 0.0)
        if whole:
            tl.store(d + here, gradient.to(d.dtype.element_ty))
        else:
            tl.store(d + here, gradient.to(d.dtype.element_ty), mask=inside[None, :])
        of_red += z * red[:, None]
        of_green += z * green[:, None]
        of_blue += z * blue[:, None]
        of_bias += gradient
        e_red += red
        e_green += green
        e_blue += blue
        lost += red2 + green2 + blue2
    sums += (part * models + model) * 4 * WIDTH + k
    tl.store(sums, tl.sum(of_red, 0), mask=inside)
    tl.store(sums + WIDTH, tl.sum(of_green, 0), mask=inside)
    tl.store(sums + 2 * WIDTH, tl.sum(of_blue, 0), mask=inside)
    tl.store(sums + 3 * WIDTH, tl.sum(of_bias, 0), mask=inside)
    ends += (part * models + model) * 4
    tl.store(ends, tl.sum(e_red, 0))
    tl.store(ends + 1, tl.sum(e_green, 0))
    tl.store(ends + 2, tl.sum(e_blue, 0))
    tl.store(ends + 3, tl.sum(lost, 0))


def _last(x: Tensor, b: Tensor, C: Tensor, c: Tensor, t: Tensor, sigmoid: bool) -> tuple[Tensor, Tensor, Tensor]:
    """d_L (M, R, H), sums (M, 4, H) and ends (M, 4) of x = W_L a_{L-1}, (M, R, H)."""
    models, rows, width = x.shape
    tile = math.gcd(TILE, rows)
    parts = max(1, min(PARTS // models, rows // tile))
    chunk = tile * triton.cdiv(rows, tile * parts)
    d = torch.empty_like(x)
    sums, ends = (x.new_empty(parts, models, 4, n, dtype=torch.float32) for n in (width, 1))
    block = triton.next_power_of_2(width)
    _end[(parts, models)](
        x, b, C, c, t, d, sums, ends, rows, chunk, WIDTH=width, BLOCK=block, TILE=tile, SIGMOID=sigmoid, **LAUNCH
    )
    return d, sums.sum(0), ends.sum(0).squeeze(-1)


def _over_rows(d: Tensor, a: Tensor) -> Tensor:
    """d^T a in float32, (M, R, H) and (M, R, K) -> (M, H, K), summed over slices of the rows first."""
    slices = math.gcd(SLICES, d.shape[1])
    left, right = (t.reshape(len(t) * slices, -1, t.shape[-1]) for t in (d, a))
    if d.is_cuda:
        parts = torch.bmm(left.mT, right, out_dtype=torch.float32)
    else:
        parts = torch.bmm(left.mT.float(), right.float())
    return parts.unflatten(0, (len(d), slices)).sum(1)


def _run(phi: Tensor, weights: Sequence[Tensor], t: Tensor, sigmoid: bool) -> tuple[Tensor, Tensor]:
    """The loss (M,), and its gradient by all weights of a model one after the other: (M, total)."""
    phi, t, weights = phi.contiguous(), t.float().contiguous(), [w.float().contiguous() for w in weights]
    *hidden, (C, c) = zip(weights[::2], weights[1::2], strict=True)
    short, a = [W.to(phi.dtype) for W, _ in hidden], [phi]
    for W, (_, b) in zip(short[:-1], hidden[:-1], strict=True):
        one = divides(a[-1], W.shape[1])
        a.append(relu_layer(a[-1], W, b) if one else bias_relu_of_models(torch.bmm(a[-1], W.mT), b))
    d, sums, ends = _last(torch.bmm(a[-1], short[-1].mT), hidden[-1][1], C, c, t, sigmoid)
    found, db = [ends[:, :COLOURS], sums[:, :COLOURS].flatten(1)], sums[:, COLOURS]  # from the last to the first
    for i in reversed(range(len(hidden))):
        found += [db, _over_rows(d, a[i]).flatten(1)]
        if i > 0:
            d, db = bias_relu_backward(a[i], torch.bmm(d, short[i]))
    count = t.shape[1] * t.shape[2]
    return ends[:, COLOURS] / count, torch.cat(found[::-1], dim=1).mul_(2 / count)


def _sizes(weights: Sequence[Tensor]) -> list[int]:
    return [math.prod(w.shape[1:]) for w in weights]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.shapes = [w.shape for w in inputs[1]]
    ctx.save_for_backward(output[1])


def _gradients(ctx: Any, g: Tensor, _: Tensor | None) -> tuple[None, list[Tensor], None, None]:
    if ctx.needs_input_grad[0] or ctx.needs_input_grad[2]:
        raise KoopsimError("Neither the features of pixels nor their colours are learnt: they have no gradient here.")
    (total,) = ctx.saved_tensors
    ends = list(itertools.accumulate(math.prod(shape[1:]) for shape in ctx.shapes))
    pieces = (g[:, None] * total).tensor_split(ends[:-1], dim=1)
    return None, [piece.reshape(shape) for piece, shape in zip(pieces, ctx.shapes, strict=True)], None, None


def _stacked(
    info: Any, dims: Any, phi: Tensor, weights: Sequence[Tensor], t: Tensor, sigmoid: bool
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """A stack of calls is one call with more models."""
    phi, t, *weights = fronts(info.batch_size, (dims[0], dims[2], *dims[1]), (phi, t, *weights))
    loss, total = pixel_loss_of_models(phi, weights, t, sigmoid)
    return (loss.unflatten(0, (info.batch_size, -1)), total.unflatten(0, (info.batch_size, -1))), (0, 0)


pixel_loss_of_models = operator(
    "pixel_loss(Tensor phi, Tensor[] weights, Tensor t, bool sigmoid) -> (Tensor, Tensor)",
    _run,
    fake=lambda phi, weights, t, sigmoid: (
        t.new_empty(len(phi), dtype=torch.float32),
        t.new_empty(len(phi), sum(_sizes(weights)), dtype=torch.float32),
    ),
    setup=_keep,
    backward=_gradients,
    vmap=_stacked,
)  # (phi (M, R, K), (W_1, b_1, ..., C, c), t (M, R, 3)) -> losses (M,), their gradients. M: models side by side.


def pixel_loss(phi: Tensor, layers: Sequence[tuple[Tensor, Tensor]], t: Tensor, sigmoid: bool = False) -> Tensor:
    """mean (y - t)^2 of features (R, K) in a short precision, layers ((W_1, b_1), ..., (C, c)), colours (R, 3)."""
    weights = [w.unsqueeze(0) for layer in layers for w in layer]
    return pixel_loss_of_models(phi.unsqueeze(0), weights, t.unsqueeze(0), sigmoid)[0].squeeze(0)
