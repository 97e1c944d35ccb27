"""Continuation: a solve begun where the last one ended.

    z_0 of batch t  =  z* of batch t - 1

For frames of a video, steps of a simulation, or the same data again while the weights change slowly, that is close to
the answer. The fixed point does not depend on it, only the number of steps does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from koopsim.implicit.deq import DEQ
from koopsim.implicit.info import DEQInfo
from koopsim.implicit.state import State, packing_of


class Continued(nn.Module):
    """`z, info = Continued(deq)(x)`. Another batch size or shape, or `reset()`, starts afresh."""

    def __init__(self, deq: DEQ) -> None:
        super().__init__()
        self.deq = deq
        self.last: torch.Tensor | None = None  # packed; no part of the state dict

    def reset(self) -> None:
        self.last = None

    def forward(self, *inputs: Any) -> tuple[State, DEQInfo]:
        first = self.deq.initial(*inputs)
        packing = packing_of(first)
        cold, last = packing.pack(first).detach(), self.last
        if last is not None and (last.shape, last.dtype, last.device) == (cold.shape, cold.dtype, cold.device):
            good = last.flatten(1).isfinite().all(1).view(-1, *[1] * (last.dim() - 1))
            cold = torch.where(good, last, cold)
        z, info = self.deq(*inputs, z0=packing.unpack(cold))
        self.last = packing.pack(z).detach().clone()
        return z, info
