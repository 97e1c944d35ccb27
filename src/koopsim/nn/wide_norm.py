"""BatchNorm in training on a CPU, of pictures that lie channels last.

    y = gamma (x - m) r + beta,    r = (v + eps)^(-1/2),    m and v over all pixels of the batch
    dx = gamma r (dy - sum(dy) / n - (x - m) r^2 sum(dy (x - m)) / n)

PyTorch sums into a row of C numbers for each thread, the rows beside each other: where a row does not fill its cache
lines, as 38 channels do not, vectors end in the middle, and two threads write into one line and wait for each other.
Here k neighbouring pixels count as one of k C channels, which fill whole lines; their k means and variances then make
one. With two threads PyTorch's takes a VGG's step 7 to 32% longer, with one 2% (`results/norm-turns-cpu.json`), and
in bfloat16 its sums take two to ten times as long; they are further from the truth. It is the readable twin, and what
is differentiated again. Sums, statistics and what is learnt are float32 where the pictures are bfloat16.
"""

from math import gcd
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

LINE = 64  # bytes of a cache line

_statistics = torch.ops.aten.batch_norm_update_stats
_norm = torch.ops.aten.native_batch_norm
_sums = torch.ops.aten.native_batch_norm_backward


def batch_norm(
    x: Tensor, running: tuple[Tensor, Tensor], weight: Tensor, bias: Tensor, momentum: float, eps: float
) -> Tensor:
    """`F.batch_norm` in training, by whole cache lines where they can be had; the running mean and variance move on."""
    k = pixels_a_line(x)
    if k == 1:
        return F.batch_norm(x, *running, weight, bias, True, momentum, eps)
    y, m, v = WideNorm.apply(x, weight, bias, k, eps)  # pyright: ignore[reportGeneralTypeIssues]
    n = x.numel() // x.shape[1]
    for seen, own in zip(running, (m, v * (n / (n - 1))), strict=True):
        seen.lerp_(own, momentum)
    return y


def pixels_a_line(x: Tensor) -> int:
    """How many pixels of (B, C, H, W) fill whole cache lines; 1 where they do by themselves, or cannot."""
    if x.dtype not in (torch.float32, torch.float64, torch.bfloat16):
        return 1
    numbers = LINE // x.element_size()
    k = numbers // gcd(x.shape[1], numbers)
    pixels = x.numel() // x.shape[1]
    return k if x.is_contiguous(memory_format=torch.channels_last) and pixels % (2 * k) == 0 else 1


class WideNorm(torch.autograd.Function):
    """(y, m, v) of x; m and v are not differentiated by themselves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, k: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        wide, unused = _wide(x, k), weight.new_zeros(k * len(weight))  # says in which precision statistics are
        means, variances = (t.view(k, -1) for t in _statistics(wide, unused, unused, 0.0))
        m = means.mean(0)
        v = variances.mean(0) + (means - m).square_().mean(0)
        y, given = torch.empty_like(x), (t.repeat(k) for t in (weight, bias, m, v))
        none = weight.new_empty(0)
        _norm.out(wide, *given, False, 0.0, eps, out=_wide(y, k), save_mean=none, save_invstd=none)
        ctx.save_for_backward(x, weight, m, v)
        ctx.k, ctx.eps = k, eps
        ctx.mark_non_differentiable(m, v)
        return y, m, v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, m, v = ctx.saved_tensors
        r = (v + ctx.eps).rsqrt()
        if torch.is_grad_enabled():  # to be differentiated again
            return *_sums(grads[0], x, weight, None, None, m, r, True, ctx.eps, [True] * 3), None, None
        k, n, scale = ctx.k, x.numel() // x.shape[1], weight * r
        wide, dy = _wide(x, k), _wide(grads[0].contiguous(memory_format=torch.channels_last), k)
        seen = m.repeat(k), v.repeat(k)
        short = x.dtype == torch.bfloat16  # gamma r itself must not be rounded to it; its product may
        whole, *found = _sums(dy, wide, weight.repeat(k), *seen, None, None, False, ctx.eps, [short, True, True])
        dweight, dbias = (t.view(k, -1).sum(0) for t in found)
        slopes = ((t * scale / -n).repeat(k) for t in (dweight, dbias))
        dx = _norm(wide, *slopes, *seen, False, 0.0, ctx.eps)[0]
        dx = dx.add_(whole) if short else dx.addcmul_(dy, scale.repeat(k).view(-1, 1, 1))
        return _as(dx, x), dweight, dbias, None, None


def _wide(x: Tensor, k: int) -> Tensor:
    """(B, C, H, W), channels last -> (pixels / 2k, k C, 2, 1), channels last too, the same memory."""
    return x.permute(0, 2, 3, 1).reshape(-1, 2, 1, k * x.shape[1]).permute(0, 3, 1, 2)


def _as(wide: Tensor, x: Tensor) -> Tensor:
    """And back."""
    B, C, H, W = x.shape
    return wide.permute(0, 2, 3, 1).reshape(B, H, W, C).permute(0, 3, 1, 2)
