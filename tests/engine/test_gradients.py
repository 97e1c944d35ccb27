"""Ways of having gradients: a process's share counts by its weight, and which way is chosen for whom."""

import warnings

import pytest
import torch
from torch import nn

from koopsim.config import MLPConfig, SIMConfig, TCNConfig
from koopsim.engine.gradients import Alone, Batched, Gradients, InTurn, Vmapped, Written, _compiled, choose
from koopsim.engine.members import Members, Rule
from koopsim.engine.update import update
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


def in_turn(own, loss=squares, shared=(False, False)):
    """One after the other whatever their size."""
    way = InTurn(own, loss, shared, None)
    way.long = 0
    return way


WAYS = {
    "alone": lambda rule: (Alone(members(rule=rule), squares, (False, False), None, False), batch()),
    "vmapped": lambda rule: (Vmapped(members(ROWS, 2, rule), squares, (False, False), None, False), batch(ROWS, 2)),
    "in turn": lambda rule: (in_turn(members(ROWS, 2, rule)), batch(ROWS, 2)),
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


@pytest.mark.parametrize("name", ["alone", "vmapped", "in turn", "written"])
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
    assert kind(one, Squares(), alone=False) is InTurn
    assert kind(two, Squares()) is InTurn
    assert kind(members(SEQUENCE), Squares()) is Alone  # not one of rows
    assert kind(pairs) is kind(pairs, alone=False) is Batched
    assert kind(members(SEQUENCE), alone=False) is Batched
    assert kind(pairs, shared=(True, False)) is InTurn
    assert kind(pairs, autocast=torch.bfloat16) is InTurn
    assert kind(members(SEQUENCE, 2, Rule(scale=2.0))) is InTurn


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
    found = []

    def seen(model, x, y):
        found.append(torch.is_autocast_enabled("cpu"))
        return squares(model, x, y)

    both = InTurn(members(count=2), seen, (False, False), torch.bfloat16)
    both.long = 0
    both(batch(ROWS, 2))
    assert found == [True, True]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("averaged", [0.0, 0.9])
def test_in_turn_and_stacked_take_the_same_steps(shared, averaged):
    """Two members go on and one was stopped; x is one for all, or each has its own."""
    x, y = batch(ROWS, 3)
    given = (x[0] if shared else x, y)
    found = []
    for make in (in_turn, lambda m, loss, shared: Vmapped(m, loss, shared, None, False)):
        own = members(ROWS, 3, Rule(average=averaged))
        own.stop([1])
        before, way = own.flat.clone(), make(own, squares, (shared, False))
        for _ in range(3):
            losses, g = way(given)
            update(own, g.clone(), losses)
        found.append({**own.state(), "losses": own.losses})
        assert torch.equal(own.flat[1], before[1])
        assert not torch.equal(own.flat[2], before[2])
    for name, wanted in found[1].items():
        torch.testing.assert_close(found[0][name], wanted, rtol=1e-12, atol=1e-14)


def test_whether_in_turn_or_stacked_is_for_the_shapes_to_say(monkeypatch):
    """A lone one never is a stack; several are where rows times parameters are few."""
    asked = []
    monkeypatch.setattr(Vmapped, "__call__", lambda self, given: asked.append((self.world, self.weight)))
    two, (x, y) = members(ROWS, 2), batch(ROWS, 2)
    n = two.flat.shape[1]
    way = InTurn(two, squares, (True, False), None)
    way.world, way.weight = World(0, 2), 0.25
    for limit, stacked in ((5 * n, False), (5 * n + 1, True)):
        way.long = limit
        way((x[0], y))
        assert asked == [(way.world, 0.25)] * stacked
    alone = InTurn(members(), squares, (False, False), None)
    alone.long = 1 << 60
    alone(batch())
    assert len(asked) == 1


def test_in_turn_a_model_may_leave_a_parameter_out():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x @ self.used

    own = Members([Half(), Half()], torch.ones(2, 3, 4), 3, Rule())
    _, g = in_turn(own, lambda model, x: model(x).sum(), (True,))((torch.ones(4, 2),))
    assert g.tolist() == [[4, 4, 0, 0, 0]] * 2


@pytest.mark.parametrize("make", [in_turn, lambda *given: Vmapped(*given, None, False)])
def test_a_stopped_ones_statistics_stay(make):
    models = [nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).double() for _ in range(2)]
    own = Members(models, torch.ones(2, 3, 4), 3, Rule())
    own.stop([0])
    way = make(own, lambda model, x: model(x).sum(), (True,))
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
