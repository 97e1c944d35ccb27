"""Adam on one flat vector.

    m <- m + (1-b1)(g - m)      v <- b2 v + (1-b2) g^2
    p <- p - lr decay p - lr/(1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps)     Kingma & Ba 2015, Loshchilov & Hutter 2019

The decay is for matrices and kernels only, not for biases and gains.

All parameters of a model are views of one vector, so that the update of a small network is a handful of
kernels instead of a handful for each of its layers, and a checkpoint is two tensors.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from koopsim.train.schedule import BETA2


class Adam:
    """Holds the flat parameters and Adam's two moments; the scalars of a step come from the schedule's table."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], eps: float, clip_norm: float | None = None, decay: bool = False
    ):
        self.parameters = [p for p in parameters if p.requires_grad]
        self.eps, self.clip_norm = eps, clip_norm
        self.flat = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.mean = torch.zeros_like(self.flat)
        self.square = torch.zeros_like(self.flat)
        self.decayed = (
            None if not decay else torch.cat([torch.full_like(p, p.ndim > 1).flatten() for p in self.parameters])
        )
        start = 0
        for p in self.parameters:
            p.data = self.flat[start : start + p.numel()].view_as(p)
            start += p.numel()

    def gradient(self, loss: Tensor) -> Tensor:
        """d loss / d parameters as one flat vector, its norm clipped."""
        parts = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        g = torch.cat([part.reshape(-1) for part in parts])
        if self.clip_norm is not None:
            g = g * (self.clip_norm / (torch.linalg.vector_norm(g) + 1e-6)).clamp(max=1.0)
        return g

    @torch.no_grad()
    def update(self, g: Tensor, scalars: Tensor) -> None:
        """One step; `scalars` is a row of `schedule.adam_table`."""
        step_size, root_correction, one_minus_beta1, decay = scalars.unbind()
        self.mean.add_((g - self.mean) * one_minus_beta1)
        self.square.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
        if self.decayed is not None:
            self.flat.sub_(decay * self.decayed * self.flat)
        self.flat.sub_(step_size * self.mean / (self.square.sqrt() / root_correction + self.eps))
