"""Both ends of a monDEQ: how an image enters the state, and how features leave it.

    q[p] = U patch(p) + b  inside,   0  on the border          patch(p): the 3 x 3 pixels around p, 0 beyond the image

A convolution of PyTorch's has the batch first; a state has it last, and turning one into the other would cost more than
the convolution. Here patches are laid out like a state, with a channel of ones for b, and one product does it all.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ALIGNED = 8  # channels of a patch are rounded up to this: tensor cores like it


def inject(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(H, W, C, B), (out, C, k, k), (out,) -> (H + 2, W + 2, out, B)"""
    (height, width, _, B), k = x.shape, weight.shape[3]
    reach = k // 2
    around = F.pad(x, (0, 0, 0, 0, reach, reach, reach, reach))
    shifts = [around[i : i + height, j : j + width] for i in range(k) for j in range(k)]
    patches = torch.cat([*shifts, x.new_ones(height, width, 1, B)], dim=2)
    kernel = torch.cat([weight.permute(0, 2, 3, 1).flatten(1), bias.unsqueeze(1)], dim=1)
    more = -kernel.shape[1] % ALIGNED
    patches = F.pad(patches, (0, 0, 0, more, 1, 1, 1, 1)).flatten(0, 1)
    q = torch.bmm(F.pad(kernel, (0, more)).expand(len(patches), -1, -1), patches)
    return q.view(height + 2, width + 2, -1, B)


def pooled(image: Tensor, size: int) -> Tensor:
    """Means over size x size pixels, what is left over dropped: (H, W, C, B) -> (H // size, W // size, C, B)"""
    return _Pooled.apply(image, size)


class _Pooled(torch.autograd.Function):
    """PyTorch's gradient of slices and means would write the state some six times; this one, twice."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, size: int) -> Tensor:
        ctx.shape, ctx.size = image.shape, size
        return _patches(image, size).mean((1, 3))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        g = grads[0].new_zeros(ctx.shape)
        _patches(g, ctx.size).copy_((grads[0] / ctx.size**2)[:, None, :, None])
        return g, None


def _patches(image: Tensor, size: int) -> Tensor:
    """A view: (H // size, size, W // size, size, C, B)"""
    rows, columns = image.shape[0] // size, image.shape[1] // size
    return image[: rows * size, : columns * size].unflatten(1, (columns, size)).unflatten(0, (rows, size))
