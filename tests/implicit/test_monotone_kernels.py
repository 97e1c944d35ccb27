"""The Triton kernels of a monDEQ against their readable twins, through Triton's interpreter or on CUDA."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

PREPARE = """
import torch
from koopsim.implicit import inverse_kernels, splitting_kernels
from koopsim.implicit.inverse import reflected_resolvent
from koopsim.implicit.monotone import MonDEQ
from koopsim.implicit.splitting import Projection, advance

device = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = [(1, 64), (21, 64), (21, 16), (32, 16)]  # the interpreter is slow
if device == "cuda":
    SIZES += [(56, 64), (60, 64), (64, 64), (81, 64), (87, 64), (128, 64)]
torch.manual_seed(0)
"""

INVERSES = """
for n, tile in SIZES:  # (rows, of a tile): beyond a tile there are four
    inverse_kernels.TILE = tile
    A, R = torch.randn(2, 2, n, n, dtype=torch.complex128)
    W = -A.mH @ A / 2 - 2 * (R - R.mH)
    parts = torch.zeros(2, 2, n + 2, 2, n + 1)  # as a tier keeps it: the block is a strided view
    parts[:, 0, :n, 0, :n], parts[:, 1, :n, 0, :n] = W.real, W.imag
    view = parts.to(device)[:, :, :n, 0, :n]
    for a in (torch.tensor(0.4, device=device), 1.5)[: 1 + (n < 32)]:
        want = reflected_resolvent(torch.stack([W.real, W.imag], dim=1), float(a), "lu")
        got = reflected_resolvent(view, a, "kernel")
        assert got.shape == (2, 2 * n, 2 * n) and got.stride(1) % 8 == 0
        torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=1e-4, msg=lambda m: f"{n} {tile}: {m}")
"""

STEPS = """
for D, B in [(130, 5), (7, 131)]:
    t, before, c = torch.randn(3, D, B)
    t[0, 0] = float("nan")
    for keep in ((torch.rand(D, 1) > 0.3).float(), (torch.rand(D, B) > 0.3).view(torch.uint8)):
        for rectify in (True, False):
            for reflect in (True, False):
                for earlier in (None, before):
                    keep[0] = 1  # the nan is seen
                    want, norms = advance(t, c, Projection(keep, rectify), reflect, earlier)
                    on = [x if x is None else x.to(device) for x in (t, c, keep, earlier)]
                    got, sums = splitting_kernels.advance(on[0], on[1], on[2], rectify, reflect, on[3])
                    torch.testing.assert_close(got.cpu(), want, equal_nan=True)
                    assert (norms is None) == (sums is None)
                    if norms is not None:
                        torch.testing.assert_close(sums.cpu(), norms, equal_nan=True)
"""

MODEL = """
from koopsim.implicit import inverse, splitting
from unittest.mock import patch

inverse_kernels.TILE = 8
inverse_kernels.SMALLEST = 8
for tiers in ((9,), (2, 3)):
    model = MonDEQ((1, 4, 4), tiers, tol=1e-4, outputs=3).to(device)
    x = torch.randn(3, 1, 4, 4, device=device)

    def gradients():
        model.zero_grad()
        out = model(x)
        out.square().sum().backward()
        return [out.detach(), *[p.grad.clone() for p in model.parameters()]]

    def kernel_steps(t, c, P, reflect, before):
        return splitting_kernels.advance(t, c, P.keep, P.rectify, reflect, before)

    def plain_steps(t, c, P, reflect, before):
        return [None if v is None else v.to(t) for v in advance(*[u.cpu() for u in (t, c)],
            Projection(P.keep.cpu(), P.rectify), reflect, None if before is None else before.cpu())]

    with patch.object(inverse, "_fitting", lambda W: "lu"), patch.object(splitting, "advance", plain_steps):
        want = gradients()
    with patch.object(inverse, "_fitting", lambda W: "kernel"), patch.object(splitting, "advance", kernel_steps):
        got = gradients()
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * max(1.0, float(b.abs().max())))
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("check", [INVERSES, STEPS, MODEL], ids=["inverses", "steps", "model"])
def test_kernels_are_their_twins(check):
    environment = dict(os.environ)
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    code = PREPARE + check + '\nprint("kernels agree")'
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert "kernels agree" in done.stdout, done.stderr[-3000:]
