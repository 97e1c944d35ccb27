"""Attention by the kernels is torch's, forward and backward, however q, k and v lie in memory."""

import pytest

SCRIPT = """
import torch
import torch.nn.functional as F
from torch.library import opcheck
from koopsim.implicit.kernels.attention import attention, fits

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

def alike(got, want, size):
    far = float((got - want).abs().max() / want.abs().max())
    assert far <= size, far

for (B, T, H, D, E), block in ((size, block) for size in SIZES for block in (32, 64)):
    whole = torch.randn(B, T, H * (2 * D + E), device=device, dtype=torch.float64)
    q, k, v = (t.view(B, T, H, -1) for t in whole.split([H * D, H * D, H * E], dim=2))
    exact = [t.clone().requires_grad_() for t in (q, k, v)]
    short = [t.float().requires_grad_() for t in whole.float().split([H * D, H * D, H * E], dim=2)]
    want = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in exact), is_causal=True, scale=0.3).transpose(1, 2)
    assert fits(short[0].view(B, T, H, D), short[2].view(B, T, H, E))
    got, _ = attention(*(t.view(B, T, H, -1) for t in short), 0.3, block)
    alike(got, want, 2e-6)
    do = torch.randn(E, H, T, B, device=device, dtype=torch.float64).permute(3, 2, 1, 0)  # not contiguous
    wanted = torch.autograd.grad(want, exact, do)
    for g, w in zip(torch.autograd.grad(got, short, do.float(), retain_graph=True), wanted):
        alike(g.view(w.shape), w, 5e-6)
    rows = torch.autograd.grad(got, short, torch.stack([do, 2 * do]).float(), is_grads_batched=True)
    for g, w in zip(rows, wanted):
        alike(g[1].view(w.shape), 2 * w, 5e-6)
q = torch.randn(1, 5, 2, 8, device=device, requires_grad=True)
opcheck(attention, (q, q.detach(), q.detach(), 0.5, 32), test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))
"""  # noqa: E501


@pytest.mark.parametrize(
    "sizes",
    ["((2, 70, 3, 48, 8), (1, 5, 1, 8, 8))", pytest.param("((2, 520, 2, 48, 8),)", marks=pytest.mark.slow)],
    ids=["small", "copy memory"],
)
def test_the_kernels_are_torchs_attention(sizes, in_triton):
    in_triton(SCRIPT.replace("SIZES", sizes))
