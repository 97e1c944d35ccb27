"""The taps as one strided view, against the slices anyone would write."""

import pytest
import torch
from torch.func import vmap
from torch.nn import functional as F

from koopsim.nn.taps import Taps


def by_slices(x, kernel, dilation):
    past = F.pad(x, (0, 0, (kernel - 1) * dilation, 0))
    return torch.cat([past[:, k * dilation : k * dilation + x.shape[1]] for k in range(kernel)], dim=-1)


@pytest.mark.parametrize(("kernel", "dilation", "length"), [(8, 1, 20), (3, 4, 9), (2, 16, 5), (1, 1, 4)])
def test_taps_are_the_slices_and_their_gradient_is_exact(kernel, dilation, length):
    x = torch.randn(2, length, 3, dtype=torch.float64, requires_grad=True)
    assert torch.equal(Taps.apply(x, kernel, dilation), by_slices(x, kernel, dilation))
    assert torch.autograd.gradcheck(lambda x: Taps.apply(x, kernel, dilation), x)
    assert torch.autograd.gradgradcheck(lambda x: Taps.apply(x, kernel, dilation).square(), x)


def test_a_stack_of_taps_with_the_stack_anywhere():
    x = torch.randn(2, 9, 4, 3, dtype=torch.float64, requires_grad=True)  # models on axis 2
    found = vmap(lambda x: Taps.apply(x, 3, 2), in_dims=2)(x)
    expected = torch.stack([by_slices(x[:, :, p], 3, 2) for p in range(4)])
    assert torch.equal(found, expected)
    weights = torch.randn_like(found)
    mine, theirs = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (found, expected))
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
