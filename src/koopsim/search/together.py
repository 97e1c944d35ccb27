"""Judging a whole stack at once, with the task's own evaluation.

    task.evaluate(model, split)  calls  model(x_1), model(x_2), ...     the same pieces for every model

so while one slot is evaluated, each piece is computed for all slots under vmap and kept for the others. The figures
are the task's, in the task's precision; only who computes them differs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from koopsim.nn.sim import SIM
from koopsim.search.batched import batchable, outputs
from koopsim.train.population import Stack

AT_ONCE = 16  # slots; their outputs on a whole split are kept
AT_ONCE_BATCHED = 2  # these have little overhead, and what two need stays in a CPU's cache


class _Pieces:
    """The outputs of some slots, piece by piece, in the order in which they are asked for."""

    def __init__(self, stack: Stack, template: nn.Module, slots: Sequence[int]):
        rows = torch.tensor(slots, device=stack.flat.device)
        both = stack.parameters | stack.buffers
        self.state = {name: tensor.detach().index_select(0, rows) for name, tensor in both.items()}
        self.template, self.size, self.found = template, len(slots), []

    def double(self) -> None:
        self.state = {n: t.double() if t.is_floating_point() else t for n, t in self.state.items()}

    @torch.no_grad()
    def outputs(self, piece: int, x: Tensor) -> Tensor:
        """(slots, ...): what all slots answer to x."""
        if piece == len(self.found):
            self.found.append(self._answers(x))
        return self.found[piece]

    def _answers(self, x: Tensor) -> Tensor:
        if batchable(self.template, x.device):
            return outputs(cast(SIM, self.template), self.state, x.expand(self.size, *x.shape))
        return vmap(lambda state: functional_call(self.template, state, (x,)))(self.state)


class Slot(nn.Module):
    """Stands in for one slot's model while a task evaluates it."""

    def __init__(self, pieces: _Pieces, row: int):
        super().__init__()
        self.pieces, self.row, self.piece = pieces, row, 0

    def __deepcopy__(self, memo: dict) -> Slot:
        return self  # a task evaluates a copy, so that precision and mode stay its own: here they are anyway

    def double(self) -> Slot:
        self.pieces.double()
        return self

    def forward(self, x: Tensor) -> Tensor:
        self.piece += 1
        return self.pieces.outputs(self.piece - 1, x)[self.row]


def together(stack: Stack, slots: Sequence[int]) -> dict[int, Slot]:
    """A stand-in for the model of each of these slots, to be evaluated once, in this order."""
    template = copy.deepcopy(stack.template).eval()
    found = {}
    at_once = AT_ONCE_BATCHED if batchable(template, stack.flat.device) else AT_ONCE
    for start in range(0, len(slots), at_once):
        some = slots[start : start + at_once]
        pieces = _Pieces(stack, template, some)
        found |= {slot: Slot(pieces, row) for row, slot in enumerate(some)}
    return found
