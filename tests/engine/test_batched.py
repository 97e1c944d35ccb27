"""A stack of SIMs as batched products, against each model alone and against the step under vmap."""

from dataclasses import replace

import pytest
import torch
from small_search import CPU, tiny_run

from koopsim.config import SIMConfig, TCNConfig
from koopsim.engine.answers import StackAnswers
from koopsim.engine.batched import CausalRelu, batchable, outputs
from koopsim.engine.gradients import Batched, Vmapped
from koopsim.engine.members import Members, Rule
from koopsim.engine.update import update
from koopsim.models import build
from koopsim.nn import TCN
from koopsim.nn.lift import CausalConv
from koopsim.nn.sim import SIM

P, B, T = 3, 2, 23


def models_of(name):
    run = tiny_run(name)
    assert isinstance(run.model, SIMConfig)
    assert isinstance(run.model.lift, TCNConfig)
    model = replace(run.model, lift=replace(run.model.lift, levels=4))  # the last one reaches beyond the beginning
    if model.fourier:
        model = replace(model, fourier=replace(model.fourier, bandwidth=5.0))
    torch.manual_seed(1)
    return [build(model).double() for _ in range(P)]


def members_of(models, schedules=None, **rule):
    schedules = torch.zeros(len(models), 1, 4) if schedules is None else schedules
    return Members(models, schedules, schedules.shape[1], Rule(**rule))


@pytest.mark.parametrize("name", ["copy/sim-single", "copy/sim-two"])
def test_each_model_answers_as_it_does_alone(name):
    models = models_of(name)
    stack = members_of(models)
    x = torch.randint(0, 10, (P, B, T))
    assert isinstance(models[0], SIM)
    found = outputs(models[0], stack.parameters | stack.buffers, x)
    weights = torch.randn_like(found)
    grads = torch.autograd.grad((found * weights).sum(), list(stack.parameters.values()))
    for p, model in enumerate(models):
        alone = model(x[p])
        torch.testing.assert_close(found[p], alone, rtol=1e-11, atol=1e-12)
        expected = torch.autograd.grad((alone * weights[p]).sum(), list(model.parameters()))
        for a, b in zip(grads, expected, strict=True):
            torch.testing.assert_close(a[p], b, rtol=1e-10, atol=1e-10)


def test_several_input_channels():
    torch.manual_seed(2)
    models = [SIM(TCN(6, levels=2, channels=5, kernel=3, input_channels=3), 6, 4, hidden=7).double() for _ in range(P)]
    stack = members_of(models)
    x = torch.randn(P, B, T, 3, dtype=torch.float64)
    found = outputs(models[0], stack.parameters, x)
    for p, model in enumerate(models):
        torch.testing.assert_close(found[p], model(x[p]), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("kernel", "dilation", "length"), [(3, 1, 7), (3, 2, 7), (4, 4, 7), (2, 8, 5), (1, 1, 3)])
def test_the_hand_written_gradient_is_that_of_finite_differences(kernel, dilation, length):
    torch.manual_seed(kernel * dilation)
    x, v, g, b = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 3, 2, length), (2, 4, 3 * kernel), (2, 4), (2, 4))
    )
    assert torch.autograd.gradcheck(lambda *inputs: CausalRelu.apply(*inputs, kernel, dilation), (x, v, g, b))


def test_a_gain_of_zero_still_learns():
    conv = CausalConv(3, 4, 3, 2).double()
    with torch.no_grad():
        conv.gain[1] = 0
        conv.bias.fill_(1.0)
    x = torch.randn(1, 9, 3, dtype=torch.float64)
    own = [p.detach().unsqueeze(0).requires_grad_() for p in (conv.direction, conv.gain, conv.bias)]
    mine = CausalRelu.apply(x.mT.unsqueeze(2), *own, 3, 2)[0, :, 0].mT
    expected = conv(x)[0].relu()
    torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(expected)
    theirs = torch.autograd.grad((expected * weights).sum(), [conv.direction, conv.gain, conv.bias])
    for a, b in zip(torch.autograd.grad((mine * weights).sum(), own), theirs, strict=True):
        torch.testing.assert_close(a[0], b, rtol=1e-10, atol=1e-12)
    assert theirs[1][1] != 0


def loss(model, x, y):
    return torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


class Steps:
    """Members stepped one way or the other on the same data."""

    def __init__(self, way, members, batch):
        self.members, self.batch, self.gradients = members, batch, way(members, loss, (False, False))

    def run(self, steps):
        for _ in range(steps):
            losses, g = self.gradients(self.batch(self.members.steps))
            update(self.members, g, losses)


def vmapped(members, loss, shared):
    return Vmapped(members, loss, shared, None, False)


def both(clip_norm=0.5, decay=True, steps=6):
    """The step written out, and its readable twin, on the same models and data."""
    models = models_of("copy/sim-two")
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randint(0, 10, (steps, P, B, T), generator=generator) for _ in range(2))

    def batch(at):
        at = at.clamp(max=steps - 1)
        return x[at, torch.arange(P)], y[at, torch.arange(P)]

    schedules = torch.rand(P, steps, 4, generator=generator, dtype=torch.float64) * 0.01
    schedules[:, :, 1:3] += 0.1
    return [
        Steps(way, members_of(models, schedules, eps=1e-8, clip_norm=clip_norm, decay=decay), batch)
        for way in (Batched, vmapped)
    ]


def agree(mine, twin):
    for name, tensor in twin.members.state().items():
        torch.testing.assert_close(mine.members.state()[name], tensor, rtol=1e-7, atol=1e-10, equal_nan=True, msg=name)


@pytest.mark.parametrize(("clip_norm", "decay"), [(0.5, True), (None, False)])
def test_the_step_is_that_under_vmap(clip_norm, decay):
    mine, twin = both(clip_norm, decay)
    before = twin.members.flat.clone()
    for way in (mine, twin):
        way.run(2)
        way.members.stop([1])
        way.run(2)
        way.members.active[1] = True
        way.run(3)  # the other two are at their end after two
    agree(mine, twin)
    assert mine.members.steps.tolist() == [6, 5, 6]
    assert (twin.members.flat - before).abs().max() > 1e-3


def test_one_that_stands_still_stays_even_if_its_gradient_is_not_a_number():
    mine, twin = both()
    for way in (mine, twin):
        way.run(1)
        way.members.flat[1] = torch.nan
        way.members.stop([1])
    kept = {name: tensor[1].clone() for name, tensor in mine.members.state().items()}
    for way in (mine, twin):
        way.run(2)
    agree(mine, twin)
    for name, tensor in kept.items():
        assert torch.equal(mine.members.state()[name][1].nan_to_num(7.0), tensor.nan_to_num(7.0)), name
    assert mine.members.flat[[0, 2]].isfinite().all()


def test_a_stack_is_judged_as_its_models_are():
    models = models_of("copy/sim-single")
    x = torch.randint(0, 10, (5, T))
    answers = StackAnswers(members_of(models), [0, 2])
    assert answers.batched
    for found, p in zip(answers(x), (0, 2), strict=True):
        torch.testing.assert_close(found, models[p](x), rtol=1e-11, atol=1e-12)


def test_what_is_left_to_vmap():
    model = build(tiny_run("copy/sim-single").model)
    assert batchable(model, CPU)
    assert not batchable(model, torch.device("cuda"))
    assert not batchable(build(tiny_run("digits/sim-single").model), CPU)
    assert not batchable(build(replace(tiny_run("copy/sim-single").model, projector=True)), CPU)
