"""The Triton kernels of a monDEQ against their readable twins, through Triton's interpreter or on CUDA."""

import pytest

PREPARE = """
import torch
from koopsim.implicit.kernels import inverse as inverse_kernels, splitting as splitting_kernels
from koopsim.implicit.inverse import reflected_resolvent
from koopsim.implicit.monotone import MonDEQ, Splitting
from koopsim.implicit.splitting import Places, Projection, Storage, Units, advance
from koopsim.implicit.stored import move

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
"""

INVERSES = """
def check(n, F, a, crowd=inverse_kernels.CROWD, norm=None):
    inverse_kernels.CROWD = crowd  # 0: a program has a row of tiles
    A, R = torch.randn(2, F, n, n, dtype=torch.complex128) / n**0.5
    W = -A.mH @ A - R + R.mH
    W = W if norm is None else W * (norm / torch.linalg.matrix_norm(W, 2)[:, None, None])
    want = reflected_resolvent(torch.stack([W.real, W.imag], dim=1), float(a), "lu")
    parts = torch.full((F, 2, n + 2, 2, n + 1), float("nan"))  # as a tier keeps it: the block is a strided view
    parts[:, 0, :n, 0, :n], parts[:, 1, :n, 0, :n] = W.real, W.imag
    view = parts.to(device)[:, :, :n, 0, :n]
    for W in (view, view.mT.contiguous().mT)[: 1 + (n in (5, 17))]:
        got = reflected_resolvent(W, a, "kernel")
        assert got.shape == (F, 2 * n, 2 * n) and got.stride(1) % 8 == 0
        # Entries are up to 1, and LU in float32 is wrong by 5e-7.
        torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=3e-6, msg=lambda m: f"{n}, {crowd}: {m}")
    if n in (5, 31, 33, 60) or device == "cuda":
        rounded = reflected_resolvent(view, a, "kernel", torch.float16)
        assert rounded.dtype == torch.float16 and rounded.stride(1) % 8 == 0
        torch.testing.assert_close(rounded, got.half(), rtol=1e-3, atol=3e-6)

tensor = torch.tensor(0.4, device=device)
for n in (1, 5, 16, 17, 31, 32, 33):
    check(n, 2, tensor, norm=30)
    check(n, 1, 1.5, crowd=0)
for n in (60, 64, 81, 128) if device == "cuda" else (50,):  # four tiles; the interpreter is slow
    check(n, 1, tensor, crowd=0, norm=30 if n in (50, 81) else None)
    if device == "cuda":
        check(n, 50, 1.5, norm=30)
        check(n, 50, tensor, crowd=0)
"""

