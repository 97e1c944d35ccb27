"""Bias and ReLU in one pass against PyTorch's two, through Triton's interpreter or on CUDA."""

CHECK = """
import torch
from torch.nn import functional as F
from koopsim.nn import folded
from koopsim.nn.kernels import bias_relu as bias_relu_kernels
from koopsim.nn.kernels.bias_relu import bias_relu

bias_relu_kernels.PARTS = 6  # few, so that a program has several tiles
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
for rows, width in [(200, 32), (37, 11), (1000, 48)]:
    x = torch.randn(2, rows, width, device=device, requires_grad=True)
    b = torch.randn(width, device=device, requires_grad=True)
    slow, fast = F.relu(x + b), bias_relu(x, b)
    torch.testing.assert_close(fast, slow, rtol=0, atol=0)
    weights = torch.randn_like(slow)
    for a, c in zip(*(torch.autograd.grad((y * weights).sum(), [x, b]) for y in (fast, slow))):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-4)

# the interpreter cuts where a GPU rounds
assert bias_relu(torch.full((8, 4), torch.nan, device=device), torch.zeros(4, device=device)).isnan().all()
short = bias_relu(x.bfloat16(), b)
assert short.dtype == torch.bfloat16
torch.testing.assert_close(short.float(), F.relu(x.bfloat16().float() + b), rtol=2**-7, atol=0)

xs, bs = torch.randn(3, 70, 5, device=device), torch.randn(3, 5, device=device, requires_grad=True)
stacked = torch.vmap(bias_relu)(xs, bs)
shared = torch.vmap(bias_relu, in_dims=(None, 0))(xs[0], bs)
for i in range(3):
    torch.testing.assert_close(stacked[i], F.relu(xs[i] + bs[i]), rtol=0, atol=0)
    torch.testing.assert_close(shared[i], F.relu(xs[0] + bs[i]), rtol=0, atol=0)
(grad,) = torch.autograd.grad(stacked.square().sum(), bs)
(twin,) = torch.autograd.grad(F.relu(xs + bs[:, None]).square().sum(), bs)
torch.testing.assert_close(grad, twin, rtol=1e-5, atol=1e-5)

# the whole folded network with the kernels and without
from koopsim import build
from koopsim.config import FourierConfig, IdentityConfig, SIMConfig
model = build(SIMConfig(IdentityConfig(2), lift_dim=2, fourier=FourierConfig(16, 0.1), hidden=9, outputs=3)).to(device)
points = torch.rand(512, 2, device=device)
expected = torch.autograd.grad(model(points).square().sum(), list(model.parameters()))
folded.fuses = lambda x: True
got = torch.autograd.grad(folded.folded(model, points).square().sum(), list(model.parameters()))
for a, c in zip(got, expected):
    torch.testing.assert_close(a, c, rtol=1e-3, atol=1e-4)
"""


def test_bias_and_relu_in_one_pass(in_triton):
    in_triton(CHECK)
