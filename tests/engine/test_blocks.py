"""Blocks of a large model: computed again they give the same numbers and keep less; what has none is refused."""

import copy

import pytest
import torch
from torch import nn

from koopsim.engine import blocks
from koopsim.engine.blocks import Recomputed, RecomputedStretches, called_blocks, recomputed
from koopsim.errors import KoopsimError
from koopsim.nn import SIM
from koopsim.nn.lift import MLP, TCN, VGG


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(0.3))
        self.last = nn.Linear(width, width)

    def forward(self, x):
        return x + self.last(self.inner(x))


class Lift(nn.Module):
    """Somebody's own: blocks in a list."""

    def __init__(self, width: int = 8, depth: int = 6):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(depth))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def own_sim() -> SIM:
    torch.manual_seed(0)
    return SIM(Lift(), 8, 2).double()


def mlp_sim(layers: int = 16) -> SIM:
    torch.manual_seed(0)
    return SIM(MLP(3, 16, 8, layers), 8, 2).double()


def pulled(model: nn.Module) -> tuple[list[torch.Tensor], int]:
    """(loss, gradients, statistics after a step; bytes that the forward pass kept)."""
    kept: dict[int, int] = {}

    def keep(t: torch.Tensor) -> torch.Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    torch.manual_seed(1)
    x = torch.randn(40, 3, dtype=torch.float64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = model(x).square().mean()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found = [loss.detach(), *torch.autograd.grad(loss, list(model.parameters())), *model.buffers()]
    return found, sum(size for place, size in kept.items() if place not in weights)


@pytest.mark.parametrize("make", [own_sim, mlp_sim])
def test_computed_again_it_gives_the_same_and_keeps_less(make):
    plain, again = make().train(), recomputed(make().train())
    assert list(again.state_dict()) == list(plain.state_dict())
    (wanted, much), (found, little) = pulled(plain), pulled(again)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    assert little < 0.6 * much
    twin = copy.deepcopy(again).eval()
    x = torch.ones(2, 3, dtype=torch.float64)
    torch.testing.assert_close(twin(x), plain.eval()(x))
    with torch.no_grad():
        next(twin.parameters()).zero_()  # a copy is a copy: nothing of it leads back
    assert not torch.equal(twin(x), again.eval()(x))


def test_blocks_are_what_is_called_one_by_one():
    sim = own_sim()
    assert [type(b) for b in called_blocks(sim)][:6] == [Residual] * 6
    assert len(called_blocks(mlp_sim(3))) == 4
    assert called_blocks(SIM(VGG((3, 8, 8), 4, 8), 8, 2)) == []
    both = recomputed(mlp_sim(3))  # and sharded
    assert len(called_blocks(both)) == 4
    assert isinstance(both.mu, Recomputed)


@pytest.mark.parametrize("lift", [VGG((3, 8, 8), 4, 8), TCN(8, 2)])
def test_a_model_without_blocks_is_refused(lift):
    with pytest.raises(KoopsimError, match="SIM has no blocks that could be computed again"):
        recomputed(SIM(lift, 8, 2))


class Pair(nn.Module):
    """Two containers side by side, each a lift of its own."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


def test_who_is_computed_again():
    for lift in (nn.Sequential(nn.Linear(3, 8)), Pair(nn.Linear(3, 8), nn.Linear(8, 8))):
        with pytest.raises(KoopsimError, match="has no blocks that could be computed again"):
            recomputed(lift)  # a single layer, and layers that somebody calls by himself
    two = recomputed(nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 8)))
    assert isinstance(two, RecomputedStretches)
    mixed = recomputed(nn.Sequential(nn.Linear(3, 8), Residual(8)))
    assert not isinstance(mixed, Recomputed)
    assert isinstance(mixed[1], Recomputed)
    assert isinstance(mixed[1].inner, RecomputedStretches)
    nested = recomputed(Pair(nn.Sequential(nn.Linear(3, 8), nn.Tanh())))
    assert isinstance(nested.parts[0], RecomputedStretches)
    assert [type(b) for b in called_blocks(nn.Sequential(nn.Tanh(), nn.Linear(1, 1)))] == [nn.Linear]


@pytest.mark.parametrize(("layers", "stretches"), [(2, [2]), (5, [3, 2]), (6, [3, 3]), (16, [4] * 4), (10, [4, 4, 2])])
def test_stretches_are_about_the_root_of_the_layers(layers, stretches, monkeypatch):
    lengths = []
    monkeypatch.setattr(blocks, "_in_turn", lambda some: lengths.append(len(some)) or (lambda x: x))
    model = recomputed(nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers))))
    model(torch.ones(1, 2))
    assert lengths == stretches


@pytest.mark.parametrize("dropout", [True, False])
def test_only_what_draws_keeps_the_random_state(dropout, monkeypatch):
    asked = []

    def noted(function, *given, **options):
        asked.append((options["use_reentrant"], options["preserve_rng_state"]))
        return function(*given)

    monkeypatch.setattr(blocks, "checkpoint", noted)
    model = recomputed(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5) if dropout else nn.Tanh()))
    x = torch.ones(1, 2)
    model(x)
    assert asked == [(False, dropout)] * len(asked)
    assert asked
    asked.clear()
    with torch.no_grad():
        model(x)
    model.eval()(x)
    assert asked == []


def test_statistics_see_a_batch_once():
    norm = nn.BatchNorm1d(2)
    with pytest.raises(ZeroDivisionError), blocks._unmoved(norm):
        norm(torch.randn(3, 2))
        raise ZeroDivisionError
    assert norm.num_batches_tracked == 0
    assert not norm.running_mean.any()
