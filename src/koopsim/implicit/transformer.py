"""The Universal-Transformer DEQ of the copy-memory task, 17,010 parameters (paper, section 5.1).

    q, k, v = W_qkv LN(z) + u                    u: the injection, a linear map of the embedded token
    a       = z + W_o Attention(q, k, v) + b_o
    f(z, u) = LN(a) + FF(LN(a))                  FF = Linear, ReLU, Linear; LN without affine

Attention is causal with relative positions (Dai et al., Transformer-XL, 2019), per head of width e

    score(i, j) = ((q_i + r_w).k_j + (q_i + r_r).W_r p(i-j)) / sqrt(e),   p(n) = (sin n w_1.., cos n w_1..)

and is computed without a T x T tensor and without a shift. Write the position term as a.p(i-j) with
a = W_r^T (q_i + r_r), a^s and a^c its sine and cosine coefficients. By angle addition it equals

    Re[(a^c - i a^s) e^{i w i} conj(e^{i w j})]

an inner product of a query turned by its own position with features of the key's position that never
change. So relative attention is plain attention whose queries and keys are 40 wider (5 + 40, padded to 48).

All that does not depend on z is computed once a forward (`prepare`), and everything linear in LN(z) is one
matrix product: q, its image a, k and v. Every weight of the cell is weight-normed: W = gain * D / ||D||.

On CUDA in float32 an evaluation that nobody differentiates is three kernels, and a product with its transposed Jacobian
four (`kernels/cell.py`); what is written here is their twin, and takes the gradients of parameters.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from koopsim.implicit.base import EquilibriumModel
from koopsim.implicit.deq import DEQ
from koopsim.implicit.info import DEQInfo
from koopsim.implicit.iteration import Map
from koopsim.nn.transforms import transformed, usable, vmapped

if TYPE_CHECKING:
    from koopsim.implicit.kernels.cell import FusedCell

# N(0, .01) for embedding, injection and attention biases, .01 the variance: with .01 as the standard deviation the
# tokens are all but invisible at first, and at T = 500 training stays at the memoryless loss.
INIT_STD = 0.1
BLOCK = 64  # queries and keys that a program of the attention kernel takes together


class WeightNormLinear(nn.Module):
    """x -> W x + b with rows W_i = gain_i direction_i / || direction_i || (Salimans & Kingma, 2016)."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        plain = nn.Linear(inputs, outputs, bias=bias)  # PyTorch's default initialisation, kept as it is
        self.direction = nn.Parameter(plain.weight.detach())
        self.gain = nn.Parameter(torch.linalg.vector_norm(self.direction.detach(), dim=1))
        self.bias = nn.Parameter(plain.bias.detach()) if bias else None

    def weight(self) -> Tensor:
        norm = torch.linalg.vector_norm(self.direction, dim=1, keepdim=True)
        return self.direction * (self.gain.unsqueeze(1) / norm)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight(), self.bias)


