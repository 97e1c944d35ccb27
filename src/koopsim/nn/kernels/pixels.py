"""All pixels of a picture through its network and back: the loss, and the gradient of every weight.

    a_i = relu(W_i a_{i-1} + b_i),  a_0 = psi(x)        y = C a_L + c,  or its sigmoid        loss = mean (y - t)^2
    e = (y - t) y'      d_L = [a_L > 0] C^T e      d_i = [a_i > 0] W_{i+1}^T d_{i+1}      dW_i = d_i^T a_{i-1}

psi is not learnt, so nothing goes further down than W_1; and of a mean of squares the gradient is known as soon as the
answer is. A library's product leaves what follows it to passes over all pixels, each as long as the product itself.
Here a program has some pixels and a whole layer, 64 of its inputs at a time by tensor cores, and goes on where the
sums are, in its registers: with bias and ReLU; behind the last product with the colours, the loss and the
gradient back to d_L, so that a_L is nowhere written; on the way back with the ReLU. Sums over pixels are products with
tensor cores, too: of a_L^T and [a_L > 0]^T with E, of ones with d_i. What lies between layers is in the features'
precision, bfloat16 or float16; sums over pixels, dW_i among them, are in float32, and the mean is taken at the end: in
float16 nothing is rounded to zero or grows too large. The order of addition is fixed.
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
from koopsim.nn.kernels.operators import fronts, operator
from koopsim.nn.transforms import has_room

ROWS = 128  # pixels a program has
DEPTH = 64  # inputs of a layer that are multiplied at a time
LEAST = tl.constexpr(16)  # of anything that tensor cores multiply
WIDEST = 256  # outputs of a layer: their sums fill half of the registers there are
SHARED = 200 << 10  # bytes that four stages of the loop take with the widest layer
SLICES = 2  # of the pixels in the products that sum over them, whose sums then fill the chip
LAUNCH = {"num_warps": 8, "num_stages": 4}


@triton.jit
def _product(
    x, W, sums, K: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    ROWS: tl.constexpr, H: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """sums + x W, (ROWS, K) with (K, H), whose entry (k, h) lies at k DOWN + h ACROSS."""
    r, h, k = tl.arange(0, ROWS), tl.arange(0, H), tl.arange(0, DEPTH)
    x += r[:, None] * K + k[None, :]
    W += k[:, None] * DOWN + h[None, :] * ACROSS
    for _ in range(0, K, DEPTH):
        sums = tl.dot(tl.load(x), tl.load(W), sums, input_precision="ieee")
        x += DEPTH
        W += DEPTH * DOWN
    return sums


@triton.jit
def _layer(x, W, b, y, rows, K: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    """y = relu(x W^T + b): x (M, R, K), W (M, H, K)."""
    model = tl.program_id(1).to(tl.int64)
    first = model * rows + tl.program_id(0) * ROWS
    r, h = tl.arange(0, ROWS), tl.arange(0, H)
    bias = tl.zeros((ROWS, H), tl.float32) + tl.load(b + model * H + h)[None, :]
    z = _product(x + first * K, W + model * H * K, bias, K, 1, K, ROWS, H, DEPTH)
    z = tl.where(z < 0, 0.0, z)  # a nan stays one
    tl.store(y + first * H + r[:, None] * H + h[None, :], z.to(y.dtype.element_ty))


@triton.jit
def _back(d, W, a, g, sums, rows, K: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    """g = [a > 0] (d W), and sums[part, model] over this part's rows: d (M, R, K), W (M, K, H), a (M, R, H)."""
    part, model = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first = model * rows + part * ROWS
    r, h = tl.arange(0, ROWS), tl.arange(0, H)
    here = first * H + r[:, None] * H + h[None, :]
    open = tl.load(a + here) > 0  # on its way while the product is formed
    z = _product(d + first * K, W + model * K * H, tl.zeros((ROWS, H), tl.float32), K, H, 1, ROWS, H, DEPTH)
    z = tl.where(open, z, 0.0).to(g.dtype.element_ty)
    tl.store(g + here, z)
    i = tl.arange(0, LEAST)[:, None]  # of which the first is asked for
    total = tl.dot(tl.full((LEAST, ROWS), 1.0, z.dtype), z, input_precision="ieee")
    tl.store(sums + (part * tl.num_programs(1) + model) * H + 0 * i + h[None, :], total, mask=i == 0)