STEPS = """
import itertools
from dataclasses import replace

choices = (True, False)


def places(n, halves, kind, ours=3, foreign=2):
    # n rows of a half, `ours` to be zero, and `foreign` to be left alone; or in order, and none is foreign.
    rows = n + ours + foreign
    if kind == "padded":
        return Places(halves * rows, torch.arange(rows).int(), in_order=True)
    return Places(halves * rows, torch.randperm(rows)[: n + ours].int())


KINDS = ("float32", "float16", "paired", "padded", "scattered", "scattered and paired")
KINDS += ("float32 in tiers", "scattered in tiers")
for D, B, kind in [(130, 5, kind) for kind in KINDS] + [(8, 131, "float32"), (8, 131, "scattered and paired")]:
    tiers = (40, 63, 27) if "tiers" in kind else ()  # none of them fills its programs
    kind = kind.removesuffix(" in tiers")
    dtype, halves = torch.float32 if kind == "float32" else torch.float16, 1 + (kind[-6:] in ("paired", "padded"))
    w, t_at = (places(D // halves, halves, kind) if kind[0] in "ps" and kind != "paired" else None for _ in "wt")
    storage = Storage(dtype, halves == 2, w, t_at, tiers)
    state, earlier, c = torch.randn(3, D, B)
    state[0, 0] = float("nan")
    t, before = storage.put(state, storage.t), storage.put(earlier, storage.t)
    if storage.t:  # what is not the state's is not read
        for kept in (t, before):
            mine = torch.zeros(halves, len(kept) // halves, dtype=torch.bool)
            mine[:, storage.t.index[: D // halves]] = True
            kept[~mine.flatten()] = float("nan")
    keeps = (torch.rand(D, 1) > 0.3).float(), (torch.rand(D, B) > 0.3).view(torch.uint8)
    for n, (rectify, reflect, end, earlier) in enumerate(itertools.product(choices, choices, choices, (None, before))):
        for keep in keeps if device == "cuda" else [keeps[n.bit_count() % 2]]:  # each in half of the ways
            keep[0] = keep[D // 2] = 1  # the nan is seen
            units = Units(torch.rand(B) + 0.5, torch.rand(B) + 0.5) if earlier is not None else None
            want, norms = advance(t, c, Projection(keep, rectify), storage, reflect, end, earlier, units)
            assert want.dtype == (torch.float32 if end else storage.dtype)
            on = [x if x is None else x.to(device) for x in (t, c, earlier)]
            P = Projection(keep.to(device), rectify)
            there = [p and replace(p, index=p.index.to(device)) for p in (w, t_at)]
            there = Storage(dtype, halves == 2, *there, tiers)
            got, sums = splitting_kernels.advance(
                on[0], on[1], P, there, reflect, end, on[2], units and Units(units.c.to(device), units.z.to(device))
            )
            got = got.cpu()
            assert got.shape == want.shape
            if storage.w and not end:
                got, want = (x.unflatten(0, (halves, -1))[:, storage.w.index] for x in (got, want))
                assert (got[:, D // halves :] == 0).all()
            close = {"rtol": 1e-3, "atol": 1e-5} if kind != "float32" and not end else {}
            torch.testing.assert_close(got, want, equal_nan=True, **close)
            assert (norms is None) == (sums is None)
            if norms is not None:
                assert norms.shape == (2, max(1, len(tiers)), B)
                torch.testing.assert_close(sums.cpu(), norms, equal_nan=True)

for B in (5, 131):
    source, target = torch.randn(70, B).half(), torch.randn(90, B).half()
    rows, where = torch.randperm(70)[:50].int(), torch.randperm(90)[:50].int()
    want, got = target.clone(), target.clone().to(device)
    move(source, rows, want, where)
    splitting_kernels.move(source.to(device), rows.to(device), got, where.to(device))
    assert torch.equal(got.cpu(), want) and not torch.equal(want, target)
"""

MODEL = """
from koopsim.implicit import inverse, splitting, stored
from unittest.mock import patch

for tiers, dtype in (((9,), torch.float32), ((9,), torch.float16), ((2, 3), torch.float16)):
    full = dtype == torch.float32
    model = MonDEQ((1, 4, 4), tiers, outputs=3, solving=Splitting(tol=1e-4 if full else 1e-2)).to(device)
    model._rounded = lambda like: dtype
    x = torch.randn(3, 1, 4, 4, device=device)

    def gradients():
        model.zero_grad()
        out = model(x)
        out.square().sum().backward()
        return [out.detach(), *[p.grad.clone() for p in model.parameters()]]

    def plain_steps(t, c, P, s, reflect, end, before=None, units=None):
        P, places = Projection(P.keep.cpu(), P.rectify), [p and Places(p.rows, p.index.cpu()) for p in (s.w, s.t)]
        s, units = Storage(s.dtype, s.paired, *places, s.tiers), Units(units.c.cpu(), units.z.cpu())
        done = advance(t.cpu(), c.cpu(), P, s, reflect, end, None if before is None else before.cpu(), units)
        return [None if v is None else v.to(t.device) for v in done]

    with patch.object(inverse, "_fitting", lambda W: "lu"), patch.object(splitting, "advance", plain_steps):
        want = gradients()
    kernels = [patch.object(m, n, getattr(splitting_kernels, n)) for m, n in ((splitting, "advance"), (stored, "move"))]
    with patch.object(inverse, "_fitting", lambda W: "kernel"), kernels[0], kernels[1]:
        got = gradients()
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=(1e-4 if full else 3e-3) * max(1.0, float(b.abs().max())))
"""


@pytest.mark.parametrize("check", [INVERSES, STEPS, MODEL], ids=["inverses", "steps", "model"])
def test_kernels_are_their_twins(check, in_triton):
    in_triton(PREPARE + check)
