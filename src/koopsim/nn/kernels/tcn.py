"""The stack of causal convolutions of a TCN as Triton kernels, for CUDA.

    a_l = relu(W_l * h_l + b_l)        h_{l+1} = a_l            l even (first of a block)
                                       h_{l+1} = relu(a_l + r)  l odd, r the block's input (or its 1x1 image)

At ten channels a library's convolution or matrix product costs several launches, none of which fills the chip.
Here a layer is one kernel forward and one backward, and the gradients of all weights come from a single one
at the end. The readable twin is `lift.TemporalBlock`; tests/nn/kernels/test_tcn_kernels.py holds them together, on a
CPU through Triton's interpreter.

Shapes: h (L, M, B, T, C) with h[l] the input of layer l, W (M, L, C, K, C) with the oldest tap first, b (M, L, C).
M is for many models side by side: a stack of trials under torch.vmap is one call, each sequence with its model's W.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS = 32  # time steps a program


@triton.jit
def _layer_forward(
    h, w, b, residual, a, out, T, dilation, each, w_stride, b_stride,
    C: tl.constexpr, K: tl.constexpr, P: tl.constexpr, R: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """a = relu(conv(h) + b) and, for the second layer of a block, out = relu(a + residual)."""
    model = tl.program_id(1) // each
    w += model * w_stride
    b += model * b_stride
    t = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, P)
    here = (tl.program_id(1) * T + t)[:, None] * C + c[None, :]
    inside = (t < T)[:, None] & (c < C)[None, :]
    weight = (c < C)[:, None] & (c < C)[None, :]
    total = tl.zeros((R, P), tl.float32)
    for k in tl.static_range(K):
        back = (K - 1 - k) * dilation
        x = tl.load(h + here - back * C, mask=inside & (t >= back)[:, None], other=0.0)
        w_k = tl.load(w + c[:, None] * (K * C) + k * C + c[None, :], mask=weight, other=0.0)  # (out, in)
        total += tl.dot(x, tl.trans(w_k), input_precision="ieee")
    total += tl.load(b + c, mask=c < C, other=0.0)[None, :]
    total = tl.where(total < 0, 0.0, total)  # as in PyTorch a nan stays one, which a maximum would not
    tl.store(a + here, total, mask=inside)
    if HAS_RESIDUAL:
        total += tl.load(residual + here, mask=inside, other=0.0)
        total = tl.where(total < 0, 0.0, total)
        tl.store(out + here, total, mask=inside)


@triton.jit
def _layer_backward(
    g, w, residual, h, a, below, g_below, T, dilation, each, w_stride,
    C: tl.constexpr, K: tl.constexpr, P: tl.constexpr, R: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """From g, the gradient before the ReLU of layer l, to that of layer l-1.

    FIRST marks the first layer of a block: the residual's gradient joins in, what passes the block's ReLU goes
    to `below` (the residual gradient of the block beneath), and what also passes the layer's goes to g_below.
    """
    w += tl.program_id(1) // each * w_stride
    t = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, P)
    here = (tl.program_id(1) * T + t)[:, None] * C + c[None, :]
    inside = (t < T)[:, None] & (c < C)[None, :]
    weight = (c < C)[:, None] & (c < C)[None, :]
    total = tl.zeros((R, P), tl.float32)
    for k in tl.static_range(K):
        ahead = (K - 1 - k) * dilation
        g_k = tl.load(g + here + ahead * C, mask=inside & (t + ahead < T)[:, None], other=0.0)
        w_k = tl.load(w + c[:, None] * (K * C) + k * C + c[None, :], mask=weight, other=0.0)  # (out, in)
        total += tl.dot(g_k, w_k, input_precision="ieee")
    if FIRST:
        total += tl.load(residual + here, mask=inside, other=0.0)
    total = tl.where(tl.load(h + here, mask=inside, other=0.0) > 0, total, 0.0)
    if FIRST:
        tl.store(below + here, total, mask=inside)
        total = tl.where(tl.load(a + here, mask=inside, other=0.0) > 0, total, 0.0)
    tl.store(g_below + here, total, mask=inside)


@triton.jit
def _weight_gradients(
    g, h, dw, db, T, rows, chunk, layers,
    C: tl.constexpr, K: tl.constexpr, P: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """dW_l[:, k] = sum over time of g_t h_{t - (K-1-k) dilation}^T; a program has a layer, a tap, a chunk of rows.

    rows are those of one model: its sequences one after the other.
    """
    layer, k, part = tl.program_id(0) // K, tl.program_id(0) % K, tl.program_id(1)
    model, models = tl.program_id(2), tl.num_programs(2)
    back = (K - 1 - k) * (1 << (layer // 2))
    c = tl.arange(0, P)
    base = (layer * models + model) * rows * C
    total = tl.zeros((P, P), tl.float32)
    bias = tl.zeros((P,), tl.float32)
    for start in range(0, chunk, R):
        offset = start + tl.arange(0, R)
        r = part * chunk + offset
        valid = ((r < rows) & (offset < chunk))[:, None] & (c < C)[None, :]
        here = base + r[:, None] * C + c[None, :]
        g_r = tl.load(g + here, mask=valid, other=0.0)
        x_r = tl.load(h + here - back * C, mask=valid & ((r % T) >= back)[:, None], other=0.0)
        total += tl.dot(tl.trans(g_r), x_r, input_precision="ieee")
        bias += tl.sum(g_r, axis=0)
    to = ((part * models + model) * layers + layer) * C
    weight = (c < C)[:, None] & (c < C)[None, :]
    tl.store(dw + to * (K * C) + c[:, None] * (K * C) + k * C + c[None, :], total, mask=weight)
    if k == K - 1:
        tl.store(db + to + c, bias, mask=c < C)


class TemporalStack(torch.autograd.Function):
    """(x (M, B, T, C), residual (M, B, T, C), W (M, L, C, K, C), b (M, L, C)) -> (M, B, T, C).

    The two other results are what the gradient needs: they are not differentiable, and nobody else's.
    """

    @staticmethod
    def forward(x: Tensor, residual: Tensor, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (M, B, T, C), (_, L, _, K, _) = x.shape, W.shape
        W, b, residual = W.contiguous(), b.contiguous(), residual.contiguous()
        h, last = x.new_empty(L, M, B, T, C), x.new_empty(M, B, T, C)
        h[0] = x
        a = x.new_empty(L // 2, M, B, T, C)  # of the second layers; those of the first ones are h
        grid, shape, strides = (triton.cdiv(T, ROWS), M * B), _shape(C, K), (W.stride(0), b.stride(0))
        for l in range(L):
            block, second = l // 2, l % 2 == 1
            skip = residual if block == 0 else h[2 * block]
            out = h[l + 1] if l + 1 < L else last
            store = a[block] if second else out
            _layer_forward[grid](
                h[l], W[:, l], b[:, l], skip, store, out, T, 1 << block, B, *strides, **shape, HAS_RESIDUAL=second
            )
        return last, h, a

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # zeros as large as h, which nobody looks at
        ctx.save_for_backward(*output, inputs[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        last, h, a, W = ctx.saved_tensors
        W = W.contiguous()
        (M, L, C, K, _), (B, T) = W.shape, h.shape[2:4]
        g = torch.empty_like(h)  # gradient before each layer's ReLU
        skip = torch.empty_like(a)  # gradient before each block's last ReLU, which the residual shares
        relu_backward = torch.ops.aten.threshold_backward.grad_input
        relu_backward(grads[0], last, 0, grad_input=skip[-1])
        relu_backward(skip[-1], a[-1], 0, grad_input=g[-1])
        grid, shape, stride = (triton.cdiv(T, ROWS), M * B), _shape(C, K), W.stride(0)
        for l in range(L - 1, 0, -1):
            block, first = l // 2, l % 2 == 0
            below = max(block - 1, 0)
            at = (g[l], W[:, l], skip[block], h[l], a[below], skip[below], g[l - 1])
            _layer_backward[grid](*at, T, 1 << block, B, stride, **shape, FIRST=first)
        rows = B * T
        parts = max(1, (8 if rows < 8192 else 32) // M)  # many models fill the chip by themselves
        dw, db = W.new_empty(parts, *W.shape), W.new_empty(parts, M, L, C)
        _weight_gradients[(L * K, parts, M)](g, h, dw, db, T, rows, triton.cdiv(rows, parts), L, **shape)
        dx = _input_gradient(g[0], W[:, 0]) if ctx.needs_input_grad[0] else None
        return dx, skip[0], dw.sum(0), db.sum(0)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        """A stack of calls is one call with more models."""
        count = info.batch_size
        fronts = [
            t.expand(count, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(inputs, in_dims, strict=True)
        ]
        out, h, a = cast(tuple, TemporalStack.apply(*(t.flatten(0, 1) for t in fronts)))
        return (out.unflatten(0, (count, -1)), h.unflatten(1, (count, -1)), a.unflatten(1, (count, -1))), (0, 1, 1)


def _shape(C: int, K: int) -> dict[str, Any]:
    return {"C": C, "K": K, "P": max(16, triton.next_power_of_2(C)), "R": ROWS}


def _input_gradient(g: Tensor, W: Tensor) -> Tensor:
    """The transposed first layer, whose dilation is 1; only for inputs that want a gradient."""
    K, T = W.shape[2], g.shape[2]
    ahead = torch.nn.functional.pad(g, (0, 0, 0, K - 1))
    parts = (ahead[:, :, K - 1 - k : K - 1 - k + T] @ W[:, None, :, k] for k in range(K))
    return sum(parts, torch.zeros_like(g))