@functools.cache
def _position_table(length: int, content: int, model_dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(cos n w, sin n w) for n < length, w = 0 in the content columns; (length, pairs, 2).

    Kept for good, for lengths that are powers of two only: there are few, and a captured CUDA graph that
    reads one must never find it gone.
    """
    with torch.inference_mode(False), torch.no_grad():
        frequency = 1e4 ** (-torch.arange(0, model_dim, 2, dtype=torch.float64) / model_dim)
        frequency = torch.cat([frequency.new_zeros(content // 2), frequency])
        angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
        return torch.stack([angle.cos(), angle.sin()], dim=-1).to(device, dtype)


def _pad(x: Tensor, width: int, dim: int = -1) -> Tensor:
    """Zeros up to `width` along one dimension, -1 or -2."""
    missing = width - x.shape[dim]
    return F.pad(x, (0, missing) if dim == -1 else (0, 0, 0, missing))


def _attended(q: Tensor, k: Tensor, v: Tensor, scale: float, active: Tensor | None = None) -> Tensor:
    """Causal attention, (B, T, H, width) -> (B, T, H, value). On CUDA in float32 it is `kernels/attention.py`."""
    if usable(q, k, v) and not vmapped(q):
        from koopsim.implicit.kernels.attention import attention, fits

        if fits(q, v):
            return attention(q, k, v, scale, BLOCK, active)[0]
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class PreparedCell:
    """z -> f(z, u): (B, T, model_dim) -> (B, T, model_dim), the weights normalised and u in place."""

    constant: Tensor  # (B, T, C): what q, its image a, k and v have of u and the positions
    turn: Tensor  # e^{i n w}: (T, 1, width / 2)
    weights: tuple[Tensor, Tensor, Tensor, Tensor]
    biases: tuple[Tensor | None, Tensor | None, Tensor | None]
    sizes: tuple[int, int, int]  # heads, width of a query or key, width of a value
    scale: float
    active: Tensor | None = None  # samples that attention may leave out have a zero there
    worthwhile: float = 0.9  # narrowing copies `constant`, a tenth of an evaluation
    fused: FusedCell | None = None  # the same map in a few kernels, without a past

    def __call__(self, z: Tensor) -> Tensor:
        if self.fused is not None and not torch.is_grad_enabled() and self.fused.takes(z):
            return self.fused(z, self.active)
        B, T, d = z.shape
        H, width, value = self.sizes
        W, W_o, W_1, W_2 = self.weights
        b_o, b_1, b_2 = self.biases
        n = F.layer_norm(z, (d,)).flatten(0, 1)
        q, k, v = torch.addmm(self.constant.flatten(0, 1), n, W.mT).split([H * width, H * width, H * value], dim=1)
        real = torch.view_as_real(self.turn).dtype
        q = torch.view_as_complex(q.to(real).view(B, T, H, width // 2, 2)) * self.turn
        turned, k, v = torch.view_as_real(q).flatten(3), k.view(B, T, H, width), v.view(B, T, H, value)
        a = z + F.linear(_attended(turned, k, v, self.scale, self.active).flatten(2), W_o, b_o)
        n = F.layer_norm(a, (d,))
        return n + F.linear(F.relu(F.linear(n, W_1, b_1)), W_2, b_2)

    def rows(self, index: Tensor) -> PreparedCell:
        """The same map for the samples `index` alone."""
        fused = None if self.fused is None else self.fused.rows(index)
        return replace(self, constant=self.constant.index_select(0, index), fused=fused)

    def watched(self, active: Tensor) -> PreparedCell:
        """The same map; attention, most of the work, is left out for samples whose entry of `active` is zero."""
        return replace(self, active=active)

    def plain(self) -> PreparedCell:
        """The same map, rounded alike whether it is differentiated or not."""
        return replace(self, fused=None)

    def transposed(self, z: Tensor) -> Map | None:
        """y -> y df/dz at z, where there are kernels for it."""
        return None if self.fused is None or not self.fused.takes(z) else self.fused.transposed(z)


class UniversalTransformerCell(nn.Module):
    """f(z, u): (B, T, model_dim), (B, T, 3 heads head_dim) -> (B, T, model_dim)."""

    def __init__(self, heads: int = 8, head_dim: int = 5, model_dim: int = 40, inner_dim: int = 40) -> None:
        super().__init__()
        if min(heads, head_dim, model_dim, inner_dim) < 1 or model_dim % 2:
            raise ValueError(
                f"heads={heads}, head_dim={head_dim}, model_dim={model_dim}, inner_dim={inner_dim}: expected "
                "positive sizes and an even model_dim, since positions are pairs of sine and cosine"
            )
        self.heads, self.head_dim, self.model_dim = heads, head_dim, model_dim
        self.qkv = WeightNormLinear(model_dim, 3 * heads * head_dim, bias=False)
        self.relative = WeightNormLinear(model_dim, heads * head_dim, bias=False)
        self.content_bias = nn.Parameter(INIT_STD * torch.randn(heads, head_dim))  # r_w
        self.position_bias = nn.Parameter(INIT_STD * torch.randn(heads, head_dim))  # r_r
        self.output = WeightNormLinear(heads * head_dim, model_dim, bias=True)
        self.inner = WeightNormLinear(model_dim, inner_dim, bias=True)
        self.outer = WeightNormLinear(inner_dim, model_dim, bias=True)

    def initial(self, u: Tensor) -> Tensor:
        return u.new_zeros(*u.shape[:-1], self.model_dim)

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        return self.prepare(u)(z)

    def prepare(self, u: Tensor) -> PreparedCell:
        """z -> f(z, u), with the weights normalised and everything of u and the positions in place."""
        B, T, _ = u.shape
        H, e, d = self.heads, self.head_dim, self.model_dim
        width = 8 * math.ceil((e + d) / 8)  # of a query or key; fused attention wants multiples of 8
        content = width - d  # the first columns: content and zeros; the other d: positions
        value = 8 * math.ceil(e / 8)
        table = _position_table(1 << (T - 1).bit_length(), content, d, u.dtype, u.device)[:T]
        turn = torch.view_as_complex(table)[:, None]  # e^{i n w}: (T, 1, width / 2)
        features = table.flatten(1)[:, content:].view(1, T, 1, d).expand(B, T, H, d)

        weights = [m.weight() for m in (self.qkv, self.relative, self.output, self.inner, self.outer)]
        W_q, W_k, W_v = weights[0].view(3, H, e, d)
        sine, cosine = weights[1].view(H, e, 2, d // 2).unbind(2)
        R = torch.stack([cosine, -sine], dim=-1).view(H, e, d)  # row q -> row (a^c, -a^s), interleaved
        W = torch.cat(
            [
                torch.cat([_pad(W_q, content, -2), R.mT @ W_q], dim=1).flatten(0, 1),
                _pad(W_k, width, -2).flatten(0, 1),
                _pad(W_v, value, -2).flatten(0, 1),
            ]
        )
        u_q, u_k, u_v = u.view(B, T, 3, H, e).unbind(2)
        position = torch.einsum("bthe,hep->bthp", u_q + self.position_bias, R)
        constant = torch.cat(
            [
                torch.cat([_pad(u_q + self.content_bias, content), position], dim=-1).flatten(2),
                torch.cat([_pad(u_k, content), features], dim=-1).flatten(2),
                _pad(u_v, value).flatten(2),
            ],
            dim=-1,
        )
        W_o = _pad(weights[2].view(d, H, e), value).flatten(1)
        # Autocast would round these again at every step: round them here, once.
        lower = torch.is_autocast_enabled(u.device.type) and u.dtype == torch.float32
        dtype = torch.get_autocast_dtype(u.device.type) if lower else u.dtype
        W, constant, W_o = W.to(dtype), constant.to(dtype), W_o.to(dtype)
        W_1, W_2 = weights[3].to(dtype), weights[4].to(dtype)

        biases, sizes = (self.output.bias, self.inner.bias, self.outer.bias), (H, width, value)
        fused = self._fused(u, weights)
        return PreparedCell(constant, turn, (W, W_o, W_1, W_2), biases, sizes, e**-0.5, fused=fused)

    def _fused(self, u: Tensor, weights: list[Tensor]) -> FusedCell | None:
        """The cell in a few kernels, where they can be used."""
        if torch.compiler.is_compiling() or not usable(u) or transformed(u) or transformed(weights[0]):
            return None
        from koopsim.implicit.kernels.cell import can_fuse, fused

        sizes, T = [self.heads, self.head_dim, self.model_dim, weights[3].shape[0]], u.shape[1]
        if not can_fuse(u, sizes) or any(w.dtype != u.dtype for w in weights):
            return None
        positions = _position_table(1 << (T - 1).bit_length(), 0, self.model_dim, torch.float64, u.device)[:T]
        learnt = self.content_bias, self.position_bias, self.output.bias, self.inner.bias, self.outer.bias
        return fused(u, positions, weights, [b for b in learnt if b is not None], sizes)


class TransformerDEQ(EquilibriumModel):
    """tokens (B, T) -> logits (B, T, vocabulary), read off the fixed point with the embedding's weights.

    `deq` makes the DEQ round the cell: functools.partial(DEQ, solver="broyden", tol=1e-4).
    """

    def __init__(
        self,
        vocabulary: int = 10,
        heads: int = 8,
        head_dim: int = 5,
        model_dim: int = 40,
        inner_dim: int = 40,
        deq: Callable[[UniversalTransformerCell], DEQ] = DEQ,
    ) -> None:
        super().__init__()
        self.embedding = nn.Parameter(INIT_STD * torch.randn(vocabulary, model_dim))  # also the output layer
        self.output_bias = nn.Parameter(torch.zeros(vocabulary))
        self.injection = nn.Linear(model_dim, 3 * heads * head_dim)
        nn.init.normal_(self.injection.weight, std=INIT_STD)
        nn.init.zeros_(self.injection.bias)
        self.deq = deq(UniversalTransformerCell(heads, head_dim, model_dim, inner_dim))

    def solve(self, tokens: Tensor, z0: Tensor | None = None) -> tuple[Tensor, DEQInfo]:
        """The fixed point (B, T, model_dim) and how its solve went."""
        if tokens.dim() != 2:
            raise ValueError(f"tokens have shape {tuple(tokens.shape)}: expected (batch, length)")
        embedded = F.embedding(tokens.long(), self.embedding) * math.sqrt(self.embedding.shape[1])
        injected = self.injection(embedded).to(self.embedding.dtype)  # even under autocast
        return self.deq(injected, z0=z0)

    def read(self, z: Tensor) -> Tensor:
        """Logits from a state."""
        return F.linear(z, self.embedding, self.output_bias)
