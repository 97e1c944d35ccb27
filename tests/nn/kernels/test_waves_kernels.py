"""Sines and cosines in one pass against PyTorch's, through Triton's interpreter or on CUDA."""

CHECK = """
import torch
from koopsim import build
from koopsim.config import FourierConfig, MLPConfig, SIMConfig
from koopsim.nn import folded
from koopsim.nn.kernels.waves import waves

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
for shape in [(2, 37, 12), (50, 16), (3, 5)]:
    p = (300 * torch.randn(shape, device=device)).requires_grad_()
    slow, fast = torch.cat([p.sin(), p.cos()], dim=-1), waves(p, torch.float32)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-6)
    weights = torch.randn_like(slow)
    (a,), (b,) = (torch.autograd.grad((phi * weights).sum(), p) for phi in (fast, slow))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
assert waves(p, torch.bfloat16).dtype == torch.bfloat16

p = torch.randn(20, 4, 3, device=device, requires_grad=True)
stacked = torch.vmap(lambda q: waves(q, torch.float32), in_dims=1)(p)
torch.testing.assert_close(stacked, torch.cat([p.sin(), p.cos()], dim=-1).transpose(0, 1), rtol=0, atol=1e-6)
(a,), (b,) = (torch.autograd.grad(phi.pow(3).sum(), p) for phi in (stacked, torch.cat([p.sin(), p.cos()], dim=-1)))
torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)

# the whole folded two-tier network with the kernels and without
config = SIMConfig(MLPConfig(2, 12), lift_dim=10, fourier=FourierConfig(14, 0.3), hidden=9, outputs=3)
model, points = build(config).to(device), torch.rand(512, 2, device=device)
expected = torch.autograd.grad(model(points).square().sum(), list(model.parameters()))
folded.fuses = lambda x: True
got = torch.autograd.grad(folded.folded(model, points).square().sum(), list(model.parameters()))
for a, b in zip(got, expected):
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
"""


def test_sines_and_cosines_in_one_pass(in_triton):
    in_triton(CHECK)
