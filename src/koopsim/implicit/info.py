"""How a solve went: per sample, forward and backward.

Everything is a tensor on the device of the solve: nothing here waits for a GPU, so a captured step can hold it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class UnconvergedWarning(UserWarning):
    """A solve ended above its tolerance for some samples."""


@dataclass(frozen=True)
class Info:
    """How a solve went, per sample."""

    steps: Tensor  # (B,) int64: evaluations of f until the sample stopped, at most max_steps
    residuals: Tensor  # (B,) residual of the returned point, infinite if none was finite
    converged: Tensor  # (B,) bool
    parts: Tensor | None = None  # (B, P) residuals of the parts of a state that has several


@dataclass
class DEQInfo:
    """How the forward solve went, and, once loss.backward() has run, the backward one too."""

    forward: Info
    backward: Info | None = None

    @property
    def steps(self) -> Tensor:
        return self.forward.steps

    @property
    def residuals(self) -> Tensor:
        return self.forward.residuals

    @property
    def converged(self) -> Tensor:
        return self.forward.converged

    def figures(self, longest: Tensor) -> dict[str, Tensor]:
        """Both solves in a few numbers for the metrics of a run; tensors, so nothing waits.

        `longest` (2,) keeps the most steps any sample has needed, forward and backward: one more than it took where
        they were not enough.
        """
        report: dict[str, Tensor] = {}
        for i, (prefix, info) in enumerate((("", self.forward), ("backward_", self.backward))):
            if info is not None:
                report[f"{prefix}solver_steps"] = info.steps.double().mean()
                report[f"{prefix}unconverged"] = (~info.converged).double().mean()
                report[f"{prefix}residual"] = info.residuals.double().amax()
                needed = (info.steps + ~info.converged).max()
                longest[i : i + 1].copy_(torch.maximum(longest[i : i + 1], needed))
        return report


def capturing() -> bool:
    """Whether a CUDA graph is being captured, where the host must not ask for values."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
