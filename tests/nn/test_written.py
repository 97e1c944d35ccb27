"""A SIM's gradient written out, against autograd in float64."""

import pytest
import torch
from torch import nn

from koopsim.nn import MLP, SIM, RandomFourierFeatures
from koopsim.nn.written import WrittenSIM, writable


def models() -> dict[str, SIM]:
    torch.manual_seed(1)
    return {
        "single": SIM(MLP(5, 7, 6, layers=1), 6, 3, hidden=4),
        "single, deep": SIM(MLP(5, 7, 6, layers=3), 6, 1, hidden=4, rank=2),
        "single, linear lift": SIM(MLP(5, 7, 6, layers=0), 6, 2, hidden=4),
        "two": SIM(MLP(5, 7, 6, layers=2), 6, 3, hidden=4, fourier=RandomFourierFeatures(6, 10, 0.7)),
        "rff": SIM(nn.Identity(), 5, 3, hidden=4, fourier=RandomFourierFeatures(5, 8, 1.5)),
    }


@pytest.mark.parametrize("name", models())
def test_it_is_autograds(name):
    model = models()[name].double()
    assert writable(model)
    x, weight = torch.randn(9, 5, dtype=torch.float64), torch.randn(9, model.h.out_features, dtype=torch.float64)
    into = {n: torch.full_like(p, torch.nan).detach() for n, p in model.named_parameters()}
    written = WrittenSIM(model, into)
    answers = written(x)
    torch.testing.assert_close(answers, model(x).detach(), rtol=1e-12, atol=1e-12)
    written.backward(weight)
    expected = torch.autograd.grad((model(x) * weight).sum(), [*model.parameters()])
    for (n, g), e in zip(into.items(), expected, strict=True):
        assert e.abs().max() > 0, n  # else nothing is told
        torch.testing.assert_close(g, e, rtol=1e-10, atol=1e-12, msg=n)


def test_it_follows_the_parameters():
    model = models()["single"].double()
    written = WrittenSIM(model, {n: torch.empty_like(p).detach() for n, p in model.named_parameters()})
    x = torch.randn(4, 5, dtype=torch.float64)
    before = written(x)
    with torch.no_grad():
        model.limit.U.mul_(2.0)
    assert not torch.equal(before, written(x))
    torch.testing.assert_close(written(x), model(x).detach())


def test_what_it_is_not_for():
    class Own(SIM):
        pass

    torch.manual_seed(0)
    assert not writable(SIM(MLP(5, 7, 6), 6, 3, projector=True))
    assert not writable(Own(MLP(5, 7, 6), 6, 3))
    assert not writable(nn.Linear(3, 3))
    frozen = SIM(MLP(5, 7, 6), 6, 3)
    frozen.h.bias.requires_grad_(False)
    assert not writable(frozen)
    assert not writable(SIM(nn.Linear(5, 6), 6, 3))
