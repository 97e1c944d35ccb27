"""Adam on one flat vector.

    m <- m + (1-b1)(g - m)      v <- b2 v + (1-b2) g^2
    p <- p - lr decay p - lr/(1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps)     Kingma & Ba 2015, Loshchilov & Hutter 2019

The decay is for matrices and kernels only, not for biases and gains.

All parameters of a model are views of one vector, so that the update of a small network is a handful of
kernels instead of a handful for each of its layers (two on CUDA: `kernels.adam`), and a checkpoint is two tensors.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from koopsim.nn.flat import joined
from koopsim.train.schedule import BETA2


@dataclass(frozen=True)
class Course:
    """How far a run has come, on the device."""

    table: Tensor  # (steps, 4): `schedule.adam_table`
    counters: Tensor  # (2,): step of the run, step of the epoch
    losses: Tensor  # (steps of an epoch,)


class Adam:
    """Holds the flat parameters, Adam's two moments and, with `average` > 0, what their average is made of:

    a <- a + (1 - average) (p - a)  from a = 0,     the average after t steps is  a / (1 - average^t)

    as with the moments, so that what training started from is no part of it.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        eps: float,
        clip_norm: float | None = None,
        decay: bool = False,
        average: float = 0.0,
    ):
        self.parameters = [p for p in parameters if p.requires_grad]
        self.eps, self.clip_norm, self.average = eps, clip_norm, average
        self.flat = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.mean = torch.zeros_like(self.flat)
        self.square = torch.zeros_like(self.flat)
        self.averaged = torch.zeros_like(self.flat) if average else None
        self.decayed = (
            None if not decay else torch.cat([torch.full_like(p, p.ndim > 1).flatten() for p in self.parameters])
        )
        self.unused = self.flat.new_zeros(max(p.numel() for p in self.parameters))  # the gradient of what plays no part
        start = 0
        for p in self.parameters:
            p.data = self.flat[start : start + p.numel()].view_as(p)
            start += p.numel()

    def gradient(self, loss: Tensor) -> Tensor:
        """d loss / d parameters as one flat vector."""
        parts = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        pairs = zip(parts, self.parameters, strict=True)
        return joined([self.unused[: p.numel()] if part is None else part for part, p in pairs])

    def advance(self, g: Tensor, loss: Tensor, course: Course) -> None:
        """The end of a step: clip, update, average, write the loss down, count."""
        if self.fused():
            from koopsim.nn.kernels import adam as adam_kernels

            return adam_kernels.advance(self, g, loss.detach(), course, BETA2)
        step, position = course.counters[:1], course.counters[1:]  # of length 1: a scalar index would ask the host
        self.update(g, course.table.index_select(0, step)[0])
        if self.averaged is not None:
            self.averaged.lerp_(self.flat, 1 - self.average)
        course.losses.index_copy_(0, position, loss.detach().reshape(1).to(course.losses.dtype))
        course.counters.add_(1)

    def fused(self) -> bool:
        """Whether the Triton kernels can take the place of the tensor operations."""
        return self.flat.is_cuda and self.flat.dtype == torch.float32 and find_spec("triton") is not None

    @torch.no_grad()
    def update(self, g: Tensor, scalars: Tensor) -> None:
        """One step by a gradient whose norm is clipped; `scalars` is a row of `schedule.adam_table`."""
        if self.clip_norm is not None:
            g = g * (self.clip_norm / (torch.linalg.vector_norm(g) + 1e-6)).clamp(max=1.0)
        step_size, root_correction, one_minus_beta1, decay = scalars.unbind()
        self.mean.add_((g - self.mean) * one_minus_beta1)
        self.square.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
        if self.decayed is not None:
            self.flat.sub_(decay * self.decayed * self.flat)
        self.flat.sub_(step_size * self.mean / (self.square.sqrt() / root_correction + self.eps))
