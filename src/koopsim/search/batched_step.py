"""The step of a stack on a CPU: the numbers of `Population.step`, with the models as in batched.py.

    one buffer for the gradients:   g -> clip -> m -> g^2 -> v -> sqrt(v) / c + eps,      each in the place of the last

Here the host may look at a tensor for nothing, and fresh memory is what costs: a page fault for every few thousand
numbers. On CUDA both are the other way round, and `Population.step` is written for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import vmap

from koopsim.nn.sim import SIM
from koopsim.search.batched import outputs
from koopsim.train.population import Batch, Loss, Population
from koopsim.train.schedule import BETA2


class BatchedPopulation(Population):
    """A `Population` of models that `batched.batchable` knows. The first tensor of a batch is what a model sees."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        loss: Loss,
        batch: Batch,
        schedules: Tensor,
        eps: float,
        clip_norm: float | None,
        decay: bool,
    ):
        super().__init__(models, loss, batch, schedules, (False, False), eps, clip_norm, decay)
        self.structure = cast(SIM, self.stack.template)
        self.state_of_all = self.stack.parameters | self.stack.buffers
        self.losses_of = vmap(lambda y, *batch: loss(lambda x: y, *batch))  # the answers are there already
        self.gradient, self.change = torch.empty_like(self.stack.flat), torch.empty_like(self.stack.flat)

    def member_losses(self) -> Tensor:
        batch = self.batch(self.steps)
        return self.losses_of(outputs(self.structure, self.state_of_all, batch[0]), *batch)

    def step(self) -> None:
        """One update of every member that is active and not at its end."""
        losses = self.member_losses()
        parts = torch.autograd.grad(losses.sum(), list(self.stack.parameters.values()))
        with torch.no_grad():
            g = torch.cat([part.flatten(1) for part in parts], dim=1, out=self.gradient)
            if self.clip_norm is not None:
                norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)
                g.mul_((self.clip_norm / (norm + 1e-6)).clamp_(max=1.0))
            goes = self.active & (self.steps < self.horizon)
            at = self.steps.clamp(max=self.horizon - 1)
            moves = goes.unsqueeze(1)
            if not goes.all():  # one that stands still gets zeros: its own gradient may be infinite
                g[~goes] = 0
            scalars = self.schedules[self.slots, at]
            step_size, root_correction, one_minus_beta1, decay = (scalars * moves).unsqueeze(-1).unbind(1)
            self.mean.lerp_(g, one_minus_beta1)
            self.square.lerp_(torch.mul(g, g, out=g), moves.to(g.dtype) * (1 - BETA2))
            if self.decayed is not None:
                self.stack.flat.sub_(torch.mul(decay * self.decayed, self.stack.flat, out=self.change))
            scale = torch.sqrt(self.square, out=g).div_(root_correction + ~moves).add_(self.eps)
            self.stack.flat.addcdiv_(torch.mul(self.mean, -step_size, out=self.change), scale)
            self.losses[self.slots[goes], at[goes]] = losses.detach()[goes].to(self.losses.dtype)
            self.steps.add_(goes)
