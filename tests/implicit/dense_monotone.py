"""The linear part of a monDEQ written out: dense matrices from plain convolutions of images, no Fourier transform."""

import torch
import torch.nn.functional as F
from torch import Tensor

from koopsim.implicit.monotone import MonDEQ
from koopsim.implicit.monotone_operator import SMALLEST_SCALE


def matrix_of(linear, into: tuple[int, ...], dtype=torch.float64) -> Tensor:
    """The matrix of a linear map of images (B, C, H, W), column by column."""
    size = into[0] * into[1] * into[2]
    return linear(torch.eye(size, dtype=dtype).view(size, *into)).flatten(1).T


def circular(kernel: Tensor):
    reach = kernel.shape[-1] // 2
    return lambda z: F.conv2d(F.pad(z, (reach,) * 4, mode="circular") if reach else z, kernel)


def downwards(kernel: Tensor):
    """Circular, taken at pixels 1, 3, 5, ...; below, those are pixels 1, 2, 3, ... and pixel 0 hears nothing."""
    return lambda z: F.pad(circular(kernel)(z)[:, :, 1::2, 1::2], (1, 0, 1, 0))


def dense(model: MonDEQ) -> tuple[Tensor, Tensor]:
    """(W, inside) over all tiers, in the order of the images flattened one after the other."""
    operator = model.operator
    shapes = [(t.channels, t.grid.height, t.grid.width) for t in model.tiers]

    def norm(name, i):
        """Of A or K: exp(log_g), or sqrt(g)."""
        if operator.scale == "exp":
            return getattr(operator, f"log_{name}")[i].detach().exp()
        return max(abs(getattr(operator, name)[i].item()), SMALLEST_SCALE) ** 0.5

    def scaled(kernel, size):
        return size * kernel / kernel.square().sum().sqrt()

    A_rows, B_blocks, inside = [], [], []
    for i, shape in enumerate(shapes):
        A, B = operator.A[i].detach(), operator.B[i].detach()
        if not model.connected:
            A, B = scaled(A, norm("g", i)), scaled(B, operator.h[i].detach())
        row = [torch.zeros(_size(shape), _size(s), dtype=A.dtype) for s in shapes]
        row[i] = matrix_of(circular(A), shape, A.dtype)
        if i:
            K = scaled(operator.K[i - 1].detach(), norm("g_between", i - 1))
            row[i - 1] = matrix_of(downwards(K), shapes[i - 1], A.dtype)
        A_rows.append(torch.cat(row, dim=1))
        B_blocks.append(matrix_of(circular(B), shape, A.dtype))
        mask = torch.ones(shape, dtype=A.dtype)
        if not model.connected:
            mask = F.pad(mask[:, 2:, 2:], (1, 1, 1, 1))
        inside.append(mask.flatten())
    A, B = torch.cat(A_rows), torch.block_diag(*B_blocks)
    gram = A.T @ A
    tier = torch.repeat_interleave(torch.arange(len(shapes)), torch.tensor([_size(s) for s in shapes]))
    below, same = tier[:, None] > tier[None], tier[:, None] == tier[None]
    one_sided = gram * same + 2 * gram * below  # what is above moves below: the symmetric part stays
    W = (1 - operator.monotonicity) * torch.eye(len(A), dtype=A.dtype) - one_sided + B - B.T
    return W, torch.cat(inside)


def flat(model: MonDEQ, z: Tensor) -> Tensor:
    """A state (B, D) in the order of the dense matrix."""
    return torch.cat([image.flatten(1) for image in model.images(z)], dim=1)


def order(model: MonDEQ) -> Tensor:
    """The place of each dense entry in a state: flat(model, z) = z[:, order]."""
    D = model.inside.shape[0]
    return flat(model, torch.arange(D, dtype=torch.float64).unsqueeze(0))[0].long()


def _size(shape: tuple[int, ...]) -> int:
    return shape[0] * shape[1] * shape[2]
