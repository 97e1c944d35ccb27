"""Blocks of a large model: computed again they give the same numbers and keep less; what has none is refused."""

import copy

import pytest
import torch
from torch import nn

from koopsim.engine.blocks import Recomputed, called_blocks, recomputed
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
