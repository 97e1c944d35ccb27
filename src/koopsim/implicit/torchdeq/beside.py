"""What torchdeq has beside its layer: a start that is half noise, and activations that are computed again.

    mixed_init    z0 = m * n,  n ~ N(0, 1),  m ~ Bernoulli(1/2)            Anil et al., NeurIPS 2022
    mem_gc        PyTorch's checkpoint
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def mixed_init(z_shape: Sequence[int], device: torch.device | str | None = None) -> Tensor:
    """A start half of whose entries are zero and half normal, for fixed points that do not depend on it."""
    noise = torch.randn(*z_shape, device=device)
    return noise * torch.empty_like(noise).bernoulli_(0.5)


def mem_gc(func: Callable[..., Any], in_args: Sequence[Any] | None = None) -> Any:
    """func(*in_args), whose activations are not kept: the backward pass evaluates it again."""
    return checkpoint(func, *(in_args or ()), use_reentrant=False)
