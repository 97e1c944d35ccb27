"""Padding: zeros in between, nothing lost; and its Triton kernels against the tensor operations."""

import pytest
import torch
from torch.nn import functional as F

from koopsim.nn.padding import TILE, padded_kernels, patch_product, patches

CHECK = """
import torch
from torch.nn import functional as F
from koopsim.nn.kernels.padding import channels_last, patches_of, taken

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
for shape, width in [((3, 3, 9, 7), 32), ((1, 1, 16, 16), 16), ((2, 2, 5, 5), 32)]:
    x = torch.randn(shape, device=device)
    wide = F.pad(x, (1, 1, 1, 1))
    got = patches_of(x, width, torch.float32)
    assert got.shape == (shape[0], *shape[2:], width)
    for tap in range(9):
        rows = wide[:, :, tap // 3 : tap // 3 + shape[2], tap % 3 : tap % 3 + shape[3]].permute(0, 2, 3, 1)
        assert torch.equal(got[..., tap * shape[1] : (tap + 1) * shape[1]], rows)
    assert not got[..., 9 * shape[1] :].any()
    assert torch.equal(patches_of(x.mT.contiguous().mT, width, torch.float32), got)
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
    first = padded[0].flatten(1)
    assert torch.equal(first[:5, :27], kernels[0].permute(0, 2, 3, 1).flatten(1))  # row by row, then the channels
    assert torch.isclose(first.abs().sum(), kernels[0].abs().sum())
    for kernel, wide in zip(kernels[1:], padded[1:], strict=True):
        out, into = kernel.shape[:2]
        assert torch.equal(wide[:out, :into], kernel)
        assert torch.isclose(wide.abs().sum(), kernel.abs().sum())
        assert wide.is_contiguous(memory_format=torch.channels_last)
    assert [tuple(w.shape) for w in padded] == [(TILE, 2 * TILE, 1, 1), (TILE, 2 * TILE, 3, 3), (7, TILE, 2, 4)]
    weights = [torch.randn_like(wide) for wide in padded]
    grads = torch.autograd.grad(sum((w * p).sum() for w, p in zip(weights, padded, strict=True)), kernels)
    assert torch.equal(grads[0].permute(0, 2, 3, 1).flatten(1), weights[0].flatten(1)[:5, :27])
    for kernel, weight, grad in list(zip(kernels, weights, grads, strict=True))[1:]:
        assert torch.equal(grad, weight[: kernel.shape[0], : kernel.shape[1]])


@pytest.mark.parametrize(("C", "batch"), [(3, 4), (1, 3)])
def test_patches_times_the_first_kernel_are_its_convolution(C, batch):
    torch.manual_seed(C)
    x = torch.randn(batch, C, 8, 12, dtype=torch.float64)
    kernels = [torch.randn(5, C, 3, 3, dtype=torch.float64, requires_grad=True), torch.randn(2, 5, 1, 1).double()]
    y = patch_product(patches(x, torch.float64), padded_kernels(kernels, torch.float64)[0])[..., :5].permute(0, 3, 1, 2)
    want = F.conv2d(x, kernels[0], padding=1)
    torch.testing.assert_close(y, want)
    weights = torch.randn_like(want)
    (a,), (b,) = (torch.autograd.grad((z * weights).sum(), kernels[0]) for z in (y, want))
    torch.testing.assert_close(a, b)
