"""Convolutions by tensor cores as operators, with the normalisations that stand between them.

    picture_table    y -> the table of its normalisation: (mean, 1/std, scale, shift, what running averages see)
    conv_table       x -> y = conv(x), and the table of y
    norm_conv_pool   y and its table -> p = pool(relu(norm(conv(relu(norm(y))))))

Pictures are (B, H, W, P) in bfloat16, kernels (P, 3, 3, P). A normalisation needs the statistics of all of its picture
before its first pixel, so what is stored is the picture before it: the convolution behind it normalises while it reads
(`conv_tiles`), and takes sums for the next one while it writes. relu(norm(y)) is nowhere in memory. In the same way the
gradient of a convolution's input takes the sums that the backward map of the normalisation before it begins with.
The readable twin is `lift.VGG.stages`; tests/nn/kernels/test_conv_kernels.py holds them together.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from koopsim.nn.kernels.conv_tiles import build_stages, convolved, weight_gradient
from koopsim.nn.kernels.norm import gradient_sums, mapped, moments, statistics, through_norm
from koopsim.nn.kernels.operators import operator

Norm = Sequence[Tensor]  # gamma, beta and the bias of the convolution before, (C,) each


def _statistics(sums: Tensor | None, y: Tensor, norm: Norm, eps: float) -> Tensor:
    assert sums is not None
    gamma, beta, bias = norm
    return statistics(sums, y.numel() // y.shape[3], gamma, beta, bias, eps)


def _run_table(y: Tensor, norm: Norm, eps: float) -> Tensor:
    """It comes first in a step: the kernels of what follows are built here, all at once."""
    y = y.contiguous()
    if y.is_cuda:
        build_stages(tuple(y.shape), y.get_device())
    return _statistics(moments(y), y, norm, eps)


def _run_conv(x: Tensor, kernel: Tensor, norm: Norm, eps: float) -> tuple[Tensor, Tensor]:
    y, sums = convolved(x.contiguous(), kernel.contiguous(), moments=True)
    return y, _statistics(sums, y, norm, eps)


def _run_conv_backward(x: Tensor, kernel: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    x, kernel, dy = x.contiguous(), kernel.contiguous(), dy.contiguous()
    return convolved(dy, kernel, turned=True)[0], weight_gradient(x, dy)


def _keep_conv(ctx: Any, inputs: tuple[Tensor, Tensor, Norm, float], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:2])


def _conv_gradients(ctx: Any, dy: Tensor, of_table: None) -> tuple[Any, ...]:
    """Those of gamma and beta come from whoever normalises by the table."""
    dx, dw = conv_table_backward(*ctx.saved_tensors, dy)
    return dx, dw, [None] * 3, None


def _run(y: Tensor, table: Tensor, kernel: Tensor, norms: Norm, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """p, the convolution's result, and its table."""
    x, sums = convolved(y.contiguous(), kernel.contiguous(), before=table.contiguous(), moments=True)
    second = _statistics(sums, x, norms[3:], eps)
    return mapped(x, second, True), x, second


def _run_backward(
    y: Tensor, table: Tensor, kernel: Tensor, x: Tensor, second: Tensor, dp: Tensor
) -> tuple[Tensor, ...]:
    """dy, the kernel's gradient, and tables whose first rows are d beta and d gamma."""
    y, table, kernel, x, second, dp = (t.contiguous() for t in (y, table, kernel, x, second, dp))
    dx, of_second = through_norm(x, second, dp, gradient_sums(x, second, dp, True), True)
    dz, sums = convolved(dx, kernel, turned=True, after=(y, table))
    assert sums is not None
    dw = weight_gradient(y, dx, before=table)
    dy, of_first = through_norm(y, table, dz, sums, False)
    return dy, dw, of_first, of_second


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Norm, float], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:3], *output[1:])
    ctx.channels = len(inputs[3][0])


def _gradients(ctx: Any, dp: Tensor, of_x: None, of_second: None) -> tuple[Any, ...]:
    dy, dw, *totals = norm_conv_pool_backward(*ctx.saved_tensors, dp)
    norms = [g for t in totals for g in (t[1, : ctx.channels], t[0, : ctx.channels], None)]
    return dy, None, dw, norms, None


picture_table = operator(
    "picture_table(Tensor y, Tensor[] norm, float eps) -> Tensor",
    _run_table,
    fake=lambda y, norm, eps: norm[0].new_empty(6, y.shape[3]),
)  # nobody differentiates it: see `norm_conv_pool`
conv_table_backward = operator(
    "conv_table_backward(Tensor x, Tensor kernel, Tensor dy) -> (Tensor, Tensor)",
    _run_conv_backward,
    fake=lambda x, kernel, dy: (x.new_empty(x.shape), kernel.new_empty(kernel.shape)),
)
conv_table = operator(
    "conv_table(Tensor x, Tensor kernel, Tensor[] norm, float eps) -> (Tensor, Tensor)",
    _run_conv,
    fake=lambda x, kernel, norm, eps: (x.new_empty(x.shape), norm[0].new_empty(6, x.shape[3])),
    setup=_keep_conv,
    backward=_conv_gradients,
)
norm_conv_pool_backward = operator(
    "norm_conv_pool_backward(Tensor y, Tensor table, Tensor kernel, Tensor x, Tensor second, Tensor dp)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _run_backward,
    fake=lambda y, table, kernel, x, second, dp: (
        y.new_empty(y.shape), kernel.new_empty(kernel.shape), *(table.new_empty(4, y.shape[3]) for _ in range(2)),
    ),
)  # fmt: skip
norm_conv_pool = operator(
    "norm_conv_pool(Tensor y, Tensor table, Tensor kernel, Tensor[] norms, float eps) -> (Tensor, Tensor, Tensor)",
    _run,
    fake=lambda y, table, kernel, norms, eps: (
        y.new_empty(len(y), y.shape[1] // 2, y.shape[2] // 2, y.shape[3]), y.new_empty(y.shape),
        norms[0].new_empty(6, y.shape[3]),
    ),
    setup=_keep,
    backward=_gradients,
)  # fmt: skip  # norms: those of y and those of the convolution's result; the table's gradient is in theirs and in dy
