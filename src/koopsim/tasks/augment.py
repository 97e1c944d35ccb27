"""Augmentation on the device: mirror, move, turn, zoom and blank out, from numbers that were drawn before.

    draws (B, 7) in [0, 1):   mirrored?   right   down   square's column   square's row   angle   size

The last two are drawn only where they are needed (`draws_needed`): a recipe without them is what it was before. The
numbers come from outside, drawn once an epoch from its seed, so a batch is the same again whenever it is asked
for, and a captured step needs no random state.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from koopsim.config import Recipe


def draws_needed(recipe: Recipe) -> int:
    """How many numbers an image needs."""
    return 7 if recipe.rotate or recipe.zoom else 5


def augmented(images: Tensor, draws: Tensor, recipe: Recipe) -> Tensor:
    """(B, C, H, W) bytes with the recipe's augmentation but for the blank square, which is cut from normalised ones."""
    if recipe.rotate or recipe.zoom:
        return turned(images, draws, recipe.flip, recipe.shift, recipe.rotate, recipe.zoom)
    return moved(images, draws, recipe.flip, recipe.shift) if recipe.flip or recipe.shift else images


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


def turned(images: Tensor, draws: Tensor, flip: bool, shift: int, rotate: float, zoom: float) -> Tensor:
    """(B, C, H, W) as floats, turned about the centre by up to `rotate` degrees, grown or shrunk by up to 1 + `zoom`.

    They are mirrored and moved as well, in the same sampling: pixels are mixed from their four neighbours. Beyond the
    edge goes on what is at the edge. Mirrored there, as in `moved`, a digit's foot would show twice.
    """
    height, width = images.shape[-2:]
    right, below = ((draws[:, i] * (2 * shift + 1)).floor() - shift for i in (1, 2))
    angle = (2 * draws[:, 5] - 1) * math.radians(rotate)
    size = (1 + zoom) ** (2 * draws[:, 6] - 1)
    sine, cosine = angle.sin() / size, angle.cos() / size
    # Where a pixel comes from, in coordinates that are -1 and 1 at the edges whatever the image's shape.
    across = torch.stack([cosine, sine * (height / width), right * (2 / width)], 1)
    down = torch.stack([-sine * (width / height), cosine, below * (2 / height)], 1)
    if flip:
        across = torch.where(draws[:, :1] < 0.5, -across, across)
    grid = F.affine_grid(torch.stack([across, down], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images.to(grid.dtype), grid, padding_mode="border", align_corners=False)


def cut_out(images: Tensor, draws: Tensor, size: int) -> Tensor:
    """(B, C, H, W) with a square of `size` pixels set to zero, its centre anywhere in the picture."""
    height, width = images.shape[-2:]
    top = (draws[:, 4:5] * height).long() - size // 2
    left = (draws[:, 3:4] * width).long() - size // 2
    rows = torch.arange(height, device=images.device) - top
    columns = torch.arange(width, device=images.device) - left
    inside = ((rows >= 0) & (rows < size))[:, :, None] & ((columns >= 0) & (columns < size))[:, None, :]
    return images.masked_fill(inside[:, None], 0.0)
