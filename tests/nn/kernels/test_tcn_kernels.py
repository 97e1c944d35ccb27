"""The Triton kernels against the readable blocks, on a CPU through Triton's interpreter, on CUDA as they run."""

import pytest
import torch

from koopsim.nn import TCN

CHECK = """
import os
import torch
from koopsim.nn import TCN

device = "cuda" if torch.cuda.is_available() else "cpu"
cases = [(0, 2, 40, 2, 10, 8, 1), (0, 1, 33, 2, 4, 3, 2), (0, 1, 70, 3, 16, 2, 1)]  # the interpreter is slow
if device == "cuda":  # all layers in one kernel, where there are clusters
    cases += [(0, 3, 70, 4, 16, 2, 1), (0, 2, 40, 3, 10, 8, 1)]
    cases += [(1, 2, 40, 3, 10, 8, 1), (1, 3, 520, 8, 10, 8, 1), (1, 1, 5, 1, 4, 2, 2), (1, 5, 70, 2, 6, 4, 6)]
for clusters, batch, length, levels, channels, kernel, inputs in cases:
    os.environ["KOOPSIM_CLUSTERS"] = str(clusters)
    torch.manual_seed(batch)
    tcn = TCN(5, levels, channels, kernel, inputs).to(device)
    shape = (batch, length) if inputs == 1 else (batch, length, inputs)
    x = torch.randn(shape, device=device, requires_grad=True)
    rows = x.unsqueeze(-1) if inputs == 1 else x
    weights = torch.randn(batch, length, channels, device=device)
    wanted = [x, *tcn.blocks.parameters()]
    slow = tcn.blocks(rows)
    fast = tcn.stacked(rows)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    for p, a, b in zip(
        wanted, torch.autograd.grad((fast * weights).sum(), wanted), torch.autograd.grad((slow * weights).sum(), wanted)
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5 * max(1.0, float(b.abs().max())))
with torch.no_grad():
    tcn.blocks[1].first.bias[0] = torch.nan
assert tcn.stacked(rows).isnan().any(), "a network that has diverged must not look alive"
"""


def test_kernels_agree_with_the_readable_blocks(in_triton):
    in_triton(CHECK)


def test_the_kernels_stay_out_of_the_way_on_a_cpu():
    assert not TCN(4).fused(torch.zeros(1, 8, 1))


@pytest.mark.parametrize("models", [1, 3, 256])
@pytest.mark.parametrize("rows", [1, 32, 33, 520, 10400])
def test_parts_of_the_gradient_are_whole_tiles(models, rows):
    kernels = pytest.importorskip("koopsim.nn.kernels.tcn", exc_type=ImportError)
    chunk, parts = kernels._chunk(models, rows, True)
    assert chunk % kernels.TILE == 0
    assert chunk * (parts - 1) < rows <= chunk * parts
    assert parts <= max(2, 1.5 * (16 if rows < 8192 else 64) / models)
