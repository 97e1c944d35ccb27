"""What a splitting does between two maps, in blocks of rows, against the same on whole states; a solve by either."""

import copy
import itertools

import pytest
import torch
from test_monotone_operator import F64, MODELS, model_of, stir

from koopsim.implicit import row_blocks, splitting
from koopsim.implicit.monotone import SPLITTINGS, MonDEQ, Splitting
from koopsim.implicit.splitting import Places, Projection, Storage, Units, advance
from koopsim.nn import products

ROWS, D, B = 7, 40, 5
BOTH = (True, False)
there = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()


@pytest.fixture
def whole(monkeypatch):
    """`advance` on whole states, though it would be taken in blocks of 7 rows."""
    monkeypatch.setattr(row_blocks, "NUMBERS", ROWS * B + 3)

    def twin(*given):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(splitting, "on_cpu", lambda t: False)
            return advance(*given)

    return twin


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tiers", [(), (40,), (21, 14, 5), (3, 36, 1)])  # 5, and 21, 14: with and without a rest
def test_blocks_are_the_whole(whole, tiers, dtype):
    torch.manual_seed(0)
    t, c, earlier = torch.randn(3, D, B, dtype=dtype)
    t[3, 1] = torch.nan  # stays where it is
    given = t.clone(), c.clone(), earlier.clone()
    scale = Units(torch.rand(B, dtype=dtype) + 0.5, torch.rand(B, dtype=dtype) + 0.5)
    keeps = (torch.rand(D, 1) > 0.3).to(dtype), (torch.rand(D, B) > 0.3).view(torch.uint8)
    ways = itertools.product(keeps, BOTH, BOTH, BOTH, (None, earlier), (None, scale))
    for keep, rectify, reflect, end, before, units in ways:
        rest = (Projection(keep, rectify), Storage(dtype, tiers=tiers), reflect, end, before, units)
        got, sums = advance(t, c, *rest)
        want, wanted = whole(t, c, *rest)
        assert got.dtype == dtype
        assert torch.equal(got.nan_to_num(9), want.nan_to_num(9))
        assert (sums is None) == (wanted is None) == (before is None)
        if sums is not None:
            assert sums.shape == (2, max(1, len(tiers)), B)
            torch.testing.assert_close(
                sums, wanted, equal_nan=True, rtol=1e-12 if dtype == torch.float64 else 1e-6, atol=0
            )
    assert all(torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in zip((t, c, earlier), given, strict=True))


def test_rows_longer_than_a_block(monkeypatch):
    monkeypatch.setattr(row_blocks, "NUMBERS", 3)
    t, c = torch.randn(2, 4, B)
    got, _ = advance(t, c, Projection(torch.ones(4, 1), True), Storage(torch.float32), False, True)
    assert torch.equal(got, torch.relu(t + c))


def test_who_is_taken_in_blocks(monkeypatch):
    monkeypatch.setattr(row_blocks, "NUMBERS", ROWS * B)
    seen = []
    monkeypatch.setattr(row_blocks.InBlocks, "__call__", lambda self, t, c, before: seen.append(1) or (c, None))
    P = Projection(torch.ones(8, 1), True)

    def taken(rows=8, storage=None, t=None):
        seen.clear()
        c = torch.ones(rows, B)
        storage = storage or Storage(c.dtype)
        t = storage.put(c, storage.t)
        advance(t, c, Projection(torch.ones(rows, 1), P.rectify), storage, True, False)
        return bool(seen)

    assert taken()
    assert not taken(7), "one block"
    places = Places(8, torch.arange(8))
    for kept in (
        Storage(torch.float16),
        Storage(torch.float32, paired=True),
        Storage(torch.float32, w=places),
        Storage(torch.float32, t=places),
    ):
        assert not taken(storage=kept), kept
    monkeypatch.setattr(splitting, "on_cpu", lambda t: False)
    assert not taken()


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.skipif(not there, reason="no oneDNN"))])
def onednn(request, monkeypatch):
    """All products of float32 by oneDNN, or none."""
    monkeypatch.setattr(products, "onednn_is_faster", lambda: request.param)
    for bound in ("LEAST", "EACH", "SHARED", "WIDE"):
        monkeypatch.setattr(products, bound, 0)


@pytest.mark.parametrize("kind", MODELS)
def test_a_chain_by_either_library(kind, onednn):
    model = stir(model_of(kind), 0.5)
    chains = []
    for dtype in (torch.float32, F64):
        W = model.to(dtype).operator.linear()
        chains.append((W, model.operator.relaxed(W, 0.7), model.operator.reflected(W, 0.7)))
    z = torch.randn(model.inside.shape[0], 20, dtype=F64)
    for chain, exact in zip(*chains, strict=True):
        for got, want in ((chain(z.float()), exact(z)), (chain.transposed(z.float()), exact.transposed(z))):
            assert got.dtype == torch.float32
            torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SPLITTINGS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_step_is_that_of_whole_states(kind, name, onednn, monkeypatch):
    """In float32, in blocks and by either library, against float64 on whole states."""
    monkeypatch.setattr(row_blocks, "NUMBERS", 150)
    torch.manual_seed(0)
    solving = Splitting(name, 0.05 if name == "forward-backward" else 0.5, max_steps=3000, tol=1e-5)
    fast = MonDEQ(**MODELS[kind], outputs=3, solving=solving)
    exact = copy.deepcopy(fast).double()
    exact.tol = 1e-12
    x = torch.randn(20, *fast.image)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_blocks, "NUMBERS", 1 << 30)
        wanted = exact(x.double())
        wanted.square().sum().backward()
    got = fast(x)
    got.square().sum().backward()
    torch.testing.assert_close(got.double(), wanted, rtol=1e-3, atol=1e-4)
    for p, other in zip(fast.parameters(), exact.parameters(), strict=True):
        assert p.grad is not None
        assert other.grad is not None
        size = torch.linalg.vector_norm
        assert size(p.grad.double() - other.grad) < 1e-3 * size(other.grad) + 1e-4
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), got)
    again = [p.grad for p in fast.parameters()]
    fast.zero_grad()
    fast(x).square().sum().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(fast.parameters(), again, strict=True)), "the same bits"
