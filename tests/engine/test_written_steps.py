"""Members whose gradient is written out, and samples laid out in an epoch's order, against what they stand in for."""

import pytest
import torch

from koopsim.config import Recipe
from koopsim.engine import feeds
from koopsim.engine.feeds import Resident
from koopsim.engine.gradients import Alone, Written
from koopsim.engine.part import part_of_one
from koopsim.nn import MLP, SIM
from koopsim.tasks.base import Samples
from koopsim.tasks.row_losses import OfAnswers, row_loss, row_targets

RECIPE = Recipe(8, 2, 0.01, "cosine", weight_decay=0.5, average=0.9, clip_norm=1.0)


def samples(classes, weighted, n=21):
    random = torch.Generator().manual_seed(3)
    x = torch.randn(n, 4, generator=random, dtype=torch.float64)
    y = torch.randint(3, (n,), generator=random) if classes else x[:, :3].sin()
    return Samples(x, row_targets(y, torch.rand(n, generator=random, dtype=torch.float64) if weighted else None))


def learnt(loss, data):
    torch.manual_seed(0)
    part = part_of_one(SIM(MLP(4, 6, 5, layers=1), 5, 3, hidden=4).double(), loss, data, RECIPE, seed=7)
    losses = [part.epoch().clone() for _ in range(2)]
    return part.gradients, torch.cat([part.members.flat, *losses], dim=1)


@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_two_epochs_are_those_of_autograd(classes, weighted):
    loss, data = row_loss(classes, weighted), samples(classes, weighted)
    by_hand, found = learnt(OfAnswers(loss, folds=False), data)
    by_tape, expected = learnt(lambda model, x, y: loss(model(x), y), data)
    assert (type(by_hand), type(by_tape)) == (Written, Alone)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_samples_in_an_epochs_order_are_those_fetched_by_rows(monkeypatch):
    data, loss = samples(True, False), OfAnswers(row_loss(True, False), folds=True)
    laid = learnt(loss, data)[1]
    assert [Resident(data, RECIPE, members).laid is None for members in (1, 2)] == [False, True]
    monkeypatch.setattr(feeds, "LITTLE", 100)
    assert Resident(data, RECIPE, 1).laid is None
    assert torch.equal(learnt(loss, data)[1], laid)
