"""The stack of causal convolutions of a TCN as Triton kernels, for CUDA.

    a_l = relu(W_l * h_l + b_l)        h_{l+1} = a_l            l even (first of a block)
                                       h_{l+1} = relu(a_l + s)  l odd, s the block's input (of the first: R x + r)

At ten channels a library's convolution or matrix product costs several launches, none of which fills the chip. Here a
layer is one kernel forward and one backward, or all layers are one where the GPU has clusters (`tcn_cluster`), and the
gradients of all weights come from a single one at the end. The readable twin is `lift.TemporalBlock`;
tests/nn/kernels/test_tcn_kernels.py holds them together, on a CPU through Triton's interpreter.

Shapes: x (M, B, T, I), h (L-1, M, B, T, C) with h[l-1] the input of layer l, W (M, L, C, K, C), the oldest tap first
and zeros for the first layer's missing inputs, b (M, L, C). The residual R (M, C, I), r (M, C), or two empty tensors
where the block's input is taken as it is. M is for many models side by side: a stack of trials under torch.vmap is one
call, each sequence with its model's W.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.nn.kernels import tcn_cluster
from koopsim.nn.kernels.operators import fronts, operator

ROWS = 16  # time steps a program
TILE = 32  # rows that the kernels of the weights' gradients take together, or twice as many
PRECISION = "ieee"  # of products; three TF32 parts that together are float32 were slower


@triton.jit
def _weight(w, k, c, C: tl.constexpr, K: tl.constexpr, FLIP: tl.constexpr):
    """W[:, k, :] of a layer as (out, in), or FLIP as (in, out): read in the order the product wants it."""
    inside = (c < C)[:, None] & (c < C)[None, :]
    if FLIP:
        return tl.load(w + c[None, :] * (K * C) + k * C + c[:, None], mask=inside, other=0.0)
    return tl.load(w + c[:, None] * (K * C) + k * C + c[None, :], mask=inside, other=0.0)


@triton.jit
def _layer_forward(
    h, w, b, skip, R, r, a, out, T, dilation, each, w_stride, b_stride,
    I: tl.constexpr, S: tl.constexpr, C: tl.constexpr, K: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr,
    SECOND: tl.constexpr, PROJECTED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """a = relu(conv(h) + b) and, for the second layer of a block, out = relu(a + skip).

    I and S: channels of h and of skip.
    """
    sequence = tl.program_id(0).to(tl.int64)
    model = sequence // each
    w += model * w_stride
    b += model * b_stride
    t = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, P)
    row = sequence * T + t
    inside = (t < T)[:, None]
    total = tl.zeros((ROWS, P), tl.float32)
    for k in tl.static_range(K):
        back = (K - 1 - k) * dilation
        seen = inside & (t >= back)[:, None] & (c < I)[None, :]
        x = tl.load(h + (row - back)[:, None] * I + c[None, :], mask=seen, other=0.0)
        total = tl.dot(x, _weight(w, k, c, C, K, True), total, input_precision=PRECISION)
    total += tl.load(b + c, mask=c < C, other=0.0)[None, :]
    total = tl.where(total < 0, 0.0, total)  # as in PyTorch a nan stays one, which a maximum would not
    inside = inside & (c < C)[None, :]
    here = row[:, None] * C + c[None, :]
    tl.store(a + here, total, mask=inside)
    if SECOND:
        s = tl.load(skip + row[:, None] * S + c[None, :], mask=(t < T)[:, None] & (c < S)[None, :], other=0.0)
        if PROJECTED:
            known = (c < S)[:, None] & (c < C)[None, :]
            flipped = tl.load(R + model * (C * S) + c[None, :] * S + c[:, None], mask=known, other=0.0)
            s = tl.dot(s, flipped, input_precision=PRECISION)
            s += tl.load(r + model * C + c, mask=c < C, other=0.0)[None, :]
        total += s
        tl.store(out + here, tl.where(total < 0, 0.0, total), mask=inside)


@triton.jit
def _top(dy, last, a, skip, g, n, BLOCK: tl.constexpr):
    """skip = dy before the last block's ReLU, g = also before its second layer's."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    d = tl.where(tl.load(last + i, mask=i < n, other=0.0) > 0, tl.load(dy + i, mask=i < n, other=0.0), 0.0)
    tl.store(skip + i, d, mask=i < n)
    tl.store(g + i, tl.where(tl.load(a + i, mask=i < n, other=0.0) > 0, d, 0.0), mask=i < n)


