"""The loss of a SIM with a TCN and its gradient, kernel after kernel on CUDA: without a tape, and with nothing twice.

    weights of all layers -> TCN -> tail, loss and the way back through the tail -> back through the TCN -> parts of dW
    -> one kernel that adds the parts up, takes them through the weight norm and lays them side by side

At one sequence a batch a step is twenty kernels, half of which do nothing but wait for memory. Autograd sees one
operator at a time: it wants the answers before the loss, the loss before its gradient, and every gradient by itself.
Who knows that only the loss is wanted needs none of these. The readable twin is `SIM.forward`, PyTorch's cross-entropy
and autograd; tests/nn/kernels/test_direct_kernels.py holds them together. KOOPSIM_DIRECT=0 leaves a step to autograd.
"""

import os
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from koopsim.nn.lift import TCN, residual_of
from koopsim.nn.linear import Linear
from koopsim.nn.readout import Output, StateReadout
from koopsim.nn.sim import SIM, TAIL_SIZES
from koopsim.nn.tcn import TemporalBlock
from koopsim.nn.transforms import TRITON

CHANNELS = 64  # of the TCN, at most, as `TCN.fused` has it


def direct(model: nn.Module) -> bool:
    """Whether a model is one of these: on CUDA in float32, all of it learnt, U and V free."""
    if not TRITON or type(model) is not SIM or type(model.mu) is not TCN or type(model.psi) is not nn.Identity:
        return False
    if type(model.nu) is not StateReadout or type(model.h) is not Output or model.limit.projector:
        return False
    sizes = (model.limit.dim, model.limit.rank, model.h.in_features, model.h.out_features)
    small = all(size <= most for size, most in zip(sizes, TAIL_SIZES, strict=True))
    narrow = model.mu.input_channels <= model.mu.channels <= CHANNELS
    learnt = all(p.requires_grad and p.is_cuda and p.dtype == torch.float32 for p in model.parameters())
    return small and narrow and learnt


class DirectSIM:
    """The loss of a batch and the gradient by it. The model's parameters are views of `flat` (1, n).

    begins   by name: where each of them begins there
    """

    def __init__(self, model: SIM, flat: Tensor, begins: Mapping[str, int]):
        from koopsim.nn.kernels.gathered import tables

        self.model, self.flat, mu = model, flat, cast(TCN, model.mu)
        place = {id(p): begins[name] for name, p in model.named_parameters()}
        self.layers = [p.detach() for conv in mu.convs() for p in (conv.direction, conv.gain, conv.bias)]
        self.taps = mu.convs()[0].kernel
        self.residual = [t.detach() for t in residual_of(cast(TemporalBlock, mu.blocks[0]).residual, flat)]
        maps = [cast(Linear, m) for m in (*[*model.nu][::2], model.h, mu.linear)]
        tail = [model.limit.V, model.limit.U, *(t for layer in maps for t in (layer.weight, layer.bias))]
        self.tail = [t.detach().unsqueeze(0) for t in tail]
        own = residual_of(cast(TemporalBlock, mu.blocks[0]).residual, flat)
        plain = [(place[id(t)], t.numel()) for t in (*own, *tail) if t.numel()]
        convs = [[place[id(p)] for p in (c.direction, c.gain, c.bias)] for c in mu.convs()]
        self.places, self.to = tables(convs, plain, flat.device)

    def takes(self, x: Tensor, classes: Tensor) -> bool:
        """Whether this batch can be learnt so. Whoever hangs a hook on the model wants it called."""
        model = self.model
        if os.environ.get("KOOPSIM_DIRECT") == "0" or model._forward_hooks or model._forward_pre_hooks:
            return False
        rows = x.shape if cast(TCN, model.mu).input_channels == 1 else x.shape[:-1]
        kinds = x.dtype in (torch.uint8, torch.float32) and classes.dtype == torch.int64
        return kinds and classes.shape == rows and x.ndim >= 2 and 0 < classes.numel() * TAIL_SIZES[0] < 2**31

    @torch.no_grad()
    def __call__(self, x: Tensor, classes: Tensor, smoothing: float, scale: float) -> tuple[Tensor, Tensor]:
        """(..., T) or (..., T, C_in), classes (..., T) -> the mean loss (1,), and scale times its gradient (1, n)."""
        from koopsim.nn.kernels.gathered import gathered_gradient
        from koopsim.nn.kernels.tail import tail_loss
        from koopsim.nn.kernels.tcn import temporal_stack, temporal_stack_parts
        from koopsim.nn.kernels.weight_norm import normed_weights

        mu = cast(TCN, self.model.mu)
        rows = x.unsqueeze(-1) if mu.input_channels == 1 else x
        W, b = normed_weights(self.layers, self.taps)
        x, R, r, W, b = (t.unsqueeze(0) for t in (rows.reshape(-1, *rows.shape[-2:]), *self.residual, W, b))
        states = temporal_stack(x, R, r, W, b)
        last = states[0].view(1, -1, mu.channels)
        dlast, tail, lost = tail_loss(last, self.tail, classes.reshape(1, -1), smoothing)
        lift = temporal_stack_parts([x, R, W], list(states), dlast.view_as(states[0]))
        g, losses = torch.empty_like(self.flat), self.flat.new_empty(1)
        sizes = (mu.input_channels, mu.channels, self.taps)
        gathered_gradient(self.flat, self.places, self.to, lift, tail, lost, g, losses, *sizes, scale)
        return losses, g