@triton.jit
def _last(
    x, W, b, C, c, t, d, sums, ends, rows, O: tl.constexpr, SIGMOID: tl.constexpr,
    K: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """d_L of this part's rows, x = a_{L-1}; sums[part, model] of e a_L and, behind them, of d_L; ends of e and e^2.

    The sums over pixels have outputs across, as few as tensor cores take, and C^T e is no product: there is no room
    for its sums beside a_L, entry by entry it needs none.
    """
    part, model, models = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    first = model * rows + part * ROWS
    r, h, o = tl.arange(0, ROWS), tl.arange(0, H), tl.arange(0, LEAST)  # of which O are outputs
    kind = d.dtype.element_ty
    there = o[None, :] < O
    bias = tl.zeros((ROWS, H), tl.float32) + tl.load(b + model * H + h)[None, :]
    z = _product(x + first * K, W + model * H * K, bias, K, 1, K, ROWS, H, DEPTH)
    z = tl.where(z < 0, 0.0, z).to(kind)
    C += model * O * H
    across = tl.load(C + o[:, None] * H + h[None, :], mask=o[:, None] < O, other=0.0).to(kind)
    y = tl.dot(z, tl.trans(across), input_precision="ieee")
    y += tl.load(c + model * O + o, mask=o < O, other=0.0)[None, :]
    if SIGMOID:
        y = 1.0 / (1.0 + tl.exp(-y))
    e = tl.where(there, y - tl.load(t + (first + r)[:, None] * O + o[None, :], mask=there, other=0.0), 0.0)
    square = e * e
    if SIGMOID:
        e = e * y * (1.0 - y)
    ends += (part * models + model) * 2 * LEAST + o
    tl.store(ends, tl.sum(e, 0))
    tl.store(ends + LEAST, tl.sum(square, 0))
    short = e.to(kind)
    of_outputs = tl.dot(tl.trans(z), short, input_precision="ieee")  # (H, LEAST)
    of_open = tl.dot(tl.trans((z > 0).to(kind)), short, input_precision="ieee")
    sums += (part * models + model) * (O + 1) * H + h
    tl.store(sums[:, None] + o[None, :] * H, of_outputs, mask=there)
    tl.store(sums + O * H, tl.sum(of_open * tl.trans(across), 1))
    gradient = tl.zeros((ROWS, H), tl.float32)
    for i in tl.static_range(O):
        of_output = tl.sum(tl.where(o[None, :] == i, short.to(tl.float32), 0.0), 1)
        gradient += of_output[:, None] * tl.load(C + i * H + h).to(kind).to(tl.float32)[None, :]
    gradient = tl.where(z > 0, gradient, 0.0)
    tl.store(d + first * H + r[:, None] * H + h[None, :], gradient.to(kind))


def divides(phi: Tensor, widths: Sequence[int], outputs: int) -> bool:
    """Whether pixels (R, K) and a network of these widths divide as the kernels want, on a GPU with room for them."""
    rows, K = phi.shape[-2:]
    even = rows % (SLICES * ROWS) == 0 and _depth(K) >= LEAST.value and outputs < LEAST.value
    even = even and all(LEAST.value <= H <= WIDEST and H & (H - 1) == 0 for H in widths)
    return even and phi.dtype in (torch.bfloat16, torch.float16) and has_room(phi.device, SHARED)


def _depth(K: int) -> int:
    return math.gcd(DEPTH, K)


def _fixed(K: int, H: int) -> dict[str, int]:
    return {"K": K, "H": H, "ROWS": ROWS, "DEPTH": _depth(K), **LAUNCH}


def _forth(x: Tensor, W: Tensor, b: Tensor) -> Tensor:
    (models, rows, K), H = x.shape, W.shape[1]
    y = x.new_empty(models, rows, H)
    _layer[(rows // ROWS, models)](x, W, b, y, rows, **_fixed(K, H))
    return y


def _turn(
    x: Tensor, W: Tensor, b: Tensor, C: Tensor, c: Tensor, t: Tensor, sigmoid: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """d_L (M, R, H), the sums of e a_L and, behind them, of d_L (M, O + 1, H), of e (M, O), and the squares' (M,)."""
    (models, rows, K), H, O = x.shape, W.shape[1], C.shape[1]
    d = x.new_empty(models, rows, H)
    sums, ends = (x.new_empty(rows // ROWS, models, n, dtype=torch.float32) for n in ((O + 1) * H, 2 * LEAST.value))
    _last[(rows // ROWS, models)](x, W, b, C, c, t, d, sums, ends, rows, O=O, SIGMOID=sigmoid, **_fixed(K, H))
    de, squares = ends.sum(0).chunk(2, dim=1)
    return d, sums.sum(0).unflatten(1, (O + 1, H)), de[:, :O], squares.sum(1)


def _down(d: Tensor, W: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """[a > 0] (d W) and its sum over rows, (M, H)."""
    models, rows, H = a.shape
    g, sums = torch.empty_like(a), a.new_empty(rows // ROWS, models, H, dtype=torch.float32)
    _back[(rows // ROWS, models)](d, W, a, g, sums, rows, **_fixed(d.shape[2], H))
    return g, sums.sum(0)


def _over_rows(d: Tensor, a: Tensor) -> Tensor:
    """d^T a in float32, (M, R, H) and (M, R, K) -> (M, H, K), summed over slices of the rows first."""
    left, right = (t.reshape(len(t) * SLICES, -1, t.shape[-1]) for t in (d, a))
    if d.is_cuda:
        parts = torch.bmm(left.mT, right, out_dtype=torch.float32)
    else:
        parts = torch.bmm(left.mT.float(), right.float())
    return parts.unflatten(0, (len(d), SLICES)).sum(1)


def _run(phi: Tensor, weights: Sequence[Tensor], t: Tensor, sigmoid: bool) -> tuple[Tensor, Tensor]:
    """The loss (M,), and its gradient by all weights of a model one after the other: (M, total)."""
    rows, whole = phi.shape[1], SLICES * ROWS
    if rows % whole:
        raise KoopsimError(f"A network of pixels was given {rows} of them; expected multiples of {whole}.")
    phi, t, weights = phi.contiguous(), t.float().contiguous(), [w.float().contiguous() for w in weights]
    *hidden, (C, c) = zip(weights[::2], weights[1::2], strict=True)
    short, a = [W.to(phi.dtype) for W, _ in hidden], [phi]
    for W, (_, b) in zip(short[:-1], hidden[:-1], strict=True):
        a.append(_forth(a[-1], W, b))
    d, sums, dc, squares = _turn(a[-1], short[-1], hidden[-1][1], C, c, t, sigmoid)
    found, db = [dc, sums[:, :-1].flatten(1)], sums[:, -1]  # from the last to the first
    for i in reversed(range(len(hidden))):
        found += [db, _over_rows(d, a[i]).flatten(1)]
        if i > 0:
            d, db = _down(d, short[i], a[i])
    count = t.shape[1] * t.shape[2]
    return squares / count, torch.cat(found[::-1], dim=1).mul_(2 / count)


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
)  # (phi (M, R, K), (W_1, b_1, ..., C, c), t (M, R, O)) -> losses (M,), their gradients. M: models side by side.


def pixel_loss(phi: Tensor, layers: Sequence[tuple[Tensor, Tensor]], t: Tensor, sigmoid: bool = False) -> Tensor:
    """mean (y - t)^2 of features (R, K) in a short precision, layers ((W_1, b_1), ..., (C, c)), colours (R, O)."""
    weights = [w.unsqueeze(0) for layer in layers for w in layer]
    return pixel_loss_of_models(phi.unsqueeze(0), weights, t.unsqueeze(0), sigmoid)[0].squeeze(0)
