"""Augmentation on the device: mirror, move and blank out, from numbers that were drawn before.

    draws (B, 5) in [0, 1):   mirrored?   right   down   square's column   square's row

The numbers come from outside, drawn once an epoch from its seed, so a batch is the same again whenever it is asked
for, and a captured step needs no random state.
"""

import torch
from torch import Tensor

DRAWS = 5


def moved(images: Tensor, draws: Tensor, flip: bool, shift: int) -> Tensor:
    """(B, C, H, W) of any type, mirrored with probability 1/2 and moved by up to `shift` pixels each way.

    What moves in from outside is the picture mirrored at its edge.
    """
    height, width = images.shape[-2:]
    reach = 2 * shift + 1
    rows = torch.arange(height, device=images.device) - shift + (draws[:, 2:3] * reach).long()
    columns = torch.arange(width, device=images.device) - shift + (draws[:, 1:2] * reach).long()
    rows, columns = _reflected(rows, height), _reflected(columns, width)
    if flip:
        columns = torch.where(draws[:, :1] < 0.5, width - 1 - columns, columns)
    sample = torch.arange(len(images), device=images.device)[:, None, None, None]
    channel = torch.arange(images.shape[1], device=images.device)[:, None, None]
    return images[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _reflected(index: Tensor, size: int) -> Tensor:
    last = size - 1
    return last - (last - index.abs()).abs()


def cut_out(images: Tensor, draws: Tensor, size: int) -> Tensor:
    """(B, C, H, W) with a square of `size` pixels set to zero, its centre anywhere in the picture."""
    height, width = images.shape[-2:]
    top = (draws[:, 4:5] * height).long() - size // 2
    left = (draws[:, 3:4] * width).long() - size // 2
    rows = torch.arange(height, device=images.device) - top
    columns = torch.arange(width, device=images.device) - left
    inside = ((rows >= 0) & (rows < size))[:, :, None] & ((columns >= 0) & (columns < size))[:, None, :]
    return images.masked_fill(inside[:, None], 0.0)
