"""Cross-entropy and its gradient in one Triton kernel, for training on CUDA.

    loss_r = log sum_c exp v_rc - sum_c q_rc v_rc        v = x - max_c x
    dx_rc  = (exp v_rc / sum_c exp v_rc - q_rc) / rows

q is 1 at the class, or smoothed. Where a row's loss is known, so is its gradient: it is written there and then, and the
backward pass has only to scale it. The readable twin is PyTorch's; see `cross_entropy`.
Shapes: x (M, rows, C), classes (M, rows), loss (M,). M is for many models side by side, as in `tcn`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS = 32  # a program looks at together: few, so that many programs share them
PARTS = 128  # programs of a model, at most; each leaves its part of the sum, so that the order of addition is fixed


@triton.jit
def _losses(
    x, classes, losses, dx, rows, chunk, smoothing, scale, C: tl.constexpr, P: tl.constexpr, R: tl.constexpr
):  # fmt: skip
    """losses[part, model] = scale times the sum over a chunk of rows, and dx of those rows."""
    part, m, models = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    x, dx, classes = x + m * rows * C, dx + m * rows * C, classes + m * rows
    c = tl.arange(0, P)
    real = (c < C)[None, :]
    total = tl.zeros((R,), tl.float32)
    for start in range(0, chunk, R):
        r = part * chunk + start + tl.arange(0, R)
        here = r[:, None] * C + c[None, :]
        inside = (r < rows)[:, None] & real
        y = tl.load(classes + r, mask=r < rows, other=0)
        v = tl.where(real, tl.load(x + here, mask=inside, other=0.0), -float("inf"))
        v = v - tl.max(v, 1)[:, None]
        e = tl.exp(v)
        s = tl.sum(e, 1)
        q = tl.where(c[None, :] == y.to(tl.int32)[:, None], 1.0 - smoothing, 0.0) + smoothing / C
        q = tl.where(real, q, 0.0)
        loss = tl.log(s) - tl.sum(tl.where(q > 0, q * v, 0.0), 1)  # a logit of -inf costs nothing where q is 0
        loss = tl.where((y >= 0) & (y < C), loss, float("nan"))  # a class that does not exist must not go unseen
        total += tl.where(r < rows, loss, 0.0)
        tl.store(dx + here, e * (scale / s)[:, None] - q * scale, mask=inside)
    tl.store(losses + part * models + m, tl.sum(total, 0) * scale)


class CrossEntropy(torch.autograd.Function):
    """(x (M, rows, C), classes (M, rows), smoothing) -> the mean loss of each model, (M,).

    The other result is the gradient: not differentiable, and nobody else's.
    """

    @staticmethod
    def forward(x: Tensor, classes: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        x, classes = x.contiguous(), classes.contiguous()
        M, rows, C = x.shape
        chunk = ROWS * triton.cdiv(triton.cdiv(rows, ROWS), PARTS)
        parts = triton.cdiv(rows, chunk)
        losses, dx = x.new_empty(parts, M), torch.empty_like(x)
        shape = {"C": C, "P": max(2, triton.next_power_of_2(C)), "R": ROWS}
        _losses[(parts, M)](x, classes, losses, dx, rows, chunk, smoothing, 1 / rows, **shape)
        return losses.sum(0) if parts > 1 else losses.squeeze(0), dx

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (dx,) = ctx.saved_tensors
        return dx * grads[0][:, None, None], None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, classes: Tensor, smoothing: float) -> Any:
        """A stack of calls is one call with more models."""
        count = info.batch_size
        fronts = [
            t.expand(count, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip((x, classes), in_dims[:2], strict=True)
        ]
        loss, dx = cast(tuple, CrossEntropy.apply(*(t.flatten(0, 1) for t in fronts), smoothing))
        return (loss.unflatten(0, (count, -1)), dx.unflatten(0, (count, -1))), (0, 0)
