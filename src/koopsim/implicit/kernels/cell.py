"""The whole cell of the Transformer DEQ, z -> f(z), in three CUDA kernels, and y -> y df/dz in four: `cell.cu`, `relative.cu`.

    n = LN(z),   q, k, v = W_qkv n + u                                               project
    s_ij = c ((q_i + r_w).k_j + (q_i + r_r).R_{i-j}),   p = softmax(s),   o = p v     attention
    a = z + W_o o + b_o,   f(z) = LN(a) + FF(LN(a))                                  finish

R_n = W_r p(n) is a table, since positions and weights are the same in all steps of a solve: a score then takes ten
multiplications where queries turned by their position (`transformer.py`) take 48. In library calls an evaluation is some
fifteen kernels which read and write the state each; it takes ten times what its arithmetic needs. Transposed, with
ds_ij = p_ij (do_i.v_j - do_i.o_i):

    da = LN'(y + W_1^T (relu' W_2^T y)),   do = W_o^T da                             finish, back
    dq_i = c sum_j ds_ij (k_j + R_{i-j})                                             of queries
    dk_j = c sum_i ds_ij (q_i + r_w),   dv_j = sum_i p_ij do_i                        of keys
    y df/dz = da + LN'(W_qkv^T (dq, dk, dv))                                         project, back

Gradients of parameters are not taken here: they are the twin's, `transformer.PreparedCell`, once a training step.
tests/implicit/kernels/test_cell_kernels.py holds both together, on a CPU by the kernels' source built for it.
Samples whose entry of `active` (B, 1) is zero when a kernel runs are left out: their results are zero.
"""  # noqa: E501

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from koopsim.nn.kernels.cuda import kernel
from koopsim.nn.kernels.operators import operator
from koopsim.nn.transforms import transformed

ROWWISE, PAIRWISE = (Path(__file__).with_name(name) for name in ("cell.cu", "relative.cu"))
WIDEST = (64, 8)  # of a state, all heads or the inner layer, and of a head: what registers hold
ROWS, ROW_THREADS = 32, 256  # time steps of a block, and its threads
# Threads that have a tile of queries or keys, four each, and threads of a block: its others walk elsewhere. Few heads
# are divided further. More lanes are slower on an H200, many of them by half. Each pair is built by itself, so there
# are no more than two.
FEW, MANY = (8, 128), (8, 64)
ENOUGH = 512  # blocks of the latter
FRONT = 131  # where R_0 stands in the table (relative.cu)

Sizes = Sequence[int]  # heads, head_dim, model_dim, inner_dim


