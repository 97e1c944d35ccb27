"""A stack of SIMs with a TCN, written out for a CPU: the models are the batch of every matrix product.

    y_p = W_p x_p        (P, out, in) x (P, in, B T) -> (P, out, B T)

vmap comes to the same products in a thousand small operations, and with ten channels a step then costs more in
overhead than in arithmetic. Here time is the last axis, so that the short axis of a product is never the vectorised
one, a convolution is one copy and one product, and its gradient is written by hand. The readable twin is the model
itself under vmap (gradients.py); tests/engine/test_batched.py holds the two together.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from koopsim.nn.fourier import RandomFourierFeatures
from koopsim.nn.lift import TCN, TemporalBlock
from koopsim.nn.sim import SIM

Tensors = dict[str, Tensor]


def batchable(model: nn.Module, device: torch.device) -> bool:
    """Whether `outputs` knows the model and is the faster way: a SIM with a TCN, as configured, on a CPU."""
    if device.type != "cpu" or type(model) is not SIM or model.limit.projector:
        return False
    return type(model.mu) is TCN and type(model.psi) in (nn.Identity, RandomFourierFeatures)


def outputs(model: SIM, state: Tensors, x: Tensor) -> Tensor:
    """(P, B, T[, C]) -> (P, B, T, classes): each model's answer to its own batch; `state` has a leading axis P.

    `model` gives the structure only.
    """
    tcn = cast(TCN, model.mu)
    x = x.unsqueeze(-1) if tcn.input_channels == 1 else x
    B, T = x.shape[1:3]
    h = x.permute(0, 3, 1, 2).to(state["h.weight"].dtype).contiguous()  # (P, C, B, T)
    for name, block in tcn.blocks.named_children():
        h = _block(cast(TemporalBlock, block), f"mu.blocks.{name}", state, h)
    phi = _linear(state, "mu.linear", h.flatten(2))
    if "psi.frequencies" in state:
        phase = state["psi.frequencies"] @ phi
        phi = torch.cat([phase.sin(), phase.cos()], dim=1) / math.sqrt(phase.shape[1])
    z = state["limit.U"] @ (state["limit.V"] @ phi)
    layers = [name for name, layer in model.nu.named_children() if isinstance(layer, nn.Linear)]
    for name in layers:
        z = _linear(state, f"nu.{name}", z)
        z = z if name == layers[-1] else z.relu()
    return _linear(state, "h", z).mT.unflatten(1, (B, T))


def _linear(state: Tensors, name: str, x: Tensor) -> Tensor:
    """W x + b, (P, in, n) -> (P, out, n)."""
    return torch.baddbmm(state[f"{name}.bias"].unsqueeze(-1), state[f"{name}.weight"], x)


def _block(block: TemporalBlock, name: str, state: Tensors, x: Tensor) -> Tensor:
    """relu(x + relu(conv(relu(conv(x))))), (P, C, B, T) -> (P, C, B, T)."""
    y = x
    for conv, which in ((block.first, "first"), (block.second, "second")):
        own = (state[f"{name}.{which}.{part}"] for part in ("direction", "gain", "bias"))
        y = cast(Tensor, CausalRelu.apply(y, *own, conv.kernel, conv.dilation))
    if f"{name}.residual.weight" in state:
        x = _linear(state, f"{name}.residual", x.flatten(2)).view_as(y)
    return (x + y).relu_()


class CausalRelu(torch.autograd.Function):
    """relu(W * x + b) with W = g v / |v|, for P models: x (P, C, B, T), v (P, out, K C), g and b (P, out).

    With g as a scale of the output the weight is never formed:  y = (g / |v|) (v x_taps) + b.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, v: Tensor, g: Tensor, b: Tensor, kernel: int, dilation: int) -> Tensor:
        P, C, B, T = x.shape
        felt = min(kernel, (T - 1) // dilation + 1)  # older taps lie before the beginning
        taps = _taps(x, felt, dilation)
        norm = torch.linalg.vector_norm(v, dim=2)
        scale = (g / norm).unsqueeze(2)
        y = torch.bmm(v[:, :, -felt * C :], taps)
        y = torch.addcmul(b.unsqueeze(2), y, scale, out=y).relu_()
        ctx.save_for_backward(taps, v, norm, scale, y)
        ctx.felt, ctx.dilation, ctx.shape = felt, dilation, x.shape
        return y.view(P, -1, B, T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """dW = dy taps^T,  dg = (dW . v) / |v|,  dv = (g / |v|) (dW - dg v / |v|),  dx = W^T dy, the taps put back."""
        taps, v, norm, scale, y = ctx.saved_tensors
        felt, C = ctx.felt, ctx.shape[1]
        dy = torch.ops.aten.threshold_backward(grads[0].reshape(y.shape), y, 0)
        near = v[:, :, -felt * C :]
        dW = torch.bmm(dy, taps.mT)
        dg = (dW * near).sum(2).div_(norm)
        dv = v * (dg / norm).unsqueeze(2).mul_(scale).neg_()
        dv[:, :, -felt * C :].addcmul_(dW, scale)
        db = dy.sum(2)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = _untaps(torch.bmm(near.mT, dy.mul_(scale)), ctx.shape, felt, ctx.dilation)
        return dx, dv, dg, db, None, None


def _taps(x: Tensor, kernel: int, dilation: int) -> Tensor:
    """(P, C, B, T) -> (P, K C, B T): row k C + c is channel c, (K-1-k) dilation steps ago; before the beginning, 0."""
    if kernel == 1:
        return x.flatten(2)
    P, C, B, T = x.shape
    past = F.pad(x, ((kernel - 1) * dilation, 0))
    p, c, b, t = past.stride()
    return past.as_strided((P, kernel, C, B, T), (p, dilation * t, c, b, t)).reshape(P, kernel * C, B * T)


def _untaps(taps: Tensor, shape: tuple[int, int, int, int], kernel: int, dilation: int) -> Tensor:
    """The transpose of `_taps`: each tap goes back to the time it came from."""
    if kernel == 1:
        return taps.view(shape)
    P, C, B, T = shape
    *older, x = taps.view(P, kernel, C, B, T).unbind(1)
    x = x.contiguous()
    for k, tap in enumerate(older):
        back = (kernel - 1 - k) * dilation
        x.narrow(3, 0, T - back).add_(tap.narrow(3, back, T - back))
    return x
