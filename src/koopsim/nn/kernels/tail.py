"""Everything after the lift as one Triton kernel forward and one backward, for training on CUDA.

    t = V phi    p = U t    a1 = relu(W1 p + b1)    a2 = relu(W2 a1 + b2)    z = W3 a2 + b3    y = Wh z + bh

At thirty features each of these products, its gradients and the sums of its bias is a launch of its own that fills
no chip: some sixty of them a step. Here a program has a block of rows and walks through all the maps. Backward, it
walks forward again (cheaper than reading back what was kept), then back, and leaves its part of every weight's
gradient in a row of its own: one sum over the rows is all of them, in a fixed order of addition. Where only the
cross-entropy of y is wanted, the way back finds it and its gradient by itself, and there is no way forward
(`tail_loss`; nn/direct.py). The readable twin is `sim.SIM.forward`; tests/nn/kernels/test_tail_kernels.py holds them
together, on a CPU through Triton's interpreter.

Shapes: phi (M, rows, D), V (M, K, D), U (M, D, K), W1 (M, H, D), W2 and W3 (M, H, H), Wh (M, O, H), biases (M, .).
M is for many models side by side, as in `tcn`. P_ is a size padded to a power of two; D is walked through in
strips of S, so that no tile is larger than 64 x 64.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.nn.kernels.cross_entropy import of_rows
from koopsim.nn.kernels.operators import fronts, operator

ROWS = 16  # a program takes together: few, so that all of the chip has some
STRIP = 32
PARTS = 132  # of the rows of a model, at most, a multiprocessor each; each leaves a copy of all gradients to be summed
PROGRAMS = 256  # of a backward pass with many models, about; one of them has a multiprocessor's registers to itself
# One stage: copying ahead for the loop over rows would take more shared memory than there is. Eight warps: with four
# the gradients of the larger sizes do not fit in the registers.
LAUNCH = {"num_warps": 8, "num_stages": 1}


@triton.jit
def _tile(at, row, column, rows, width):
    """The entries [row, column] of a (rows, width) matrix, zero outside."""
    inside = (row < rows)[:, None] & (column < width)[None, :]
    return tl.load(at + row[:, None] * width + column[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _bias(at, column, width):
    return tl.load(at + column, mask=column < width, other=0.0)[None, :]


@triton.jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _relu(x):
    return tl.where(x < 0, 0.0, x)  # not a maximum, which would make a zero of what is not a number


@triton.jit
def _add(at, row, column, rows, width, value, again):
    """Add to a matrix that is this program's alone; the first time there is nothing there yet."""
    inside = (row < rows)[:, None] & (column < width)[None, :]
    to = at + row[:, None] * width + column[None, :]
    tl.store(to, value + tl.load(to, mask=inside & again, other=0.0), mask=inside)


@triton.jit
def _add_bias(at, column, width, value, again):
    inside = column < width
    tl.store(at + column, tl.sum(value, 0) + tl.load(at + column, mask=inside & again, other=0.0), mask=inside)


@triton.jit
def _phi(phi, L, c, r, d, rows, D: tl.constexpr, F: tl.constexpr, PF: tl.constexpr):
    """The columns d of phi; with a lift's last layer, F > 0, they are L a + c and what is given is a (rows, F)."""
    if F:
        f = tl.arange(0, PF)
        return _dot(_tile(phi, r, f, rows, F), tl.trans(_tile(L, d, f, D, F))) + _bias(c, d, D)
    else:
        return _tile(phi, r, d, rows, D)


