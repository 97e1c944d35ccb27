"""Cross-entropy and its gradient in one Triton kernel, for training on CUDA.

    loss_r = log sum_c exp v_rc - sum_c q_rc v_rc        v = x - max_c x
    dx_rc  = (exp v_rc / sum_c exp v_rc - q_rc) / rows

q is 1 at the class, or smoothed. Where a row's loss is known, so is its gradient: it is written there and then, and the
backward pass has only to scale it. The readable twin is PyTorch's; see `cross_entropy`.
Shapes: x (M, rows, C), classes (M, rows), loss (M,). M is for many models side by side, as in `tcn`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.nn.kernels.operators import fronts, operator

ROWS = 32  # a program looks at together: few, so that many programs share them
PARTS = 128  # programs of a model, at most; each leaves its part of the sum, so that the order of addition is fixed


@triton.jit
def of_rows(x, y, c, smoothing, scale, C: tl.constexpr):
    """(loss, dx) of rows x (R, P), their classes y (R,) and the columns c (P,), of which C are real; scale is dx's."""
    real = (c < C)[None, :]
    v = tl.where(real, x, -float("inf"))
    v = v - tl.max(v, 1)[:, None]
    e = tl.exp(v)
    s = tl.sum(e, 1)
    q = tl.where(c[None, :] == y.to(tl.int32)[:, None], 1.0 - smoothing, 0.0) + smoothing / C
    q = tl.where(real, q, 0.0)
    loss = tl.log(s) - tl.sum(tl.where(q > 0, q * v, 0.0), 1)  # a logit of -inf costs nothing where q is 0
    loss = tl.where((y >= 0) & (y < C), loss, float("nan"))  # a class that does not exist must not go unseen
    return loss, e * (scale / s)[:, None] - q * scale


@triton.jit
def _losses(
    x, classes, losses, dx, rows, chunk, smoothing, scale, C: tl.constexpr, P: tl.constexpr, R: tl.constexpr
):  # fmt: skip
    """losses[part, model] = scale times the sum over a chunk of rows, and dx of those rows."""
    part, m, models = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    x, dx, classes = x + m * rows * C, dx + m * rows * C, classes + m * rows
    c = tl.arange(0, P)
    total = tl.zeros((R,), tl.float32)
    for start in range(0, chunk, R):
        r = part * chunk + start + tl.arange(0, R)
        here = r[:, None] * C + c[None, :]
        inside = (r < rows)[:, None] & (c < C)[None, :]
        y = tl.load(classes + r, mask=r < rows, other=0)
        loss, slope = of_rows(tl.load(x + here, mask=inside, other=0.0), y, c, smoothing, scale, C)
        total += tl.where(r < rows, loss, 0.0)
        tl.store(dx + here, slope, mask=inside)
    tl.store(losses + part * models + m, tl.sum(total, 0) * scale)


def _run(x: Tensor, classes: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    x, classes = x.float().contiguous(), classes.contiguous()
    M, rows, C = x.shape
    chunk = ROWS * triton.cdiv(triton.cdiv(rows, ROWS), PARTS)
    parts = triton.cdiv(rows, chunk)
    losses, dx = x.new_empty(parts, M), torch.empty_like(x)
    shape = {"C": C, "P": max(2, triton.next_power_of_2(C)), "R": ROWS}
    _losses[(parts, M)](x, classes, losses, dx, rows, chunk, smoothing, 1 / rows, **shape)
    return losses.sum(0) if parts > 1 else losses.squeeze(0), dx


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _scaled(ctx: Any, g: Tensor, of_gradient: None) -> tuple[Tensor, None, None]:
    (dx,) = ctx.saved_tensors
    return dx * g[:, None, None], None, None


def _stacked(info: Any, dims: Any, x: Tensor, classes: Tensor, smoothing: float) -> Any:
    """A stack of calls is one call with more models."""
    loss, dx = losses(*fronts(info.batch_size, dims[:2], (x, classes)), smoothing)
    return (loss.unflatten(0, (info.batch_size, -1)), dx.unflatten(0, (info.batch_size, -1))), (0, 0)


losses = operator(
    "cross_entropy(Tensor x, Tensor classes, float smoothing) -> (Tensor, Tensor)",
    _run,
    fake=lambda x, classes, smoothing: (
        x.new_empty(x.shape[0], dtype=torch.float32),
        x.new_empty(x.shape, dtype=torch.float32),
    ),
    setup=_keep,
    backward=_scaled,
    vmap=_stacked,
)  # (x (M, rows, C), classes (M, rows), smoothing) -> the mean loss of each model, (M,); its gradient, nobody else's
