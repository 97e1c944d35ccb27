"""Ways of having gradients: a process's share counts by its weight, and which way is chosen for whom."""

import warnings

import pytest
import torch
from torch import nn

from koopsim.config import MLPConfig, SIMConfig, TCNConfig
from koopsim.engine.gradients import Alone, Batched, Gradients, Vmapped, Written, _compiled, choose
from koopsim.engine.members import Members, Rule
from koopsim.engine.world import ALONE, World
from koopsim.implicit.base import SolverModel
from koopsim.models import build
from koopsim.tasks.row_losses import OfAnswers

ROWS = SIMConfig(MLPConfig(2, 4, 1), 6, outputs=1, hidden=4)
SEQUENCE = SIMConfig(TCNConfig(levels=2, channels=3, kernel=2), 4, outputs=2, hidden=4)


class Squares(OfAnswers):
    """The mean of squares, and its slope written out."""

    def __init__(self):
        pass

    def __call__(self, model, x, y):
        return (model(x) - y).square().mean()

    def slope(self, answers, y):
        return (answers - y).square().mean(), 2 * (answers - y) / y.numel()


def squares(model, x, y):
    return (model(x) - y).square().mean()


def members(config=ROWS, count=1, rule=None):
    torch.manual_seed(0)
    return Members([build(config).double() for _ in range(count)], torch.ones(count, 3, 4), 3, rule or Rule())


def batch(config=ROWS, count=1):
    torch.manual_seed(1)
    shape = (5, 2) if config is ROWS else (5, 7)
    x = torch.randn(count, *shape, dtype=torch.float64)
    return x, torch.randn(count, *(shape[:1] if config is ROWS else shape), config.outputs, dtype=torch.float64)


WAYS = {
    "alone": lambda rule: (Alone(members(rule=rule), squares, (False, False), None, False), batch()),
    "vmapped": lambda rule: (Vmapped(members(ROWS, 2, rule), squares, (False, False), None, False), batch(ROWS, 2)),
    "batched": lambda rule: (Batched(members(SEQUENCE, 2, rule), squares, (False, False)), batch(SEQUENCE, 2)),
    "written": lambda rule: (Written(members(rule=rule), Squares(), (False, False)), batch()),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_share_counts_by_its_weight(name):
    way, given = WAYS[name](Rule())
    losses, g = (t.clone() for t in way(given))
    assert (way.weight, way.world, way.diagnostics) == (1.0, ALONE, {})
    way.world, way.weight = World(0, 2), 0.25
    share, share_g = way(given)
    torch.testing.assert_close(share, losses / 4)
    torch.testing.assert_close(share_g, g / 4)
    assert way.scale == 0.25
    assert not share.requires_grad


@pytest.mark.parametrize("name", ["alone", "vmapped", "written"])
def test_a_scale_is_the_gradients_alone(name):
    (way, given), (scaled, _) = WAYS[name](Rule()), WAYS[name](Rule(scale=8.0))
    (losses, g), (same, larger) = (tuple(t.clone() for t in w(given)) for w in (way, scaled))
    torch.testing.assert_close(same, losses)
    torch.testing.assert_close(larger, 8 * g)
    scaled.world, scaled.weight = World(1, 2), 0.5
    assert scaled.scale == 4.0
    assert scaled.scaled(torch.ones(())) == 4.0
    assert (way.scale, way.scaled(losses) is losses) == (1.0, True)


def test_the_ways_agree():
    (losses, g), (same, other) = (WAYS[name](Rule())[0](batch()) for name in ("alone", "written"))
    torch.testing.assert_close(same, losses)
    torch.testing.assert_close(other, g)
    losses, g = WAYS["batched"](Rule())[0](batch(SEQUENCE, 2))
    way = Vmapped(members(SEQUENCE, 2), squares, (False, False), None, False)
    for found, wanted in zip(way(batch(SEQUENCE, 2)), (losses, g), strict=True):
        torch.testing.assert_close(found, wanted)


def test_each_is_given_its_way():
    one, two, pairs = members(), members(ROWS, 2), members(SEQUENCE, 2)
    own, none = (False, False), None

    def kind(m, loss=squares, shared=own, autocast=none, compile=False, alone=True):
        return type(choose(m, loss, shared, autocast, compile, alone))

    assert kind(one) is Alone
    assert kind(one, Squares()) is Written
    assert kind(one, Squares(), (True, False)) is Alone
    assert kind(one, Squares(), autocast=torch.bfloat16) is Alone
    assert kind(one, Squares(), alone=False) is Vmapped
    assert kind(two, Squares()) is Vmapped
    assert kind(members(SEQUENCE), Squares()) is Alone  # not one of rows
    assert kind(pairs) is kind(pairs, alone=False) is Batched
    assert kind(members(SEQUENCE), alone=False) is Batched
    assert kind(pairs, shared=(True, False)) is Vmapped
    assert kind(pairs, autocast=torch.bfloat16) is Vmapped
    assert kind(members(SEQUENCE, 2, Rule(scale=2.0))) is Vmapped


def test_what_is_compiled_is_not_written_out(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function if dynamic is False else None)
    assert type(choose(members(), Squares(), (False, False), None, True, True)) is Alone
    assert type(choose(members(SEQUENCE, 2), squares, (False, False), None, True, True)) is Vmapped
    compiled = Alone(members(), squares, (False, False), None, True)
    assert compiled.forward is compiled.model


def test_a_compiler_that_fails_is_asked_once_and_said_once(monkeypatch):
    asked = []

    def fast(x):
        asked.append(x)
        raise RuntimeError

    monkeypatch.setattr(torch, "compile", lambda function, dynamic: fast)
    call = _compiled(lambda x: 2 * x)
    with pytest.warns(UserWarning, match=r"^torch.compile failed, going on without it: RuntimeError$"):
        assert call(3) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call(4) == 8
    assert asked == [3]
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: lambda x: 5 * x)
    assert _compiled(lambda x: 2 * x)(3) == 15


