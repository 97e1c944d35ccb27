"""Large products of float32 matrices on a CPU, by whichever of PyTorch's two libraries is the faster there.

    y = x W^T + b            dx = g W     dW = g^T x     db = sum g

PyTorch hands them to MKL, which on AMD's processors leaves AVX-512 alone. oneDNN, the library of its convolutions, does
not: on a Zen 5 it takes 0.43 to 0.7 of MKL's time, and longer only for small products and for long sums with a small
result. Which of them takes a product depends on the processor, its threads and the shape alone, so that a run that goes
on comes to the same bits. The readable twins are `F.linear` and `torch.bmm`; tests/nn/test_products.py holds them
together.
"""

import functools
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from koopsim.nn.transforms import on_cpu

LEAST = 1 << 22  # multiplications of a product: below, asking oneDNN costs more than it saves
EACH = 1 << 21  # of each product of a stack
SHARED = 1 << 24  # the same of several threads: MKL gives each whole products, oneDNN has all wait after each one
WIDE = 1 << 15  # numbers of its result: MKL cuts a long sum for a small result into pieces, oneDNN does not


def affine(x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    """x W^T + b: (..., K), (H, K), (H,) -> (..., H)."""
    if x.shape[-1:] != W.shape[1:] or not faster(x, W, len(W)):  # PyTorch says better what does not fit
        return F.linear(x, W, b)
    rows = x.reshape(-1, x.shape[-1])
    own = _by_onednn if torch.is_inference_mode_enabled() else _Affine.apply  # without gradients tangents may pass
    y = cast(Tensor, own(rows, W, b))
    return y.view(*x.shape[:-1], len(W))


def times(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a b: (M, K), (K, N) -> (M, N); written to `out` if there is one, which no gradient goes through."""
    if not faster(a, b, b.shape[1]):
        return torch.mm(a, b, out=out)
    return affine(a, b.mT) if out is None else out.copy_(affine(a, b.mT))


def stacked(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a_i b_i: (n, M, K), (n, K, N) -> (n, M, N); written to `out` if there is one, which no gradient goes through."""
    learnt = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if learnt or not _each_for_onednn(a, b):
        return torch.bmm(a, b, out=out)
    out = a.new_empty(*a.shape[:2], b.shape[2]) if out is None else out
    for one, other, into in zip(a.unbind(), b.mT.unbind(), out.unbind(), strict=True):
        into.copy_(_by_onednn(one, other, None))
    return out


def _each_for_onednn(a: Tensor, b: Tensor) -> bool:
    if not _for_onednn(a, b) or forward_ad._current_level >= 0 or a.shape[::2] != b.shape[:2]:
        return False
    least = EACH if torch.get_num_threads() == 1 else SHARED
    return a.shape[1] * a.shape[2] * b.shape[2] >= least


def products(most: int) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """`times` and `affine` where none has more than so many multiplications: where all are small, PyTorch's own."""
    return (torch.mm, F.linear) if most < LEAST else (times, affine)


def faster(x: Tensor, W: Tensor, outputs: int) -> bool:
    """Whether oneDNN is to take a product: large, in float32, on such a processor, nobody watching, no autocast."""
    if not _for_onednn(x, W):  # first: an exporter keeps what it sees compared with a size as a bound of it
        return False
    numbers = x.numel() // max(1, x.shape[-1]) * outputs  # of the result
    return numbers >= WIDE and numbers * x.shape[-1] >= LEAST


def _for_onednn(x: Tensor, W: Tensor) -> bool:
    if torch.compiler.is_compiling() or not onednn_is_faster():
        return False
    return x.dtype == W.dtype == torch.float32 and on_cpu(x) and not torch.is_autocast_enabled("cpu")


@functools.cache
def onednn_is_faster() -> bool:
    """Whether this is one of AMD's processors with AVX-512, and PyTorch has both libraries."""
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    known = both and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return known and torch.backends.cpu.get_cpu_capability() == "AVX512" and "AuthenticAMD" in _processor()


@functools.cache
def multiplies_bf16() -> bool:
    """Whether this processor multiplies bfloat16 by itself (AVX512-BF16, AMX), and oneDNN knows of it.

    A training step of a VGG takes two thirds of its time so, of a picture under a half (docs/speed.md). Without such
    units it is emulated.
    """
    units = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return units and torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"


def _processor() -> str:
    """What the first of this machine's processors says of itself."""
    told = Path("/proc/cpuinfo")
    return told.read_text().partition("\n\n")[0] if told.exists() else platform.processor()


def _by_onednn(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    if not (W.is_contiguous() or W.mT.is_contiguous()):  # with gaps it would take a hundred times as long
        W = W.contiguous()
    return torch.ops.mkldnn._linear_pointwise(x, W, b, "none", [], "")


class _Affine(torch.autograd.Function):
    """`affine` of rows (R, K), its gradient by products that may be oneDNN's too, and can be differentiated again."""

    @staticmethod
    def forward(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        return _by_onednn(x, W, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        x, W, _ = inputs
        ctx.save_for_backward(x, W)
        ctx.save_for_forward(x, W)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x, W), (g,), (of_x, of_W, of_b) = ctx.saved_tensors, grads, ctx.needs_input_grad
        dx, dW = times(g, W) if of_x else None, times(g.mT, x) if of_W else None
        return dx, dW, g.sum(0) if of_b else None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (x, W), (tx, tW, tb) = ctx.saved_tensors, tangents  # zeros of what has none
        y = affine(tx, W) + affine(x, tW)
        return y if tb is None else y + tb
