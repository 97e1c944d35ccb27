import pytest
import torch
from torch.nn import functional as F

from koopsim.nn.linear import SLICES, linear, sliced_linear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 32 * SLICES), (33 * SLICES,)])
def test_the_sliced_product_is_the_product(shape, bias):
    x = torch.randn(*shape, 5, dtype=torch.float64, requires_grad=True)
    W = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    b = torch.randn(3, dtype=torch.float64, requires_grad=True) if bias else None
    inputs = [t for t in (x, W, b) if t is not None]
    results = []
    for apply in (sliced_linear, F.linear, linear):
        y = apply(x, W, b)
        results.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(results[2], results[1])