def fours(n: int) -> int:
    return -(-n // 4) * 4


def can_fuse(u: Tensor, sizes: Sizes) -> bool:
    """Whether the kernels can be used: u (B, T, 3 heads head_dim)."""
    H, E, D, inner = sizes
    small = max(D, H * E, inner) <= WIDEST[0] and WIDEST[1] >= E
    wanted = os.environ.get("KOOPSIM_CLUSTERS") != "0" and torch.version.hip is None
    exact = u.dtype == torch.float32 and not torch.is_autocast_enabled(u.device.type)
    return wanted and small and exact and u.is_cuda and u.numel() > 0


# ---------------------------------------------------------------- launches


def launch(source: Path, name: str, sizes: dict[str, int], shared: int, blocks: int, arguments: list[Any]) -> None:
    """Of `sizes` the compiler is told; arguments are tensors and integers, and None for a tensor that is not there."""
    first = arguments[0]
    given = [first.new_empty(0) if a is None else a for a in arguments]  # whose address is 0
    with torch.cuda.device_of(first):
        run = kernel(source, name, tuple(sizes.items()), shared, first.get_device())
        run((blocks,), sizes["THREADS"], shared, given)


def _by_rows(name: str, sizes: Sizes, weights: int, tiles: list[int], z: Tensor, arguments: list[Any]) -> None:
    """`weights`: numbers of them in shared memory; `tiles`: how wide the rows are that lie beside them."""
    H, E, D, inner = sizes
    told = {"D": D, "H": H, "E": E, "INNER": inner, "ROWS": ROWS, "THREADS": ROW_THREADS}
    shared = 4 * (weights + ROWS * sum(n | 1 for n in tiles))
    launch(ROWWISE, name, told, shared, z.shape[0] * -(-z.shape[1] // ROWS), arguments)


def _by_pairs(name: str, sizes: Sizes, found: int, z: Tensor, arguments: list[Any]) -> None:
    """`found`: how many numbers a thread leaves of each of its four."""
    H, E = sizes[:2]
    lanes, threads, blocks = block_of(z.shape[0] * H, z.shape[1])
    shared = 4 * 4 * threads * found
    launch(PAIRWISE, name, {"H": H, "E": E, "LANES": lanes, "THREADS": threads}, shared, blocks, arguments)


def block_of(heads: int, T: int) -> tuple[int, int, int]:
    """Lanes and threads of a block of queries or keys, and how many there are."""
    lanes, threads = MANY if heads * -(-T // (4 * MANY[0])) >= ENOUGH else FEW
    return lanes, threads, heads * -(-T // (4 * lanes))


# ---------------------------------------------------------------- operators


def _bytes(active: Tensor | None) -> Tensor | None:
    return None if active is None else active.contiguous().view(torch.uint8)


def _forward(
    z: Tensor, u: Tensor, table: Tensor, weights: list[Tensor], sizes: Sizes, active: Tensor | None, keep: bool
) -> tuple[Tensor, list[Tensor]]:
    """f(z), and with `keep` what the transposed product needs: q, kv, o, sums, a, inner."""
    (H, E, D, inner), (B, T, _), z = sizes, z.shape, z.contiguous()
    W, bias, *rest = weights
    TP, length, alive, HE = fours(T), table.shape[2], _bytes(active), H * E
    q, kv = (z.new_empty(B, H, TP, fours(n)) for n in (E, 2 * E + 1))
    o, out = z.new_empty(B, T, HE), z.new_empty(B, T, D)
    sums = z.new_empty(B, H, TP) if keep else None
    a, hidden = (z.new_empty(B, T, D), z.new_empty(B, T, inner)) if keep else (None, None)
    _by_rows("cell_project", sizes, W.numel(), [D], z, [z, u, W, bias, q, kv, alive, T, TP])
    _by_pairs("relative_attention", sizes, E + 2, z, [q, kv, table, bias, o, sums, alive, T, TP, length])
    count = sum(w.numel() for w in rest[:3])
    _by_rows("cell_finish", sizes, count, [HE, D, inner], z, [o, z, *rest, out, a, hidden, alive, T])
    return out, [t for t in (q, kv, o, sums, a, hidden) if t is not None]


def _run(
    z: Tensor, u: Tensor, table: Tensor, weights: list[Tensor], sizes: list[int], active: Tensor | None = None
) -> Tensor:
    return _forward(z, u, table, weights, sizes, active, keep=False)[0]


def _run_linearise(
    z: Tensor, u: Tensor, table: Tensor, weights: list[Tensor], sizes: list[int]
) -> tuple[Tensor, ...]:  # fmt: skip
    return tuple(_forward(z, u, table, weights, sizes, None, keep=True)[1])


def _run_transposed(
    y: Tensor, z: Tensor, table: Tensor, bias: Tensor, weights: list[Tensor], kept: list[Tensor], sizes: list[int],
    active: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """weights: W_qkv, W_2, W_1 and W_o transposed."""
    (H, E, D, inner), (B, T, _), (y, z) = sizes, z.shape, (y.contiguous(), z.contiguous())
    W, W_2, W_1, W_o = weights
    q, kv, o, sums, a, hidden = kept
    TP, length, alive = fours(T), table.shape[2], _bytes(active)
    da, out = z.new_empty(B, T, D), z.new_empty(B, T, D)
    seen, dq, dkv = (z.new_empty(B, H, TP, fours(n)) for n in (2 * E + 2, E, 2 * E))
    given = [y, a, hidden, o, q, sums, W_2, W_1, W_o, da, seen, alive, T, TP]
    _by_rows("cell_finish_back", sizes, W_2.numel() + W_1.numel() + W_o.numel(), [D, D, inner], z, given)
    _by_pairs("relative_of_queries", sizes, E, z, [seen, kv, table, dq, alive, TP, length])
    _by_pairs("relative_of_keys", sizes, 2 * E, z, [seen, kv, table, bias, dkv, alive, TP, length])
    _by_rows("cell_project_back", sizes, W.numel(), [D, D, W.shape[1]], z, [dq, dkv, da, z, W, out, alive, T, TP])
    return out


def _fake_linearise(z, u, table, weights, sizes):
    (H, E, _, inner), (B, T, _) = sizes, z.shape
    rows = [z.new_empty(B, H, fours(T), fours(n)) for n in (E, 2 * E + 1)]
    return (
        *rows, z.new_empty(B, T, H * E), z.new_empty(B, H, fours(T)), z.new_empty(z.shape), z.new_empty(B, T, inner)
    )  # fmt: skip


cell_evaluate = operator(
    "cell_evaluate(Tensor z, Tensor u, Tensor table, Tensor[] weights, int[] sizes, Tensor? active=None) -> Tensor",
    _run,
    fake=lambda z, u, table, weights, sizes, active=None: z.new_empty(z.shape),
)
cell_linearise = operator(
    "cell_linearise(Tensor z, Tensor u, Tensor table, Tensor[] weights, int[] sizes) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run_linearise,
    fake=_fake_linearise,
)
cell_transposed = operator(
    "cell_transposed(Tensor y, Tensor z, Tensor table, Tensor bias, Tensor[] weights, Tensor[] kept, int[] sizes, "
    "Tensor? active=None) -> Tensor",
    _run_transposed,
    fake=lambda y, z, table, bias, weights, kept, sizes, active=None: y.new_empty(y.shape),
)


# ---------------------------------------------------------------- a cell and its Jacobian


@dataclass(frozen=True, eq=False)
class FusedCell:
    """z -> f(z) for one u, without a past."""

    u: Tensor  # (B, heads, T, fours(3 head_dim))
    table: Tensor  # R and r_r.R: (heads, head_dim + 1, length)
    weights: list[Tensor]  # W_qkv, (r_w, r_r), W_o, W_1, W_2, b_o, b_1, b_2; rows are whole vectors of four
    sizes: list[int]

    def takes(self, z: Tensor) -> bool:
        """Whether it can stand in for its twin: nobody wants to follow what happens to z."""
        plain = z.dtype == torch.float32 and z.device == self.u.device and not torch.is_autocast_enabled(z.device.type)
        watched = torch.compiler.is_compiling() or transformed(z) or torch.autograd.forward_ad._current_level >= 0
        return plain and not watched and z.shape == (len(self.u), self.u.shape[2], self.sizes[2])

    def __call__(self, z: Tensor, active: Tensor | None = None) -> Tensor:
        return cell_evaluate(z, self.u, self.table, self.weights, self.sizes, active)

    def rows(self, index: Tensor) -> FusedCell:
        return replace(self, u=self.u.index_select(0, index))

    @torch.no_grad()
    def transposed(self, z: Tensor) -> Transposed:
        """y -> y df/dz at z."""
        H, E, D, inner = self.sizes
        W, bias, W_o, W_1, W_2 = self.weights[:5]
        turned = [_rows(w[:, :n].mT) for w, n in ((W, D), (W_2, inner), (W_1, D), (W_o, H * E))]
        z = z.detach().contiguous()
        kept = cell_linearise(z, self.u, self.table, self.weights, self.sizes)
        return Transposed(z, self.table, bias, turned, list(kept), self.sizes)


@dataclass(frozen=True, eq=False)
class Transposed:
    """y -> y J, J = df/dz at one z."""

    z: Tensor
    table: Tensor
    bias: Tensor
    weights: list[Tensor]
    kept: list[Tensor]  # each with the samples first
    sizes: list[int]
    active: Tensor | None = None
    worthwhile: float = 0.8  # narrowing copies what is kept, a fifth of a product

    def __call__(self, y: Tensor) -> Tensor:
        given = self.z, self.table, self.bias, self.weights, self.kept, self.sizes, self.active
        return cell_transposed(y.detach(), *given)

    def rows(self, index: Tensor) -> Transposed:
        return replace(self, z=self.z[index], kept=[t.index_select(0, index) for t in self.kept])

    def watched(self, active: Tensor) -> Transposed:
        return replace(self, active=active)


def _rows(w: Tensor) -> Tensor:
    """Without gaps, each row rounded up to whole vectors of four."""
    more = fours(w.shape[1]) - w.shape[1]
    return torch.nn.functional.pad(w, (0, more)) if more else w.contiguous()


@torch.no_grad()
def fused(
    u: Tensor, positions: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], sizes: list[int]
) -> FusedCell:
    """u (B, T, 3 HE); positions (T, D / 2, 2): cos and sin, in float64; weights qkv, relative, output, inner, outer;
    biases content, position, output, inner, outer."""
    (B, T, _), (H, E, D, _) = u.shape, sizes
    W, relative, *rest = (w.detach() for w in weights)
    c = math.log2(math.e) / math.sqrt(E)  # powers are of two
    given = u.new_empty(B, H, T, fours(3 * E))
    given[..., : 3 * E].unflatten(3, (3, E)).copy_(u.detach().view(B, T, 3, H, E).permute(0, 3, 1, 2, 4))
    given[..., :E] *= c
    W = _rows(W.clone(memory_format=torch.contiguous_format))
    W[: H * E] *= c
    bias = c * torch.stack([b.detach() for b in biases[:2]])
    sine, cosine = relative.view(H * E, 2, D // 2).unbind(1)
    R = torch.stack([cosine, sine], dim=2).view(H * E, D).double() @ positions.view(T, D).mT
    table = u.new_zeros(H, E + 1, fours(FRONT + T + 8))
    table[:, :E, FRONT : FRONT + T] = R.view(H, E, T)
    table[:, E, FRONT : FRONT + T] = (bias[1].unsqueeze(2) * R.view(H, E, T)).sum(1)
    flat = [b.detach().contiguous() for b in biases[2:]]
    return FusedCell(given, table, [W, bias, *map(_rows, rest), *flat], sizes)