@triton.jit
def _layer_backward(
    g, w, residual, h, a, below, g_below, T, dilation, each, w_stride,
    C: tl.constexpr, K: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr, FIRST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """From g, the gradient before the ReLU of layer l, to that of layer l-1.

    FIRST marks the first layer of a block: the residual's gradient joins in, what passes the block's ReLU goes
    to `below` (the residual gradient of the block beneath), and what also passes the layer's goes to g_below.
    """
    sequence = tl.program_id(0).to(tl.int64)
    w += sequence // each * w_stride
    t = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, P)
    here = (sequence * T + t)[:, None] * C + c[None, :]
    inside = (t < T)[:, None] & (c < C)[None, :]
    total = tl.zeros((ROWS, P), tl.float32)
    for k in tl.static_range(K):
        ahead = (K - 1 - k) * dilation
        g_k = tl.load(g + here + ahead * C, mask=inside & (t + ahead < T)[:, None], other=0.0)
        total = tl.dot(g_k, _weight(w, k, c, C, K, False), total, input_precision=PRECISION)
    if FIRST:
        total += tl.load(residual + here, mask=inside, other=0.0)
    total = tl.where(tl.load(h + here, mask=inside, other=0.0) > 0, total, 0.0)
    if FIRST:
        tl.store(below + here, total, mask=inside)
        total = tl.where(tl.load(a + here, mask=inside, other=0.0) > 0, total, 0.0)
    tl.store(g_below + here, total, mask=inside)


