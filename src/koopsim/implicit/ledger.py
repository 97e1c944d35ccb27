"""What is known of every sample while a solver runs: its best point and residual, whether it goes on, its steps.

    judge(z, f(z))    g = f(z) - z and || g ||;  where the residual is below the best one, z is the best point;
                      a sample goes on while tol <= residual < inf
    next(z')          z' where a sample goes on, else its best point

`Ledger` is the readable one. On a CPU the numbers of a sample are NumPy's, in the memory of the tensors: the operations
are the same at a third of the cost of a call, and while every sample gets better and goes on, which is most of the
time, there is nothing to write down (`HostLedger`). On CUDA a step's books are three kernels instead of some fifteen
(`kernels/ledger.py`).
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from koopsim.implicit.info import Info

if TYPE_CHECKING:
    from koopsim.implicit.iteration import Tolerance


class Ledger:
    """z is (B, D); what belongs to a sample is (B, 1), residuals of its parts (B, P)."""

    in_place = False  # whether `active` is one tensor from first to last

    def __init__(self, z: Tensor, tol: Tolerance) -> None:
        B, self.tol, self.best = z.shape[0], tol, z
        self.worst = z.new_full((B, 1), math.inf)  # of the best point's parts
        self.parts = z.new_full((B, max(1, len(tol.sizes))), math.inf)
        self.active = torch.ones(B, 1, dtype=torch.bool, device=z.device)
        self.steps = torch.zeros(B, 1, dtype=torch.int64, device=z.device)

    def judge(self, z: Tensor, fz: Tensor) -> tuple[Tensor, Tensor]:
        """g, (B, D), and its norms, (B, 1)."""
        self.steps += self.active
        g = fz - z
        norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        residual = torch.as_tensor(self.tol.residuals(g, fz, norm))
        largest = residual.amax(1, keepdim=True)
        better = self.active & (largest < self.worst)  # false for nan; who is done is not looked at
        self.best = torch.where(better, z, self.best)
        self.worst = torch.where(better, largest, self.worst)
        self.parts = torch.where(better, residual, self.parts)
        self.active = self.active & (largest >= self.tol.value) & (largest < math.inf)
        return g, norm

    def next(self, proposed: Tensor, fz: Tensor) -> Tensor:
        """In memory of its own: a cell may use that of f(z) again."""
        return torch.where(self.active, proposed, self.best)

    def left(self) -> int:
        """How many samples go on. It asks the device, so not while capturing."""
        return int(self.active.sum())

    def rows(self) -> Tensor:
        """Which ones."""
        return self.active.squeeze(1).nonzero().squeeze(1)

    def info(self) -> Info:
        worst = self.worst.squeeze(1)
        parts = self.parts if len(self.tol.sizes) > 1 else None
        return Info(self.steps.squeeze(1), worst, worst < self.tol.value, parts)


class HostLedger(Ledger):
    """On a CPU. `count` is the steps of those that go on; `steps` is written when a sample stops."""

    def __init__(self, z: Tensor, tol: Tolerance) -> None:
        self.best, self.tol, self.count, self.B = z, tol, 0, z.shape[0]
        self.worst: Any = math.inf
        self.parts: Any = math.inf
        self.active: Any = np.ones((self.B, 1), bool)
        self.going = self.B
        self.steps: Any = np.zeros((self.B, 1), np.int64)

    def judge(self, z: Tensor, fz: Tensor) -> tuple[Tensor, Tensor]:
        g = fz - z
        norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        residual = self.tol.residuals(g, fz, norm)
        largest = residual if residual.shape[1] == 1 else residual.max(1, keepdims=True)
        self.count += 1
        better, goes = self.active & (largest < self.worst), largest >= self.tol.value  # both false for nan
        if np.count_nonzero(better) == self.B:
            self.best, self.worst, self.parts = z, largest, residual
            if self.going == self.B == np.count_nonzero(goes):
                return g, norm
        else:
            self.best = torch.where(torch.from_numpy(better), z, self.best)
            self.worst = np.where(better, largest, self.worst)
            self.parts = np.where(better, residual, self.parts)
        goes &= self.active & (largest < math.inf)
        self.steps[self.active & ~goes] = self.count
        self.active, self.going = goes, int(np.count_nonzero(goes))
        return g, norm

    def next(self, proposed: Tensor, fz: Tensor) -> Tensor:
        if self.going == self.B:
            return proposed.clone() if proposed is fz else proposed
        return torch.where(torch.from_numpy(self.active), proposed, self.best)

    def left(self) -> int:
        return self.going

    def rows(self) -> Tensor:
        return torch.from_numpy(self.active[:, 0].nonzero()[0])

    def info(self) -> Info:
        self.steps[self.active] = self.count
        worst = torch.from_numpy(self.worst[:, 0])
        parts = torch.from_numpy(self.parts) if len(self.tol.sizes) > 1 else None
        return Info(torch.from_numpy(self.steps[:, 0]), worst, worst < self.tol.value, parts)


def ledger_of(z: Tensor, tol: Tolerance) -> Ledger:
    """The one for its device."""
    if z.device.type == "cpu":
        return HostLedger(z, tol)
    if z.is_cuda and find_spec("triton") is not None and not torch.compiler.is_compiling():  # which fuses by itself
        from koopsim.implicit.kernels.ledger import KernelLedger, can_keep

        if can_keep(z, tol):
            return KernelLedger(z, tol)
    return Ledger(z, tol)
