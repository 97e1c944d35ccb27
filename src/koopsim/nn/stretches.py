"""The blocks of a TCN on a CPU: causal convolutions as few, large products.

    y_t = b + sum_k W_k x_{t - (K-1-k) d}        d = 1, 2, 4, ...

With ten channels the product of a convolution has ten columns, and a processor's vector units stand idle. Two changes
make it a large one, with the same numbers:

    phases      x_{q d + p} for fixed p is a sequence of its own, and on it the dilation is 1
    stretches   s outputs in a row, s C numbers, are one matrix times the s + K - 1 inputs that they see: W_k on its
                diagonals, zeros elsewhere

so that a layer multiplies (T / s, (s + K - 1) C) by ((s + K - 1) C, s C). A phase that is short is one stretch, which
sees nothing but itself. Steps that are filled up at the end are seen by nobody before them. The readable twin is
`lift.TemporalBlock`; tests/nn/test_stretches.py holds them together.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIZES = (5, 6, 7, 8)  # s: the one that fills up least is taken
SHORT = 17  # phases up to this length are one stretch


def features(x: Tensor, W: Tensor, b: Tensor, residual: nn.Module) -> Tensor:
    """All blocks of a `TCN`: x (B, T, I), W (L, C, K, C), b (L, C) -> (B, T, C)."""
    (B, T, inputs), L, d = x.shape, len(W), 1
    h = x
    for l in range(0, L, 2):
        if l:
            h, d = doubled(h[:, : -(-T // d)], B), 2 * d
        s = stretch(-(-T // d), W.shape[2])
        h = _filled(h[:, : -(-T // d)], s)
        inner = F.relu(convolved(h, W[l] if l else W[l, :, :, :inputs], b[l], s))
        inner = F.relu(convolved(inner, W[l + 1], b[l + 1], s))
        h = F.relu((h if l else residual(h)) + inner)
    return h.unflatten(0, (B, d)).transpose(1, 2).flatten(1, 2)[:, :T]


def stretch(Q: int, K: int) -> int:
    """How many steps to take together in a phase of Q of them: all, or what takes the least work."""
    return Q if Q <= SHORT else min(SIZES, key=lambda s: -(-Q // s) * s * (s + K - 1))


def doubled(h: Tensor, batch: int) -> Tensor:
    """(B d, Q, C) phases of dilation d -> (B 2d, Q/2, C) of 2d: entry 2q + r of phase p is entry q of phase p + d r."""
    h = _filled(h, 2)
    return h.unflatten(1, (-1, 2)).unflatten(0, (batch, -1)).permute(0, 3, 1, 2, 4).flatten(0, 2)


def _filled(h: Tensor, multiple: int) -> Tensor:
    """With zeros at the end, up to a whole number of `multiple` steps."""
    missing = -h.shape[1] % multiple
    return F.pad(h, (0, 0, 0, missing)) if missing else h


def convolved(h: Tensor, W: Tensor, b: Tensor, s: int) -> Tensor:
    """A causal convolution of dilation 1: h (N, Q, I), W (C, K, I), b (C,) -> (N, Q, C), s dividing Q."""
    (N, Q, inputs), (C, K, _) = h.shape, W.shape
    M = cast(Tensor, Banded.apply(W.permute(1, 2, 0), s))
    if s == Q:  # nothing before it
        seen, M = h.flatten(1), M[(K - 1) * inputs :]
    else:
        seen = cast(Tensor, Windows.apply(h, s, K - 1))
    return torch.addmm(b.repeat(s), seen, M).view(N, Q, C)


class Banded(torch.autograd.Function):
    """(W (K, I, C), s) -> ((K - 1 + s) I, s C): from what a stretch sees, K - 1 steps and itself, to its outputs.

    The j-th output sees the (j + k)-th input through W_k.
    """

    @staticmethod
    def forward(ctx: Any, W: Tensor, s: int) -> Tensor:
        K, inputs, C = W.shape
        ctx.shape, ctx.s = W.shape, s
        M = W.new_zeros((K - 1 + s) * inputs, s * C)
        _diagonals(M, W.shape, s).copy_(W.unsqueeze(1))
        return M

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _diagonals(grads[0].contiguous(), ctx.shape, ctx.s).sum(1), None


def _diagonals(M: Tensor, shape: tuple[int, ...], s: int) -> Tensor:
    """(K, s, I, C): the s places of each W_k in M, as a view."""
    K, inputs, C = shape
    return M.as_strided((K, s, inputs, C), (inputs * s * C, inputs * s * C + C, s * C, 1))


class Windows(torch.autograd.Function):
    """(x (N, Q, C), s, before) -> (N Q / s, (before + s) C): what each stretch of s steps sees, s dividing Q."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, s: int, before: int) -> Tensor:
        N, Q, C = x.shape
        past = F.pad(x, (0, 0, before, 0))
        ctx.shape, ctx.s, ctx.before = x.shape, s, before
        view = past.as_strided((N, Q // s, (before + s) * C), (past.stride(0), s * C, 1))
        return view.reshape(-1, (before + s) * C)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Every step is in a few windows: their pieces of s steps, put in their places and added."""
        (N, Q, C), s, before = ctx.shape, ctx.s, ctx.before
        g = grads[0].view(N, Q // s, before + s, C)
        own = g[:, :, before:].reshape(N, Q, C)
        for late in range(1, min(-(-before // s) + 1, Q // s)):  # what the windows `late` stretches later saw of it
            first = before - late * s
            piece = g[:, late:, max(first, 0) : first + s].flatten(2)
            own = own + F.pad(piece, (max(-first, 0) * C, 0, 0, late)).view(N, Q, C)
        return own, None, None
