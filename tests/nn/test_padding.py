"""Padding: zeros in between, nothing lost; and its Triton kernels against the tensor operations."""

import pytest
import torch

from koopsim.nn.padding import TILE, padded_images, padded_kernels

CHECK = """
import torch
from torch.nn import functional as F
from koopsim.nn.kernels.padding import channels_last, taken

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
for shape, channels in [((3, 3, 9, 7), 8), ((1, 1, 16, 16), 8), ((2, 10, 5, 5), 24), ((2, 8, 4, 4), 8)]:
    x = torch.randn(shape, device=device)
    for dtype, ulp in ((torch.float32, 0.0), (torch.bfloat16, 2**-7)):  # the interpreter cuts off, it does not round
        y = channels_last(x, channels, dtype)
        expected = F.pad(x, (0, 0, 0, 0, 0, channels - shape[1])).to(dtype)
        torch.testing.assert_close(y, expected, rtol=ulp, atol=0.0)
        assert y.is_contiguous(memory_format=torch.channels_last)
    turned = channels_last(x.mT, channels, torch.float32)  # not contiguous
    assert torch.equal(turned, channels_last(x, channels, torch.float32).mT)
for n in (1, 511, 512, 1300):
    x = torch.randn(700, device=device)
    index = torch.randint(-1, 700, (n,), device=device)
    index[0] = -1
    y = torch.where(index < 0, 0, x[index.clamp(min=0)])
    assert torch.equal(taken(x, index, torch.float32), y)
    torch.testing.assert_close(taken(x, index, torch.bfloat16), y.to(torch.bfloat16), rtol=2**-7, atol=0.0)
"""


def test_the_kernels_are_the_tensor_operations(in_triton):
    in_triton(CHECK)


@pytest.mark.parametrize("together", [False, True])
def test_kernels_are_padded_with_zeros_and_gradients_come_back(together):
    """Whether they have storages of their own or, as a trainer keeps them, lie in one vector among others."""
    shapes = [(5, 3, 3, 3), (5, 20, 3, 3), (7, 5, 2, 4)]
    kernels = [torch.randn(shape) for shape in shapes]
    if together:
        between = [torch.randn(11), *(t for k in kernels for t in (k.flatten(), torch.randn(3)))]
        flat, starts = torch.cat(between), [11, 11 + 135 + 3, 11 + 135 + 3 + 900 + 3]
        kernels = [flat[s : s + k.numel()].view_as(k) for s, k in zip(starts, kernels, strict=True)]
    for kernel in kernels:
        kernel.requires_grad_()
    padded = padded_kernels(kernels, torch.float32)
    for kernel, wide in zip(kernels, padded, strict=True):
        out, into = kernel.shape[:2]
        assert torch.equal(wide[:out, :into], kernel)
        assert torch.isclose(wide.abs().sum(), kernel.abs().sum())
        assert wide.is_contiguous(memory_format=torch.channels_last)
    assert [tuple(w.shape) for w in padded] == [(TILE, 8, 3, 3), (TILE, 2 * TILE, 3, 3), (7, TILE, 2, 4)]
    weights = [torch.randn_like(wide) for wide in padded]
    grads = torch.autograd.grad(sum((w * p).sum() for w, p in zip(weights, padded, strict=True)), kernels)
    for kernel, weight, grad in zip(kernels, weights, grads, strict=True):
        assert torch.equal(grad, weight[: kernel.shape[0], : kernel.shape[1]])


def test_a_channel_is_not_padded_when_there_are_eight():
    x = torch.randn(2, 8, 4, 4)
    assert torch.equal(padded_images(x, torch.float32), x)
    assert padded_images(x[:, :3], torch.float32).shape == (2, 8, 4, 4)
