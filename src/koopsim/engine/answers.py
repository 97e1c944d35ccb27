"""What members of a stack answer, all of them at once.

x -> (members, ...)      under vmap, or as batched products where that is the faster way (batched.py)
"""

import copy
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from koopsim.engine.batched import batchable, outputs
from koopsim.engine.members import Members
from koopsim.nn.sim import SIM
from koopsim.tasks.base import Answers

AT_ONCE_BATCHED = 2  # batched products have little overhead, and what two members need stays in a CPU's cache


class StackAnswers(Answers):
    """Of some rows of the members, as they are judged, in eval mode."""

    def __init__(self, members: Members, rows: Sequence[int], exact: bool = False):
        self.members = len(rows)
        self.template = copy.deepcopy(members.template).eval()
        self.state = members.judged(rows)
        if exact:
            self.state = {n: t.double() if t.is_floating_point() else t for n, t in self.state.items()}
        self.batched = batchable(self.template, members.device)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            x = x.to(next(t.dtype for t in self.state.values() if t.is_floating_point()))
        if self.batched:
            pieces = range(0, self.members, AT_ONCE_BATCHED)
            return torch.cat([self._batched(x, slice(i, i + AT_ONCE_BATCHED)) for i in pieces])
        return vmap(lambda state: functional_call(self.template, state, (x,)))(self.state)

    def _batched(self, x: Tensor, some: slice) -> Tensor:
        state = {name: t[some] for name, t in self.state.items()}
        members = len(next(iter(state.values())))
        return outputs(cast(SIM, self.template), state, x.expand(members, *x.shape))
