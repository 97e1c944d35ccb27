"""P models as vectors: what is where, who goes on, what a new one finds, and averages that begin at nothing."""

import pytest
import torch
from torch import nn

from koopsim.config import Recipe
from koopsim.engine.members import Members, Rule
from koopsim.errors import KoopsimError


class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.linear, self.norm = nn.Linear(2, width), nn.BatchNorm1d(width)
        self.gain = nn.Parameter(torch.tensor(2.0))
        self.fixed = nn.Parameter(torch.ones(2), requires_grad=False)


def members(count=2, rule=None, steps=5, epoch_steps=4):
    return Members([Net() for _ in range(count)], torch.ones(count, steps, 4), epoch_steps, rule or Rule())


def test_a_rule_is_of_the_recipe():
    assert Rule.of(Recipe()) == Rule(Recipe().eps, Recipe().clip_norm, False, Recipe().average, 1.0)
    recipe = Recipe(weight_decay=0.1, clip_norm=0.5, average=0.9, eps=1e-6)
    assert Rule.of(recipe, 8.0) == Rule(1e-6, 0.5, True, 0.9, 8.0)


def test_vectors_are_the_parameters_without_a_copy():
    own = members()
    assert own.flat.shape == (2, 6 + 3 + 3 + 3 + 1)
    assert {name: tuple(v.shape) for name, v in own.views(own.flat).items()} == {
        "gain": (2,), "linear.weight": (2, 3, 2), "linear.bias": (2, 3), "norm.weight": (2, 3), "norm.bias": (2, 3),
    }  # fmt: skip
    own.flat[1].fill_(7.0)
    assert (own.parameters["linear.weight"][1] == 7).all()
    assert not (own.parameters["linear.weight"][0] == 7).any()
    assert own.layout()["linear.weight"] == [3, 2]
    assert "fixed" in own.buffers
    assert own.horizon == 5


def test_only_matrices_decay():
    own = members(rule=Rule(decay=True))
    decays = {name: set(v.flatten().tolist()) for name, v in own.views(own.decayed.expand(2, -1)).items()}
    assert decays.pop("linear.weight") == {1.0}
    assert set(map(tuple, decays.values())) == {(0.0,)}
    assert members().decayed is None


def test_who_goes_on_and_what_a_new_one_finds():
    own = members(3, Rule(average=0.9))
    own.steps.copy_(torch.tensor([4, 5, 2]))
    own.stop([2])
    assert own.going().tolist() == [True, False, False]
    for tensor in (own.mean, own.square, own.losses, own.averaged["parameters"]):
        tensor.fill_(3.0)
    own.positions.fill_(2)
    new = Net()
    own.put(2, new, torch.full((5, 4), 2.0))
    assert own.going().tolist() == [True, False, True]
    assert own.steps.tolist() == [4, 5, 0]
    assert own.positions.tolist() == [2, 2, 0]
    for tensor in (own.mean, own.square, own.losses, own.averaged["parameters"]):
        assert (tensor[2] == 0).all()
        assert (tensor[:2] == 3).all()
    assert (own.schedules[2] == 2).all()
    assert (own.schedules[:2] == 1).all()
    torch.testing.assert_close(own.parameters["linear.weight"][2], new.linear.weight)
    own.begin_epoch()
    assert not own.losses.any()
    assert not own.positions.any()


def test_an_average_of_no_steps_is_the_model_and_of_some_is_divided_by_its_weight():
    own = members(2, Rule(average=0.5))
    assert set(own.averaged) == {"parameters", "norm.running_mean", "norm.running_var"}
    own.steps.copy_(torch.tensor([0, 2]))
    own.averaged["parameters"][1] = 0.75 * 4.0  # after two steps the weights are 1 - 0.5^2
    own.averaged["norm.running_mean"][1] = 0.75 * 2.0
    judged = own.judged([1, 0])
    assert (judged["linear.weight"][0] == 4).all()
    assert (judged["norm.running_mean"][0] == 2).all()
    torch.testing.assert_close(judged["linear.weight"][1], own.parameters["linear.weight"][0].detach())
    model = own.model(1)
    assert (model.linear.weight == 4).all()
    assert len(list(own.models())) == 2


def test_a_state_is_taken_and_what_does_not_go_together_is_refused():
    one, two = members(rule=Rule(average=0.5)), members(rule=Rule(average=0.5))
    two.take({name: t.clone() for name, t in one.state().items()})
    for name, tensor in two.state().items():
        assert torch.equal(tensor, one.state()[name]), name
    with pytest.raises(KoopsimError, match="There are 2 models and schedules for 3; give one for each"):
        Members([Net(), Net()], torch.ones(3, 5, 4), 4, Rule())
    with pytest.raises(KoopsimError, match=r"Model 1 cannot be stacked on the first: 'linear.weight' is 4 x 2 there"):
        Members([Net(), Net(4)], torch.ones(2, 5, 4), 4, Rule())
    bare = nn.Linear(2, 3)
    with pytest.raises(KoopsimError, match=r"Model 1 cannot be stacked .*: 'gain' is missing there and a number here"):
        Members([Net(), bare], torch.ones(2, 5, 4), 4, Rule())