def test_autocast_is_on_where_a_type_is_given():
    own = members()
    with Gradients(own, squares, (False,)).cast():
        assert not torch.is_autocast_enabled("cpu")
    with Gradients(own, squares, (False,), torch.bfloat16).cast():
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16


def test_a_stopped_ones_statistics_stay():
    models = [nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).double() for _ in range(2)]
    own = Members(models, torch.ones(2, 3, 4), 3, Rule())
    own.stop([0])
    way = Vmapped(own, lambda model, x: model(x).sum(), (True,), None, False)
    x = torch.randn(6, 2, dtype=torch.float64)
    way((x,))
    seen = own.buffers["1.running_mean"]
    assert not seen[0].any()
    torch.testing.assert_close(seen[1], 0.1 * models[1][0](x).mean(0).detach())
    assert own.buffers["1.num_batches_tracked"].tolist() == [0, 1]


class Solver(SolverModel):
    """Counts what it is asked; one number is learnt."""

    longest = torch.tensor([3])
    variant = 7

    def __init__(self):
        nn.Module.__init__(self)
        self.weight, self.said = nn.Parameter(torch.ones(2)), []

    def forward(self, x):
        return x @ self.weight

    def diagnostics(self):
        return {"iterations": torch.tensor(6.0)}

    def start_epoch(self, x):
        self.said.append(tuple(x.shape))

    def adapt(self):
        self.said.append("adapt")


class Two(World):
    """The other process finds what this one does."""

    def add_up(self, *tensors):
        for tensor in tensors:
            tensor.mul_(2)

    def largest(self, tensor):
        tensor.fill_(9)


def test_a_solver_is_asked_begins_and_is_counted():
    model = Solver()
    way = Alone(Members([model], torch.ones(1, 3, 4), 3, Rule()), lambda m, x: m(x).sum(), (False,), None, False)
    given = (torch.ones(1, 4, 2),)
    way(given), way(given)
    assert way.variant == 7
    assert way.diagnostics["iterations"] == 12
    way.world, way.weight = Two(0, 2), 0.25
    way(given)
    assert way.diagnostics["iterations"] == 12 + 2 * 0.25 * 6
    way.begin_epoch(lambda: given)
    assert way.diagnostics["iterations"] == 0
    way.adapt(Two(0, 2))
    assert (model.said, model.longest.tolist()) == ([(4, 2), "adapt"], [9])
    losses, g = torch.ones(1), torch.ones(1, 2)
    way.add_up(losses, g)
    assert (losses.tolist(), g.tolist()) == ([2], [[2, 2]])
    plain = Alone(members(), squares, (False, False), None, False)
    assert (plain.variant, plain.solver) == (None, None)
    plain.begin_epoch(lambda: pytest.fail("nobody asks for it"))
    plain.adapt(ALONE)
