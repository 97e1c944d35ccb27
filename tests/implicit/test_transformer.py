"""The Universal-Transformer DEQ against a reading of its equations with a T x T table and a shift."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from koopsim.implicit import DEQ, Backward, TransformerDEQ, UniversalTransformerCell, anderson, broyden
from koopsim.implicit.transformer import PreparedCell, WeightNormLinear, _position_table

EXACT = {"max_steps": 200, "tol": 1e-12}


def gentle(model: TransformerDEQ) -> TransformerDEQ:
    """The same model with a weaker injection: fresh from its initialisation not every solve converges."""
    with torch.no_grad():
        for weight in (model.embedding, model.injection.weight):
            weight.mul_(0.1)
    return model


def relative_shift(x):
    """Row i of (..., T, T), whose columns are distances T-1..0, moved so that column j is distance i - j."""
    T = x.shape[-1]
    x = F.pad(x, (1, 0)).reshape(*x.shape[:-2], T + 1, T)
    return x[..., 1:, :]


def readable(cell: UniversalTransformerCell, z, u):
    """f(z, u) as in the Transformer-XL paper."""
    B, T, d = z.shape
    H, e = cell.heads, cell.head_dim
    q, k, v = (cell.qkv(F.layer_norm(z, (d,))) + u).chunk(3, dim=-1)
    q, k, v = (x.reshape(B, T, H, e) for x in (q, k, v))
    distance = torch.arange(T - 1, -1, -1, dtype=torch.float64)
    angle = torch.outer(distance, 1 / 10000 ** (torch.arange(0, d, 2, dtype=torch.float64) / d))
    r = cell.relative(torch.cat([angle.sin(), angle.cos()], dim=-1).to(z.dtype)).view(T, H, e)
    content = torch.einsum("bihe,bjhe->bhij", q + cell.content_bias, k)
    position = torch.einsum("bihe,jhe->bhij", q + cell.position_bias, r)
    score = (content + relative_shift(position)) / math.sqrt(e)
    score = score.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
    attended = torch.einsum("bhij,bjhe->bihe", score.softmax(-1), v).reshape(B, T, H * e)
    n = F.layer_norm(z + cell.output(attended), (d,))
    return n + cell.outer(F.relu(cell.inner(n)))


def shaken(module):
    """Every parameter moved off its initial value, so that no bias is zero and no two gains are alike."""
    with torch.no_grad():
        for p in module.parameters():
            p += 0.3 * torch.randn_like(p)
    return module


def test_the_shift_is_what_it_says():
    T = 5
    by_distance = torch.arange(T - 1, -1, -1.0).expand(T, T)
    shifted = relative_shift(by_distance)
    for i in range(T):
        for j in range(i + 1):
            assert shifted[i, j] == i - j


@pytest.mark.parametrize(
    ("sizes", "T"), [((8, 5, 40, 40), 37), ((8, 5, 40, 40), 1), ((2, 3, 10, 7), 12), ((3, 8, 16, 5), 9)]
)
def test_fast_attention_is_relative_attention(sizes, T):
    cell = shaken(UniversalTransformerCell(*sizes).double())
    heads, head_dim, d, _ = sizes
    z = torch.randn(2, T, d, dtype=torch.float64, requires_grad=True)
    u = torch.randn(2, T, 3 * heads * head_dim, dtype=torch.float64, requires_grad=True)
    fast, slow = cell(z, u), readable(cell, z, u)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)
    g = torch.randn_like(fast)
    at = [z, u, *cell.parameters()]
    got, want = (torch.autograd.grad(y, at, g) for y in (fast, slow))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


def test_parameter_count():
    model = TransformerDEQ()
    count = lambda *names: sum(  # noqa: E731
        p.numel() for n, p in model.named_parameters() if n.startswith(tuple(names))
    )
    assert sum(p.numel() for p in model.parameters()) == 17_010
    assert count("embedding", "output_bias") == 410
    assert count("injection") == 4_920
    assert count("deq.cell.qkv") == 4_920
    assert count("deq.cell.relative") == 1_640
    assert count("deq.cell.content_bias", "deq.cell.position_bias") == 80
    assert count("deq.cell.output") == 1_680
    assert count("deq.cell.inner", "deq.cell.outer") == 3_360
    assert set(model.state_dict()) == {n for n, _ in model.named_parameters()}


def test_initialisation():
    model = TransformerDEQ(vocabulary=400, heads=20, head_dim=20, model_dim=400, inner_dim=40)
    cell = model.deq.cell
    assert isinstance(cell, UniversalTransformerCell)
    for weight in (model.embedding, model.injection.weight, cell.content_bias, cell.position_bias):
        assert 0.09 < weight.std() < 0.11
    assert not model.injection.bias.any()
    assert not model.output_bias.any()
    torch.testing.assert_close(cell.qkv.weight(), cell.qkv.direction)  # PyTorch's scale, kept
    assert 0.9 < cell.qkv.weight().abs().max() * 400**0.5 <= 1


@pytest.mark.parametrize("bias", [True, False])
def test_weight_norm_is_pytorchs(bias):
    ours = shaken(WeightNormLinear(4, 3, bias).double())
    theirs = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3, bias=bias).double())
    with torch.no_grad():
        theirs.parametrizations.weight.original0.copy_(ours.gain.unsqueeze(1))
        theirs.parametrizations.weight.original1.copy_(ours.direction)
        if ours.bias is not None:
            theirs.bias.copy_(ours.bias)
    x = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x))
    ours(x).pow(2).sum().backward()
    theirs(x).pow(2).sum().backward()
    original = theirs.parametrizations.weight
    torch.testing.assert_close(ours.gain.grad, original.original0.grad.squeeze(1))
    torch.testing.assert_close(ours.direction.grad, original.original1.grad)


def test_the_past_does_not_see_the_future():
    model = gentle(TransformerDEQ(deq=partial(DEQ, **EXACT)).double())
    tokens = torch.randint(0, 10, (2, 20))
    changed = tokens.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % 10
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert model.last_info is not None
    assert model.last_info.converged.all()
    torch.testing.assert_close(before[:, :12], after[:, :12], rtol=0, atol=1e-8)
    assert (before[:, 12:] - after[:, 12:]).abs().amax() > 1e-4


@pytest.mark.parametrize("solver", [anderson, broyden], ids=["anderson", "broyden"])
def test_gradient_of_the_whole_model_is_the_finite_difference(solver):
    model = TransformerDEQ(
        4, heads=2, head_dim=2, model_dim=4, inner_dim=4, deq=partial(DEQ, solver=partial(solver, memory=20), **EXACT)
    ).double()
    tokens, target = torch.randint(0, 4, (2, 4)), torch.randint(0, 4, (8,))
    names, parameters = zip(*model.named_parameters(), strict=True)

    def loss(*values):
        logits = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (tokens,))
        return F.cross_entropy(logits.flatten(0, 1), target)

    assert torch.autograd.gradcheck(loss, parameters, atol=1e-6, rtol=1e-4, fast_mode=True)


def test_the_fixed_point_is_one_of_the_readable_cell_and_logits_are_tied():
    model = gentle(TransformerDEQ(deq=partial(DEQ, **EXACT)).double())
    tokens = torch.randint(0, 10, (2, 15))
    with torch.no_grad():
        z, info = model.solve(tokens)
        u = model.injection(F.embedding(tokens, model.embedding) * math.sqrt(40))
        torch.testing.assert_close(readable(model.deq.cell, z, u), z, rtol=0, atol=1e-9)
        logits = model(tokens.double())  # digits may come as floats
        torch.testing.assert_close(logits, z @ model.embedding.T + model.output_bias)
        _, warm = model.solve(tokens, z0=z)
    assert info.converged.all()
    assert (warm.steps == 1).all()


def test_weights_are_normalised_once_a_forward(monkeypatch):
    calls = []
    weight = WeightNormLinear.weight
    monkeypatch.setattr(WeightNormLinear, "weight", lambda self: calls.append(self) or weight(self))
    model = gentle(TransformerDEQ(deq=partial(DEQ, tol=1e-2)))
    logits = model(torch.randint(0, 10, (2, 15)))
    logits.sum().backward()
    assert model.last_info is not None
    assert model.last_info.steps.max() > 3
    assert len(calls) == 5
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_position_tables_are_shared_not_grown():
    _position_table.cache_clear()
    model = gentle(TransformerDEQ(deq=partial(DEQ, tol=1e-1)))
    with torch.inference_mode():
        model(torch.randint(0, 10, (1, 17)))
    for T in (17, 20, 32):
        model(torch.randint(0, 10, (1, T)))  # a table made under inference mode must serve training too
    assert _position_table.cache_info().currsize == 1


def test_autocast_trains():
    model = gentle(TransformerDEQ(deq=partial(DEQ, tol=5e-2)))
    tokens = torch.randint(0, 10, (2, 15))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.solve(tokens)[0].dtype == torch.float32
        loss = model(tokens).float().pow(2).sum()
    loss.backward()
    rounded = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(tokens).pow(2).sum().backward()
    exact = [p.grad for p in model.parameters()]
    assert all(g is not None and g.any() for g in rounded)
    flat = [torch.cat([g.flatten() for g in gradients]) for gradients in (rounded, exact)]
    assert F.cosine_similarity(*flat, dim=0) > 0.9


def test_a_prepared_cell_narrows_to_its_samples():
    cell = shaken(UniversalTransformerCell(heads=2, model_dim=8, inner_dim=6)).double()
    z, u = torch.randn(5, 7, 8, dtype=torch.float64), torch.randn(5, 7, 30, dtype=torch.float64)
    index = torch.tensor([4, 1])
    torch.testing.assert_close(cell.prepare(u).rows(index)(z[index]), cell(z, u)[index])


@pytest.mark.parametrize("solver", ["anderson", "broyden", "picard"])
def test_leaving_out_samples_that_are_done_changes_nothing(solver, monkeypatch):
    model = gentle(TransformerDEQ(deq=partial(DEQ, solver=solver, **EXACT))).double()
    tokens = torch.randint(0, 10, (6, 12))
    tokens[:3] = 0  # done at another step than the rest
    kept, rows, prepare = [], PreparedCell.rows, UniversalTransformerCell.prepare
    monkeypatch.setattr(PreparedCell, "rows", lambda self, index: kept.append(len(index)) or rows(self, index))
    narrow = torch.autograd.grad(model(tokens).pow(2).sum(), list(model.parameters()))
    assert kept
    assert max(kept) < 6
    monkeypatch.setattr(UniversalTransformerCell, "prepare", lambda self, u: prepare(self, u).__call__)
    kept.clear()
    whole = torch.autograd.grad(model(tokens).pow(2).sum(), list(model.parameters()))
    assert not kept
    torch.testing.assert_close(narrow, whole, rtol=1e-8, atol=1e-9)


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match=r"expected \(batch, length\)"):
        TransformerDEQ()(torch.zeros(3, 1, 20))
    with pytest.raises(ValueError, match="even model_dim"):
        UniversalTransformerCell(model_dim=41)


def test_the_captured_budget_follows_the_longest_solve():
    model = TransformerDEQ(deq=partial(DEQ, max_steps=30, backward=Backward(max_steps=20)))
    assert model.variant == (30, 20)
    model.longest.copy_(torch.tensor([9, 4]))
    model.adapt()
    assert model.variant == (9, 4)
    model.longest.copy_(torch.tensor([10, 16]))  # a solve whose budget was too small
    model.adapt()
    assert model.variant == (13, 16)  # is given half as many again, or what it took
    model.adapt()  # nothing seen: as it was
    assert model.variant == (13, 16)
