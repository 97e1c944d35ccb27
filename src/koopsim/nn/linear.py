"""A linear layer for many rows and few features.

    y = x W^T + b,      dW = dy^T x summed over the rows

With thousands of rows and thirty features the gradient of W is one long sum for a single tile of the chip.
Cutting the rows into slices makes it a batched product, one slice a tile, and a short sum: the same numbers up
to the order of addition, several times faster on a GPU, and plain PyTorch, so that vmap and autograd know it.
Small layers keep float32 under autocast: the casts, forward and back, cost more than the product. On a CPU see
`products.py`.
"""

import torch
from torch import Tensor, nn

from koopsim.nn.products import affine

SLICES = 8
FEW = 128  # features; above this the product fills the chip by itself
MANY = 256  # rows


def linear(x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    """x W^T + b over the last axis, sliced where that pays."""
    if torch.is_autocast_enabled(x.device.type) and max(W.shape) <= FEW:
        with torch.autocast(x.device.type, enabled=False):
            return linear(x.to(W.dtype), W, b)
    rows = x.numel() // x.shape[-1]
    if not x.is_cuda or max(W.shape) > FEW or rows < MANY or rows % SLICES or torch.is_autocast_enabled("cuda"):
        return affine(x, W, b)
    return sliced_linear(x, W, b)


def sliced_linear(x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    """x W^T + b as a batch of products over slices of the rows, whose number SLICES must divide."""
    rows = x.numel() // x.shape[-1]
    sliced = x.reshape(SLICES, rows // SLICES, x.shape[-1])
    weight = W.mT.expand(SLICES, *W.mT.shape)
    y = torch.bmm(sliced, weight) if b is None else torch.baddbmm(b.expand(SLICES, 1, -1), sliced, weight)
    return y.reshape(*x.shape[:-1], W.shape[0])


class Linear(nn.Linear):
    """nn.Linear with the sliced product."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)