@triton.jit
def _weight_gradients(
    g, h, x, sums, T, rows, chunk, layers, size,
    I: tl.constexpr, C: tl.constexpr, K: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dW_l[:, k] = sum over time of g_t h_{t - (K-1-k) dilation}^T; a program has a layer, a tap, a chunk of rows.

    rows are those of one model: its sequences one after the other. After the layers comes the residual, if any: it has
    one tap, and its g is that before the first block's last ReLU, which lies behind those of the layers.
    sums (parts, M, size): dW (L, C, K, C), db (L, C), dR (C, I), dr (C) one after the other.
    """
    layer, k, part = tl.program_id(0) // K, tl.program_id(0) % K, tl.program_id(1)
    model, models = tl.program_id(2), tl.num_programs(2)
    is_residual = layer == layers
    back = tl.where(is_residual, 0, (K - 1 - k) * (1 << (layer // 2)))
    c = tl.arange(0, P)
    first = (layer == 0) | is_residual  # its input is x
    width = tl.where(first, I, C)
    begin = (model * rows).to(tl.int64)
    g += (layer.to(tl.int64) * models * rows + begin) * C
    if first:
        inputs = x + begin * I
    else:
        inputs = h + ((layer - 1).to(tl.int64) * models * rows + begin) * C
    total = tl.zeros((P, P), tl.float32)
    bias = tl.zeros((P,), tl.float32)
    for start in range(0, chunk, ROWS):
        offset = start + tl.arange(0, ROWS)
        r = part * chunk + offset
        valid = ((r < rows) & (offset < chunk))[:, None]
        g_r = tl.load(g + r[:, None] * C + c[None, :], mask=valid & (c < C)[None, :], other=0.0)
        seen = valid & ((r % T) >= back)[:, None] & (c < width)[None, :]
        x_r = tl.load(inputs + (r - back)[:, None] * width + c[None, :], mask=seen, other=0.0)
        total = tl.dot(tl.trans(g_r), x_r, total, input_precision=PRECISION)
        bias += tl.sum(g_r, axis=0)
    sums += (part * models + model).to(tl.int64) * size
    to = layer * (C * K * C) + c[:, None] * (K * C) + k * C + c[None, :]
    to_bias = layers * (C * K * C) + layer * C + c
    if is_residual:
        behind = layers * (C * K * C) + layers * C
        to = behind + c[:, None] * I + c[None, :]
        to_bias = behind + C * I + c
    columns = tl.where(is_residual, I, C)
    tl.store(sums + to, total, mask=(c < C)[:, None] & (c < columns)[None, :])
    tl.store(sums + to_bias, bias, mask=(c < C) & ((k == K - 1) | is_residual))


def _run(x: Tensor, R: Tensor, r: Tensor, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, R, r, W, b = _plain(x, W), *(t.float().contiguous() for t in (R, r, W, b))
    (M, B, T, inputs), (_, L, C, K, _) = x.shape, W.shape
    h, last, a = _states(x, W)
    if tcn_cluster.fits(x, W):
        tcn_cluster.forward((x, R, r, W, b), (last, h, a))
        return last, h, a
    common = {**_shape(C, K), "PRECISION": PRECISION}
    for l in range(L):
        block, second = l // 2, l % 2 == 1
        skip = x if block == 0 else h[2 * block - 1]
        out = h[l] if l + 1 < L else last
        _layer_forward[(M * B, triton.cdiv(T, ROWS))](
            h[l - 1] if l else x, W[:, l], b[:, l], skip, R, r, a[block] if second else out, out,
            T, 1 << block, B, W.stride(0), b.stride(0), I=C if l else inputs, S=C if block else inputs,
            SECOND=second, PROJECTED=block == 0 and R.numel() > 0, **common,
        )  # fmt: skip
    return last, h, a


def _states(x: Tensor, W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h, the last one, and a of the second layers: those of the first ones are h."""
    (M, B, T, _), (_, L, C, _, _) = x.shape, W.shape
    new = x.new_empty
    kind = torch.float32
    return (new(L - 1, M, B, T, C, dtype=kind), new(M, B, T, C, dtype=kind), new(L // 2, M, B, T, C, dtype=kind))


def _run_backward(inputs: list[Tensor], states: list[Tensor], dy: Tensor, of_x: bool) -> tuple[Tensor, Tensor]:
    """dx (or nothing, unless asked for) and the sums of `_weight_gradients`: (M, size)."""
    g, sums = _parts_of_gradient(inputs, states, dy)
    x, R, W = inputs
    if of_x:
        R, W = R.float(), W.float()
        return _input_gradient(g[0], g[W.shape[1]], R, W[:, 0], x.shape[3]), sums.sum(0)
    return sums.new_empty(0), sums.sum(0)


def _parts_of_gradient(inputs: list[Tensor], states: list[Tensor], dy: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients before each ReLU, and the parts (parts, M, size) of those of all weights."""
    x, R, W = _plain(inputs[0], inputs[2]), *(t.float().contiguous() for t in inputs[1:])
    last, h, a, dy = (t.float().contiguous() for t in (*states, dy))
    (M, B, T, I), (_, L, C, K, _) = x.shape, W.shape
    g = W.new_empty(L + L // 2, M, B, T, C)  # gradient before each layer's ReLU; behind them, before each block's last
    clusters = tcn_cluster.fits(x, W)
    chunk, parts = _chunk(M, B * T, clusters)
    sums = W.new_empty(parts, M, _size(R, W))
    if clusters:
        tcn_cluster.backward(x, W, (last, h, a), dy, g)
        tcn_cluster.weight_gradients(g, h, x, W, sums, chunk, R.numel() > 0)
    else:
        _layers_backward(g, W, (last, h, a), dy)
        own = {**_shape(C, K), "I": I, "PRECISION": PRECISION}
        grid = (L * K + (R.numel() > 0), parts, M)
        _weight_gradients[grid](g, h, x, sums, T, B * T, chunk, L, sums.shape[2], **own)
    return g, sums


def _chunk(M: int, rows: int, clusters: bool) -> tuple[int, int]:
    """(rows of a part of the weights' gradients, parts): many models fill the chip by themselves.

    Whole tiles: a part of one row more than a tile takes as long as two.
    """
    wanted = max(1, (16 if rows < 8192 else 64 if clusters else 32) // M)
    tiles = -(-rows // TILE)
    each = max(1, round(tiles / wanted))
    return each * TILE, -(-tiles // each)


def _plain(x: Tensor, W: Tensor) -> Tensor:
    """x as the kernels read it: float32; where there are clusters, bytes as they are."""
    return x.contiguous() if x.dtype == torch.uint8 and tcn_cluster.fits(x, W) else x.float().contiguous()


def _layers_backward(g: Tensor, W: Tensor, states: tuple[Tensor, ...], dy: Tensor) -> None:
    """Layer by layer from the last to the first, into g."""
    last, h, a = states
    _, L, C, K, _ = W.shape
    M, B, T, _ = last.shape
    skip, common = g[L:], {**_shape(C, K), "PRECISION": PRECISION}
    _top[(triton.cdiv(last.numel(), 512),)](dy, last, a[-1], skip[-1], g[L - 1], last.numel(), BLOCK=512)
    for l in range(L - 1, 0, -1):
        block, first = l // 2, l % 2 == 0
        below = max(block - 1, 0)
        at = (g[l], W[:, l], skip[block], h[l - 1], a[below], skip[below], g[l - 1])
        _layer_backward[(M * B, triton.cdiv(T, ROWS))](*at, T, 1 << block, B, W.stride(0), **common, FIRST=first)


def _shape(C: int, K: int) -> dict[str, Any]:
    return {"C": C, "K": K, "P": max(16, triton.next_power_of_2(C)), "ROWS": ROWS}


def _size(R: Tensor, W: Tensor) -> int:
    _, L, C, K, _ = W.shape
    return L * C * K * C + L * C + (C * R.shape[2] + C if R.numel() else 0)


def _input_gradient(g: Tensor, skip: Tensor, R: Tensor, W: Tensor, inputs: int) -> Tensor:
    """The transposed first layer, whose dilation is 1, and the residual's; only for inputs that want a gradient."""
    K, T = W.shape[2], g.shape[2]
    ahead = torch.nn.functional.pad(g, (0, 0, 0, K - 1))
    parts = (ahead[:, :, K - 1 - k : K - 1 - k + T] @ W[:, None, :, k] for k in range(K))
    through = sum(parts, torch.zeros_like(g))[..., :inputs]
    return (through + (skip @ R[:, None] if R.numel() else skip)).contiguous()


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # zeros as large as h, which nobody looks at
    x, R, _, W, _ = inputs
    ctx.save_for_backward(x, R, W, *output)


def _gradients(ctx: Any, dy: Tensor, *of_states: None) -> tuple[Tensor | None, ...]:
    x, R, W, *states = ctx.saved_tensors
    dx, total = temporal_stack_backward([x, R, W], states, dy, ctx.needs_input_grad[0])
    M, L, C, K, _ = W.shape
    sizes = [L * C * K * C, L * C, *([C * R.shape[2], C] if R.numel() else [])]
    dW, db, *rest = total.split(sizes, 1)
    dR, dr = rest or (None, None)
    return (
        dx if ctx.needs_input_grad[0] else None, dR if dR is None else dR.view(R.shape), dr,
        dW.view(W.shape), db.view(M, L, C),
    )  # fmt: skip


def _stacked(info: Any, dims: Any, *inputs: Tensor) -> Any:
    """A stack of calls is one call with more models."""
    count = info.batch_size
    last, h, a = temporal_stack(*fronts(count, dims, inputs))
    return (last.unflatten(0, (count, -1)), h.unflatten(1, (count, -1)), a.unflatten(1, (count, -1))), (0, 1, 1)


def _fake(x: Tensor, R: Tensor, r: Tensor, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h, last, a = _states(x, W)
    return last, h, a


def _fake_parts(x: Tensor, R: Tensor, W: Tensor) -> Tensor:
    M, B, T, _ = x.shape
    return W.new_empty(_chunk(M, B * T, tcn_cluster.fits(x, W))[1], M, _size(R, W), dtype=torch.float32)


temporal_stack_backward = operator(
    "temporal_stack_backward(Tensor[] inputs, Tensor[] states, Tensor dy, bool of_x) -> (Tensor, Tensor)",
    _run_backward,
    fake=lambda inputs, states, dy, of_x: (
        inputs[0].new_empty(inputs[0].shape if of_x else (0,), dtype=torch.float32),
        dy.new_empty(len(inputs[2]), _size(*inputs[1:]), dtype=torch.float32),
    ),
)
temporal_stack_parts = operator(
    "temporal_stack_parts(Tensor[] inputs, Tensor[] states, Tensor dy) -> Tensor",
    lambda inputs, states, dy: _parts_of_gradient(inputs, states, dy)[1],
    fake=lambda inputs, states, dy: _fake_parts(*inputs),
)  # as `temporal_stack_backward`, the weights' gradients not added up yet: (parts, M, size)
temporal_stack = operator(
    "temporal_stack(Tensor x, Tensor R, Tensor r, Tensor W, Tensor b) -> (Tensor, Tensor, Tensor)",
    _run,
    fake=_fake,
    setup=_keep,
    backward=_gradients,
    vmap=_stacked,
)  # -> (M, B, T, C), and what the gradient needs: nobody else's
