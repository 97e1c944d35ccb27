"""The taps of a causal convolution side by side, for stacks of models.

    (x_{t - (K-1) d}, ..., x_{t - d}, x_t)        (B, T, C) -> (B, T, K C),  zero before the beginning

A convolution is then one matrix product. Written with slices it is a dozen small operations and their gradient two
dozen; here both are a strided view and a copy. That matters where a stack of small models spends its time on overhead.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class Taps(torch.autograd.Function):
    """(x (B, T, C), kernel K, dilation d) -> (B, T, K C), the oldest tap first."""

    @staticmethod
    def forward(x: Tensor, kernel: int, dilation: int) -> Tensor:
        B, T, C = x.shape
        past = torch.cat([x.new_zeros(B, (kernel - 1) * dilation, C), x], dim=1)
        view = past.as_strided((B, T, kernel, C), (past.stride(0), C, dilation * C, 1))
        return view.reshape(B, T, kernel * C)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int], output: Tensor) -> None:
        ctx.kernel, ctx.dilation = inputs[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """dx_s = sum_j g_{s + j d}[tap K-1-j]: a strided view of g, summed over the taps."""
        g, K, d = grads[0], ctx.kernel, ctx.dilation
        B, T, C = g.shape[0], g.shape[1], g.shape[2] // K
        ahead = F.pad(g, (0, 0, 0, (K - 1) * d)).contiguous()
        strides = (ahead.stride(0), K * C, (d * K - 1) * C, 1)
        return ahead.as_strided((B, T, K, C), strides, (K - 1) * C).sum(2), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, kernel: int, dilation: int) -> tuple[Tensor, int]:
        """A stack of calls is one call with more rows."""
        assert in_dims[0] is not None
        x = x.movedim(in_dims[0], 0)
        return Taps.apply(x.flatten(0, 1), kernel, dilation).unflatten(0, x.shape[:2]), 0  # pyright: ignore
