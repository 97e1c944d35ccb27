"""A model whose share is all of it, in this process: the state, the gradient and the clipping of one that is whole."""

import copy
import warnings

import pytest
import torch
from torch import distributed, nn

from koopsim.config import MLPConfig, SIMConfig
from koopsim.engine.gradients import Alone
from koopsim.engine.members import Members, Rule
from koopsim.engine.sharded import Sharded, ShardedMembers, sharded
from koopsim.engine.world import World
from koopsim.errors import KoopsimError
from koopsim.models import build


class One(World):
    """A process that others are said to be beside."""

    alone = False


@pytest.fixture
def world(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield One()
    distributed.destroy_process_group()


def both(world, rule):
    torch.manual_seed(0)
    model = build(SIMConfig(MLPConfig(3, 4, 2), 6, outputs=2, hidden=5))
    model.register_buffer("count", torch.ones(2))
    twin = copy.deepcopy(model)
    table = torch.ones(1, 4, 4)
    return ShardedMembers(model, table, 3, rule, world), Members([twin], table, 3, rule)


def test_its_state_is_that_of_the_whole(world):
    own, twin = both(world, Rule(average=0.5, clip_norm=0.1, decay=True))
    assert (own.whole, twin.whole, own.rule.clip_norm, own.rule.decay) == (False, True, None, True)
    assert own.state() == {}  # nobody has met
    own.meet()
    assert own.state().keys() == twin.state().keys()
    for name, t in twin.state().items():
        assert torch.equal(own.state()[name], t), name
    assert own.layout() == twin.layout()
    assert {n: t.shape for n, t in own.expected().items()} == {n: t.shape for n, t in twin.state().items()}
    state = {name: t + 1 if t.is_floating_point() else t.clone() for name, t in twin.state().items()}
    state["steps"] = torch.tensor([2])
    own.take(state)
    twin.take(state)
    own.meet()
    for name, t in state.items():
        assert torch.equal(own.state()[name], t), name
    for a, b in zip(own.model(0).state_dict().values(), twin.model(0).state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)
    plain, _ = both(world, Rule())
    assert [*plain._over_all()] == ["flat", "mean", "square"]


def test_its_gradient_is_that_of_the_whole_and_clipped_over_all(world):
    rule = Rule(clip_norm=0.01, scale=4.0)
    own, twin = both(world, rule)

    def loss(model, x, y):
        return (model(x) - y).square().mean()

    batch = torch.randn(1, 7, 3), torch.randn(1, 7, 2)
    way, alone = Sharded(own, loss, (False, False), rule), Alone(twin, loss, (False, False), None, False)
    way.world, way.weight = world, 0.5
    (losses, g), (wanted, whole) = way(batch), alone(batch)
    torch.testing.assert_close(losses, wanted / 2)
    torch.testing.assert_close(g, whole / 2)
    with torch.no_grad():
        own.flat.mul_(2.0), twin.flat.mul_(2.0)
    torch.testing.assert_close(way(batch)[1], alone(batch)[1] / 2)  # what an update moved is seen
    norm = float(g.norm())
    assert norm > 4 * 0.01
    way.add_up(losses, g)
    assert float(g.norm()) == pytest.approx(4 * 0.01, rel=1e-3)
    small = torch.full_like(g, 1e-6)
    way.add_up(losses, small)
    assert torch.equal(small, torch.full_like(g, 1e-6))  # never made larger
    free = Sharded(both(world, Rule())[0], loss, (True, False), Rule())
    free.world = world
    g = torch.ones(3)
    free.add_up(losses, g)
    assert g.tolist() == [1, 1, 1]
    assert free((batch[0][0], batch[1]))[1].shape == whole.shape  # points that all share


def test_what_cannot_be_sharded():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(KoopsimError, match="--shard needs several processes to share a model"):
        sharded(model, World())
    model[1].bias.requires_grad_(False)
    with pytest.raises(KoopsimError, match=r"The parameter '1\.bias' is a single number or frozen"):
        sharded(model, World(0, 2))
    scalar = nn.Module()
    scalar.gain = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(KoopsimError, match="The parameter 'gain' is a single number or frozen"):
        sharded(scalar, World(0, 2))
