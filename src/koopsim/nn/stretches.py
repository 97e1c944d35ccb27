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
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from koopsim.nn.products import affine, times

SIZES = (5, 6, 7, 8)  # s: the one that fills up least is taken
SHORT = 17  # phases up to this length are one stretch


def features(x: Tensor, R: Tensor, r: Tensor, W: Tensor, b: Tensor) -> Tensor:
    """All blocks of a `TCN`: x (B, T, I), W (L, C, K, C), b (L, C) -> (B, T, C).

    (R, r) is the first block's residual, (C, I) and (C,), or both are empty where it is the identity.
    """
    return cast(Tensor, Blocks.apply(x, R, r, W, b))


class Blocks(torch.autograd.Function):
    """`features`. Its gradient is written out, for half of a step would go to autograd's copies and additions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, R: Tensor, r: Tensor, W: Tensor, b: Tensor) -> Tensor:
        (B, T, inputs), d, states = x.shape, 1, []
        h = x
        for l in range(0, len(W), 2):
            if l:
                h, d = doubled(h, B, T, d), 2 * d
            s = stretch(-(-T // d), W.shape[2])
            h = filled(h[:, : -(-T // d)], s)
            skip = affine(h.flatten(0, 1), R, r).view(*h.shape[:2], -1) if not l and R.numel() else h
            first = convolved(h, W[l] if l else W[l, :, :, :inputs], b[l], s).relu_()
            second = convolved(first, W[l + 1], b[l + 1], s).relu_()
            states += [h, first, second, (second + skip).relu_()]
            h = states[-1]
        ctx.save_for_backward(x, R, r, W, b, *states)
        return h.unflatten(0, (B, d)).transpose(1, 2).flatten(1, 2)[:, :T].contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, R, _, W, b, *states = ctx.saved_tensors
        (B, T, inputs), L, dW, db = x.shape, len(W), torch.empty_like(W), torch.empty_like(b)
        d = 2 ** (L // 2 - 1)
        g = filled(grads[0], d).unflatten(1, (-1, d)).transpose(1, 2).flatten(0, 1)
        for l in range(L - 2, -1, -2):
            h, first, second, out = states[2 * l : 2 * l + 4]
            s = stretch(-(-T // d), W.shape[2])
            g = passed(filled(g, s), out)
            dW[l + 1], db[l + 1], inner = _gradients(first, W[l + 1], passed(g, second), s, True)
            own = W[l] if l else W[l, :, :, :inputs]
            dw, db[l], below = _gradients(
                h, own, passed(cast(Tensor, inner), first), s, l > 0 or ctx.needs_input_grad[0]
            )
            dW[l] = F.pad(dw, (0, W.shape[3] - dw.shape[2]))
            if l:
                g, d = halved(cast(Tensor, below) + g, B, T, d), d // 2
        rows = g.flatten(0, 1)
        dR, dr = (times(rows.mT, states[0].flatten(0, 1)), rows.sum(0)) if R.numel() else (None, None)
        dx = None
        if below is not None:
            dx = (below + times(rows, R).view(below.shape) if R.numel() else below + g)[:, :T]
        return dx, dR, dr, dW, db


def passed(g: Tensor, by: Tensor) -> Tensor:
    """g where a ReLU's result is positive."""
    return torch.ops.aten.threshold_backward(g, by, 0)


def stretch(Q: int, K: int) -> int:
    """How many steps to take together in a phase of Q of them: all, or what takes the least work."""
    return Q if Q <= SHORT else min(SIZES, key=lambda s: -(-Q // s) * s * (s + K - 1))


def doubled(h: Tensor, B: int, T: int, d: int) -> Tensor:
    """(B d, Q, C) phases of dilation d -> (B 2d, Q/2, C) of 2d: entry 2q + r of phase p is entry q of phase p + d r."""
    h = filled(h[:, : -(-T // d)], 2)
    return h.unflatten(1, (-1, 2)).unflatten(0, (B, d)).permute(0, 3, 1, 2, 4).flatten(0, 2)


def halved(g: Tensor, B: int, T: int, d: int) -> Tensor:
    """Back from phases of dilation d to those of d/2."""
    g = g[:, : -(-T // d)].unflatten(0, (B, 2, d // 2)).permute(0, 2, 3, 1, 4)
    return g.flatten(2, 3).flatten(0, 1)[:, : -(-2 * T // d)]


def filled(h: Tensor, multiple: int) -> Tensor:
    """With zeros at the end, up to a whole number of `multiple` steps."""
    missing = -h.shape[1] % multiple
    return F.pad(h, (0, 0, 0, missing)) if missing else h.contiguous()


def convolved(h: Tensor, W: Tensor, b: Tensor, s: int) -> Tensor:
    """A causal convolution of dilation 1: h (N, Q, I), W (C, K, I), b (C,) -> (N, Q, C), s dividing Q."""
    (N, Q, inputs), (C, K, _) = h.shape, W.shape
    M = banded(W.permute(1, 2, 0), s)
    if s == Q:  # nothing before it
        M = M[(K - 1) * inputs :]
    return affine(_windows(h, s, K - 1), M.mT, b.repeat(s)).view(N, Q, C)


def _gradients(h: Tensor, W: Tensor, g: Tensor, s: int, of_h: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of `convolved`: dW (C, K, I), db and, where wanted, dh."""
    (N, Q, inputs), (C, K, _) = h.shape, W.shape
    rows = g.reshape(-1, s * C)
    dM = times(_windows(h, s, K - 1).mT, rows)
    if s == Q:
        dM = F.pad(dM, (0, 0, (K - 1) * inputs, 0))
    dW = diagonals(dM, K, inputs, C, s).sum(1).permute(2, 0, 1)
    db = rows.sum(0).view(s, C).sum(0)
    if not of_h:
        return dW, db, None
    turned = banded(W.flip(1).permute(1, 0, 2), s)  # a step is seen by itself and the K - 1 after it
    dh = times(_windows(g, s, 1 - K), turned[: s * C] if s == Q else turned)
    return dW, db, dh.view(N, Q, inputs)


def banded(W: Tensor, s: int) -> Tensor:
    """(K, I, C) -> ((K - 1 + s) I, s C): the j-th output sees the (j + k)-th input through W_k."""
    K, inputs, C = W.shape
    M = W.new_zeros((K - 1 + s) * inputs, s * C)
    diagonals(M, K, inputs, C, s).copy_(W.unsqueeze(1))
    return M


def diagonals(M: Tensor, K: int, inputs: int, C: int, s: int) -> Tensor:
    """(K, s, I, C): the s places of each W_k in M, as a view."""
    return M.as_strided((K, s, inputs, C), (inputs * s * C, inputs * s * C + C, s * C, 1))


def _windows(h: Tensor, s: int, before: int) -> Tensor:
    """(N, Q, C) -> (N Q / s, (before + s) C): each stretch of s steps with the steps before it, or -before after it."""
    N, Q, C = h.shape
    if s == Q:
        return h.flatten(1)
    wide = F.pad(h, (0, 0, before, 0) if before > 0 else (0, 0, 0, -before))
    seen = (abs(before) + s) * C
    return wide.as_strided((N, Q // s, seen), (wide.stride(0), s * C, 1)).reshape(-1, seen)
