"""The Triton kernels of a monDEQ against their readable twins, through Triton's interpreter or on CUDA."""

import pytest

PREPARE = """
import torch
from koopsim.implicit import inverse_kernels, splitting_kernels
from koopsim.implicit.inverse import reflected_resolvent
from koopsim.implicit.monotone import MonDEQ
from koopsim.implicit.splitting import Projection, Storage, advance

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
    rounded = reflected_resolvent(view, a, "kernel", torch.float16)
    assert rounded.stride(1) % 8 == 0
    torch.testing.assert_close(rounded, got.half(), rtol=1e-3, atol=1e-6)
"""

STEPS = """
import itertools

choices = (True, False)
for (D, B), kind in itertools.product([(130, 5), (8, 131)], ("float32", "float16", "paired")):
    storage = Storage(torch.float32 if kind == "float32" else torch.float16, kind == "paired")
    t, before, c = torch.randn(3, D, B)
    t[0, 0] = float("nan")
    t, before = t.to(storage.dtype), before.to(storage.dtype)
    for keep in ((torch.rand(D, 1) > 0.3).float(), (torch.rand(D, B) > 0.3).view(torch.uint8)):
        for rectify, reflect, end, earlier in itertools.product(choices, choices, choices, (None, before)):
            keep[0] = keep[D // 2] = 1  # the nan is seen
            want, norms = advance(t, c, Projection(keep, rectify), storage, reflect, end, earlier)
            assert want.dtype == (torch.float32 if end else storage.dtype)
            on = [x if x is None else x.to(device) for x in (t, c, keep, earlier)]
            got, sums = splitting_kernels.advance(
                on[0], on[1], on[2], storage.dtype, storage.paired, rectify, reflect, end, on[3]
            )
            close = {"rtol": 1e-3, "atol": 1e-5} if kind != "float32" and not end else {}
            torch.testing.assert_close(got.cpu(), want, equal_nan=True, **close)
            assert (norms is None) == (sums is None)
            if norms is not None:
                torch.testing.assert_close(sums.cpu(), norms, equal_nan=True)
"""

MODEL = """
from koopsim.implicit import inverse, splitting
from unittest.mock import patch

inverse_kernels.TILE = 8
inverse_kernels.SMALLEST = 8
HALF = Storage(torch.float16)
for tiers, storage in (((9,), Storage(torch.float32)), ((9,), Storage(torch.float16, paired=True)), ((2, 3), HALF)):
    full = storage.dtype == torch.float32
    model = MonDEQ((1, 4, 4), tiers, tol=1e-4 if full else 1e-2, outputs=3).to(device)
    model._storage = lambda like: storage
    x = torch.randn(3, 1, 4, 4, device=device)

    def gradients():
        model.zero_grad()
        out = model(x)
        out.square().sum().backward()
        return [out.detach(), *[p.grad.clone() for p in model.parameters()]]

    def kernel_steps(t, c, P, s, reflect, end, before=None):
        return splitting_kernels.advance(t, c, P.keep, s.dtype, s.paired, P.rectify, reflect, end, before)

    def plain_steps(t, c, P, s, reflect, end, before=None):
        P = Projection(P.keep.cpu(), P.rectify)
        done = advance(t.cpu(), c.cpu(), P, s, reflect, end, None if before is None else before.cpu())
        return [None if v is None else v.to(t.device) for v in done]

    with patch.object(inverse, "_fitting", lambda W: "lu"), patch.object(splitting, "advance", plain_steps):
        want = gradients()
    with patch.object(inverse, "_fitting", lambda W: "kernel"), patch.object(splitting, "advance", kernel_steps):
        got = gradients()
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=(1e-4 if full else 3e-3) * max(1.0, float(b.abs().max())))
"""


@pytest.mark.parametrize("check", [INVERSES, STEPS, MODEL], ids=["inverses", "steps", "model"])
def test_kernels_are_their_twins(check, in_triton):
    in_triton(PREPARE + check)