@triton.jit
def _walk(
    phi, V, U, W1, b1, W2, b2, W3, b3, L, c, r, rows,
    D: tl.constexpr, K: tl.constexpr, H: tl.constexpr, F: tl.constexpr,
    S: tl.constexpr, PK: tl.constexpr, PH: tl.constexpr, PF: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """(t, a1, a2, z) of the rows r."""
    k, h = tl.arange(0, PK), tl.arange(0, PH)
    w2, w3 = _tile(W2, h, h, H, H), _tile(W3, h, h, H, H)  # asked for early: they come while t is computed
    t = tl.zeros((R, PK), tl.float32)
    for start in range(0, D, S):
        d = start + tl.arange(0, S)
        t += _dot(_phi(phi, L, c, r, d, rows, D, F, PF), tl.trans(_tile(V, k, d, K, D)))
    a1 = tl.zeros((R, PH), tl.float32)
    for start in range(0, D, S):
        d = start + tl.arange(0, S)
        p = _dot(t, tl.trans(_tile(U, d, k, D, K)))
        a1 += _dot(p, tl.trans(_tile(W1, h, d, H, D)))
    a1 = _relu(a1 + _bias(b1, h, H))
    a2 = _relu(_dot(a1, tl.trans(w2)) + _bias(b2, h, H))
    z = _dot(a2, tl.trans(w3)) + _bias(b3, h, H)
    return t, a1, a2, z


@triton.jit
def _forward(
    phi, V, U, W1, b1, W2, b2, W3, b3, Wh, bh, L, c, y, rows,
    sV, sU, sW1, sb1, sW2, sb2, sW3, sb3, sWh, sbh, sL, sc,
    D: tl.constexpr, K: tl.constexpr, H: tl.constexpr, O: tl.constexpr, F: tl.constexpr,
    S: tl.constexpr, PK: tl.constexpr, PH: tl.constexpr, PO: tl.constexpr, PF: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """y of a block of rows of one model; s_ is how far the next model's weights lie."""
    m = tl.program_id(1).to(tl.int64)  # a stack of phi may be longer than an int32 counts
    r, h, o = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, PH), tl.arange(0, PO)
    wh = _tile(Wh + m * sWh, o, h, O, H)
    _, _, _, z = _walk(
        phi + m * rows * (F if F else D), V + m * sV, U + m * sU, W1 + m * sW1, b1 + m * sb1, W2 + m * sW2,
        b2 + m * sb2, W3 + m * sW3, b3 + m * sb3, L + m * sL, c + m * sc, r, rows, D, K, H, F, S, PK, PH, PF, R,
    )  # fmt: skip
    out = _dot(z, tl.trans(wh)) + _bias(bh + m * sbh, o, O)
    inside = (r < rows)[:, None] & (o < O)[None, :]
    tl.store(y + m * rows * O + r[:, None] * O + o[None, :], out, mask=inside)


@triton.jit
def _backward(
    phi, V, U, W1, b1, W2, b2, W3, b3, Wh, bh, L, c, dy, dphi, sums, losses, rows, chunk, smoothing,
    sV, sU, sW1, sb1, sW2, sb2, sW3, sb3, sWh, sbh, sL, sc,
    D: tl.constexpr, K: tl.constexpr, H: tl.constexpr, O: tl.constexpr, F: tl.constexpr, LOSS: tl.constexpr,
    S: tl.constexpr, PK: tl.constexpr, PH: tl.constexpr, PO: tl.constexpr, PF: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """dphi of a chunk of rows of one model, and the chunk's part of all weight gradients: sums (parts, M, total).

    LOSS: instead of dy the classes (M, rows) are given; dy is the gradient of their mean cross-entropy, whose parts
    go to losses (parts, M).
    """
    part, m, models = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    wide: tl.constexpr = F if F else D
    phi, dphi, dy = phi + m * rows * wide, dphi + m * rows * wide, dy + m * rows * (1 if LOSS else O)
    L, c = L + m * sL, c + m * sc
    V, U, W1, b1, W2 = V + m * sV, U + m * sU, W1 + m * sW1, b1 + m * sb1, W2 + m * sW2
    b2, W3, b3, Wh = b2 + m * sb2, W3 + m * sW3, b3 + m * sb3, Wh + m * sWh
    front: tl.constexpr = D * F + D if F else F
    dV = sums + (part * models + m) * (2 * K * D + H * D + 2 * H * H + O * H + 3 * H + O + front)
    dU = dV + K * D
    dW1 = dU + D * K
    db1 = dW1 + H * D
    dW2 = db1 + H
    db2 = dW2 + H * H
    dW3 = db2 + H
    db3 = dW3 + H * H
    dWh = db3 + H
    dbh = dWh + O * H
    dL = dbh + O
    dc = dL + D * F
    k, h, o = tl.arange(0, PK), tl.arange(0, PH), tl.arange(0, PO)
    lost = tl.zeros((R,), tl.float32)
    for start in range(0, chunk, R):
        r = part * chunk + start + tl.arange(0, R)
        again = start > 0
        wh = _tile(Wh, o, h, O, H)
        if LOSS:
            y = tl.load(dy + r, mask=r < rows, other=0)
        else:
            g = _tile(dy, r, o, rows, O)  # zero in rows beyond the last, and so is all that comes of it
        t, a1, a2, z = _walk(phi, V, U, W1, b1, W2, b2, W3, b3, L, c, r, rows, D, K, H, F, S, PK, PH, PF, R)
        if LOSS:
            out = _dot(z, tl.trans(wh)) + _bias(bh + m * sbh, o, O)
            loss, g = of_rows(out, y, o, smoothing, 1.0 / rows, O)
            lost += tl.where(r < rows, loss, 0.0)
            g = tl.where((r < rows)[:, None], g, 0.0)
        _add(dWh, o, h, O, H, _dot(tl.trans(g), z), again)
        _add_bias(dbh, o, O, g, again)
        g = _dot(g, wh)  # dz
        _add(dW3, h, h, H, H, _dot(tl.trans(g), a2), again)
        _add_bias(db3, h, H, g, again)
        g = tl.where(a2 <= 0, 0.0, _dot(g, _tile(W3, h, h, H, H)))  # da2, before its ReLU
        _add(dW2, h, h, H, H, _dot(tl.trans(g), a1), again)
        _add_bias(db2, h, H, g, again)
        g = tl.where(a1 <= 0, 0.0, _dot(g, _tile(W2, h, h, H, H)))  # da1, before its ReLU
        _add_bias(db1, h, H, g, again)
        dt = tl.zeros((R, PK), tl.float32)
        for strip in range(0, D, S):
            d = strip + tl.arange(0, S)
            u = _tile(U, d, k, D, K)
            dp = _dot(g, _tile(W1, h, d, H, D))
            _add(dW1, h, d, H, D, _dot(tl.trans(g), _dot(t, tl.trans(u))), again)
            _add(dU, d, k, D, K, _dot(tl.trans(dp), t), again)
            dt += _dot(dp, u)
        if F:
            f = tl.arange(0, PF)
            a = _tile(phi, r, f, rows, F)
            da = tl.zeros((R, PF), tl.float32)
        for strip in range(0, D, S):
            d = strip + tl.arange(0, S)
            p = _dot(dt, _tile(V, k, d, K, D))
            if F:
                _add(dL, d, f, D, F, _dot(tl.trans(p), a), again)
                _add_bias(dc, d, D, p, again)
                da += _dot(p, _tile(L, d, f, D, F))
            else:
                to = dphi + r[:, None] * D + d[None, :]
                tl.store(to, p.to(dphi.dtype.element_ty), mask=(r < rows)[:, None] & (d < D)[None, :])
            _add(dV, k, d, K, D, _dot(tl.trans(dt), _phi(phi, L, c, r, d, rows, D, F, PF)), again)
        if F:
            to = dphi + r[:, None] * F + f[None, :]
            tl.store(to, da.to(dphi.dtype.element_ty), mask=(r < rows)[:, None] & (f < F)[None, :])
    if LOSS:
        tl.store(losses + part * models + m, tl.sum(lost, 0) * (1.0 / rows))


def _run(phi: Tensor, given: Sequence[Tensor]) -> Tensor:
    phi, weights = phi.contiguous(), _dense(given)
    M, rows, _ = phi.shape
    y = weights[0].new_empty(M, rows, weights[9].shape[1])
    shape, all_weights = _shape(weights), _with_front(weights)
    strides = (w.stride(0) for w in all_weights)
    _forward[(triton.cdiv(rows, ROWS), M)](phi, *all_weights, y, rows, *strides, **shape, **LAUNCH)
    return y


def _run_backward(phi: Tensor, given: Sequence[Tensor], dy: Tensor) -> tuple[Tensor, Tensor]:
    """dphi, and the gradients of all weights of a model one after the other: (M, total)."""
    dphi, sums, _ = _run_parts(phi, given, dy.float().contiguous(), 0.0, False)
    return dphi, sums[0] if len(sums) == 1 else sums.sum(0)


def _run_parts(
    phi: Tensor, given: Sequence[Tensor], dy: Tensor, smoothing: float, of_loss: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dphi, the parts (parts, M, total), and those of the loss (parts, M) where dy are classes (M, rows)."""
    phi, weights = phi.contiguous(), _dense(given)
    chunk, parts = _chunk(phi)
    dphi, sums = torch.empty_like(phi), weights[0].new_empty(parts, len(phi), sum(_sizes(weights)))
    losses = sums.new_empty(parts, len(phi)) if of_loss else sums
    shape, all_weights = _shape(weights) | {"LOSS": of_loss}, _with_front(weights)
    strides = (w.stride(0) for w in all_weights)
    more = (dy, dphi, sums, losses, phi.shape[1], chunk, smoothing)
    _backward[(parts, len(phi))](phi, *all_weights, *more, *strides, **shape, **LAUNCH)
    return dphi, sums, losses


def _chunk(phi: Tensor) -> tuple[int, int]:
    """(rows a program has, programs a model has) backward."""
    M, rows, _ = phi.shape
    chunk = ROWS * -(-rows // (ROWS * max(1, min(PARTS, PROGRAMS // M))))
    return chunk, -(-rows // chunk)


def _keep(ctx: Any, inputs: tuple[Tensor, Sequence[Tensor]], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], *inputs[1])


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor, list[Tensor]]:
    phi, *weights = ctx.saved_tensors
    dphi, total = tail_backward(phi, weights, dy)
    pieces = zip(total.split(_sizes(weights), 1), weights, strict=True)
    return dphi, [g.view(w.shape) for g, w in pieces]


def _stacked(info: Any, dims: Any, phi: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, int]:
    """A stack of calls is one call with more models."""
    phi, *weights = fronts(info.batch_size, (dims[0], *dims[1]), (phi, *weights))
    return tail(phi, weights).unflatten(0, (info.batch_size, -1)), 0


tail_backward = operator(
    "tail_backward(Tensor phi, Tensor[] weights, Tensor dy) -> (Tensor, Tensor)",
    _run_backward,
    fake=lambda phi, weights, dy: (phi.new_empty(phi.shape), dy.new_empty(len(phi), sum(_sizes(weights)))),
)
tail_loss = operator(
    "tail_loss(Tensor phi, Tensor[] weights, Tensor classes, float smoothing) -> (Tensor, Tensor, Tensor)",
    lambda phi, weights, classes, smoothing: _run_parts(phi, weights, classes.contiguous(), smoothing, True),
    fake=lambda phi, weights, classes, smoothing: (
        phi.new_empty(phi.shape),
        weights[0].new_empty(_chunk(phi)[1], len(phi), sum(_sizes(weights))),
        weights[0].new_empty(_chunk(phi)[1], len(phi)),
    ),
)  # (phi, weights, classes (M, rows), smoothing) -> dphi and parts of the weights' gradients and of the mean loss
tail = operator(
    "tail(Tensor phi, Tensor[] weights) -> Tensor",
    _run,
    fake=lambda phi, weights: weights[0].new_empty(*phi.shape[:2], weights[9].shape[1]),
    setup=_keep,
    backward=_gradients,
    vmap=_stacked,
)  # (phi (M, rows, D), (V, U, W1, b1, W2, b2, W3, b3, Wh, bh)) -> y (M, rows, O) = h(nu(U V phi)).
# Two more weights, L and c, are a lift's last layer: phi is then given as what that sees, and is L phi + c.
# phi may be float32 or shorter, its gradient is of its kind; the weights, their gradients and y are float32.


def _sizes(weights: Sequence[Tensor]) -> list[int]:
    return [math.prod(w.shape[1:]) for w in weights]


def _dense(weights: Sequence[Tensor]) -> list[Tensor]:
    """Each model's matrices without gaps; how far apart the models lie is free."""
    return [w if w.dtype == torch.float32 and w[0].is_contiguous() else w.float().contiguous() for w in weights]


def _shape(weights: list[Tensor]) -> dict[str, Any]:
    (_, K, D), (_, O, H) = weights[0].shape, weights[8].shape
    F = weights[10].shape[2] if len(weights) > 10 else 0
    sizes = {"K": K, "H": H, "O": O, "F": F}
    padded = {f"P{name}": max(16, triton.next_power_of_2(size)) for name, size in sizes.items()}
    return {"D": D, **sizes, "S": STRIP, "R": ROWS, **padded}


def _with_front(weights: list[Tensor]) -> list[Tensor]:
    """Where there is no last layer of a lift, anything stands in its place: it is not looked at."""
    return weights if len(weights) > 10 else [*weights, weights[0], weights[1]]
