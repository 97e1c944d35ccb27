"""The cross-entropy kernel against PyTorch's loss, on a CPU through Triton's interpreter, on CUDA as it runs."""

from importlib.util import find_spec

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from koopsim.nn.cross_entropy import cross_entropy, fused
from koopsim.nn.transforms import differentiated

CHECK = """
import torch
from torch.func import vmap
from torch.nn import functional as F
from koopsim.nn import cross_entropy as module
from koopsim.nn.kernels import cross_entropy as cross_entropy_kernels

device = "cuda" if torch.cuda.is_available() else "cpu"

def both(loss, x, *rest):
    x = x.detach().requires_grad_()
    value = loss(x, *rest)
    return value, *torch.autograd.grad(3 * value.sum(), x)

for parts, rows, C, scale, smoothing in [
    (128, 520, 10, 1, 0.0), (128, 37, 10, 30, 0.1), (2, 300, 10, 3, 0.0), (128, 64, 64, 1, 0.3), (128, 1, 3, 1, 0.0),
]:
    cross_entropy_kernels.PARTS = parts
    torch.manual_seed(rows)
    x, y = scale * torch.randn(rows, C, device=device), torch.randint(0, C, (rows,), device=device)
    fast = both(lambda x: module.fused_loss(x, y, smoothing), x)
    slow = both(lambda x: F.cross_entropy(x, y, label_smoothing=smoothing), x)
    exact = both(lambda x: F.cross_entropy(x, y, label_smoothing=smoothing), x.double())
    for a, b, e in zip(fast, slow, exact):
        assert a.shape == b.shape
        near, twin = (float((t.double() - e).abs().max() / e.abs().max()) for t in (a, b))
        assert near < 2e-6 and near <= 3 * twin + 5e-7, (rows, C, near, twin)

y = torch.tensor([0, 2], device=device)
far = torch.tensor([[0.0, -torch.inf, 1.0], [500.0, -500.0, 499.0]], device=device)
for a, b in zip(both(lambda x: module.fused_loss(x, y, 0.0), far), both(F.cross_entropy, far, y)):
    torch.testing.assert_close(a, b)
for bad in (-1, 3, 2**32):
    assert module.fused_loss(far, torch.tensor([0, bad], device=device), 0.0).isnan(), bad
assert module.fused_loss(torch.full((2, 3), torch.nan, device=device), y, 0.0).isnan()

kept, module.fused = module.fused, lambda logits, targets: True
models, rows, C = 3, 40, 10
x = torch.randn(models, rows, C, device=device)
for y, axis in ((torch.randint(0, C, (models, rows), device=device), 0), (torch.arange(rows, device=device) % C, None)):
    losses, dx = both(vmap(lambda x, y: module.cross_entropy(x, y, 0.1), (0, axis)), x, y)
    for m in range(models):
        loss, d = both(lambda x: F.cross_entropy(x, y if axis is None else y[m], label_smoothing=0.1), x[m])
        torch.testing.assert_close(losses[m], loss)
        torch.testing.assert_close(dx[m], d)
module.fused = kept  # other tests may be in this process
"""


def test_the_kernel_is_the_loss_it_stands_for(in_triton):
    in_triton(CHECK)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_when_the_kernel_is_used():
    with FakeTensorMode():
        x, y = torch.empty(4, 10, device="cuda"), torch.empty(4, device="cuda", dtype=torch.int64)
        assert fused(x, y)
        assert not fused(x.double(), y)
        assert not fused(x.bfloat16(), y)
        assert not fused(x, torch.empty(3, device="cuda", dtype=torch.int64)), "the twin says what is wrong"
        assert not fused(x, torch.empty(4, 10, device="cuda")), "shares instead of classes"
        assert not fused(torch.empty(4, 65, device="cuda"), y)
        with torch.no_grad():
            assert not fused(x, y)
    assert not fused(torch.zeros(4, 10), torch.zeros(4, dtype=torch.int64))


def test_on_a_cpu_it_is_the_twin():
    x, y = torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])
    assert torch.equal(cross_entropy(x, y, 0.2), F.cross_entropy(x, y, label_smoothing=0.2))


def test_differentiated_knows_the_gradient_inside_from_the_one_outside():
    found = []

    def seen(x: torch.Tensor) -> torch.Tensor:
        found.append(differentiated(x))
        return x.square().sum()

    x = torch.randn(3, 2)
    torch.func.vmap(torch.func.grad(seen))(x)
    torch.func.grad(lambda x: torch.func.vmap(seen)(x).sum())(x)
    torch.func.vmap(seen)(x)
    assert found == [True, False, False]
