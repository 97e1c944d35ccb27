"""The blocks of a TCN on a CPU whose weights no longer change: `stretches.py`, its matrices made beforehand.

    M_l  (s_l C, (s_l + K - 1) C),   l = 1 ... L        for sequences of one length T

A step of training makes them anew, for its weights are new, and keeps every state for the way back; an answer needs
neither. One sequence is answered in half of the time so. The twin is `stretches.features`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.nn import stretches
from koopsim.nn.products import affine


class Bands:
    """x (B, T, I) -> (B, T, C), for W (L, C, K, C) and b (L, C) of `stretches.features` and one T."""

    @torch.inference_mode(False)  # gradients by x may be wanted another time
    @torch.no_grad()
    def __init__(self, W: Tensor, b: Tensor, inputs: int, T: int):
        self.W, self.T = W, T
        self.layers = [_band(W[l, :, :, : W.shape[1] if l else inputs], b[l], 2 ** (l // 2), T) for l in range(len(W))]

    def __call__(self, x: Tensor, residual: nn.Module) -> Tensor:
        B, T, h, d = len(x), self.T, x, 1
        for l in range(0, len(self.layers), 2):
            first, second = self.layers[l : l + 2]
            if l:
                h, d = stretches.doubled(h, B, T, d), 2 * d
            h = stretches.filled(h[:, : -(-T // d)], first[2])
            skip = h if l else residual(h)
            h = _convolved(_convolved(h, *first).relu_(), *second).relu_()
            h = (h + skip).relu_()
        return h.unflatten(0, (B, d)).transpose(1, 2).flatten(1, 2)[:, :T].contiguous()


def _band(W: Tensor, b: Tensor, d: int, T: int) -> tuple[Tensor, Tensor, int]:
    """M, the bias of a stretch, and s, of a layer W (C, K, I) of dilation d."""
    (_, K, inputs), Q = W.shape, -(-T // d)
    s = stretches.stretch(Q, K)
    M = stretches.banded(W.permute(1, 2, 0), s)
    M = M[(K - 1) * inputs :] if s == Q else M  # nothing before it
    return M.mT.contiguous(), b.repeat(s), s


def _convolved(h: Tensor, M: Tensor, b: Tensor, s: int) -> Tensor:
    """A causal convolution of dilation 1, (N, Q, I) -> (N, Q, C): each stretch of s steps, with what it sees, by M."""
    (N, Q, inputs), seen = h.shape, M.shape[1]
    past = F.pad(h, (0, 0, seen // inputs - s, 0)).flatten(1)
    return affine(past.unfold(1, seen, s * inputs).reshape(-1, seen), M, b).view(N, Q, -1)
