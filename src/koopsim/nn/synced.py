"""Batch normalisation over the batch of all processes: mean and variance are those of the whole batch.

    m = sum_r sum x / n,    v = sum_r sum (x - m)^2 / n        n: over all ranks; two sums, as precise as one process's

torch's SyncBatchNorm is for CUDA alone; this is for any device. The sums are part of the graph: their gradient is
summed over the ranks too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Sum(torch.autograd.Function):
    """The sum over all ranks, of a tensor and of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.detach().clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        total = gradients[0].clone()
        torch.distributed.all_reduce(total)
        return total


class SyncedNorm(_BatchNorm):
    """A BatchNorm of any dimension, its parameters and statistics those of the one it takes the place of."""

    def __init__(self, norm: _BatchNorm):
        nn.Module.__init__(self)
        self.num_features, self.eps, self.momentum = norm.num_features, norm.eps, norm.momentum
        self.affine, self.track_running_stats = norm.affine, norm.track_running_stats
        self._parameters, self._buffers = norm._parameters, norm._buffers
        self.training = norm.training

    def _check_input_dim(self, input: Tensor) -> None:
        """Any: channels are the second axis."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        axes = [i for i in range(input.ndim) if i != 1]
        shape = (1, -1, *[1] * (input.ndim - 2))
        x = input.float() if input.dtype in (torch.bfloat16, torch.float16) else input
        count = _Sum.apply(x.new_full((1,), input.numel() / input.shape[1]))  # no copy from the host: a capture
        mean = _Sum.apply(x.sum(axes)) / count
        centred = x - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(axes)) / count
        y = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        if self.track_running_stats:
            self._follow(mean.detach(), variance.detach() * (count / (count - 1).clamp_min(1)))
        return y.to(input.dtype)

    def unbiased(self, x: Tensor, bias: Tensor) -> Tensor:
        """forward(x + bias), channel by channel: the normalisation takes it away, only the running mean sees it."""
        assert self.running_mean is not None
        self.running_mean.sub_(bias.detach())
        y = torch.add(self(x), bias.view(1, -1, *[1] * (x.ndim - 2)), alpha=0)
        self.running_mean.add_(bias.detach())
        return y

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(variance.to(self.running_var), share)


def synchronised(model: nn.Module) -> nn.Module:
    """The model with every batch normalisation over all processes, in place."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm) and not isinstance(child, SyncedNorm):
                setattr(module, name, SyncedNorm(child))
    return model
