"""Epochs and patience by hand: a part that says what it is told to, and when its training ends."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from koopsim.config import MLPConfig, Recipe, SIMConfig
from koopsim.sklearn.fitted import HeldOut, Learnt, _Fitting, _part, learn, untrained_model
from koopsim.tasks.base import Samples
from koopsim.tasks.row_losses import squares
from koopsim.tasks.table import FOLDS

CPU = torch.device("cpu")


class Told(nn.Module):
    """Answers with one number, so that its held-out loss is the square of it."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        assert not self.training
        return torch.full_like(x, self.value)


def fitting(epochs=9, held_out=None, patience=2, tol=0.0):
    """A course whose k-th epoch comes to the k-th of these held-out losses."""
    made = iter([Told(loss**0.5) for loss in held_out or ()])
    members = SimpleNamespace(losses=torch.tensor([[1.0, 2.0]]), model=lambda member: next(made))
    part = SimpleNamespace(device=CPU, members=members, warm_up=lambda: None)
    asked = HeldOut(torch.zeros(4, 1), torch.zeros(4, 1), patience, tol) if held_out else None
    return _Fitting(part, epochs, squares, asked)


def run(course):
    while course.turn() is not None:
        assert course.turn() is course.part
        course.over(course.part)
        assert course.epoch < 50
    return course


def test_without_patience_it_ends_after_its_epochs():
    course = run(fitting(3))
    assert (course.epoch, course.losses, course.held_out, course.best) == (3, [1.5] * 3, [], None)


@pytest.mark.parametrize(
    ("losses", "tol", "ended", "best"),
    [
        ((4.0, 3.0, 3.5, 3.2, 1.0), 0.0, 4, 3.0),  # two without a fall
        ((4.0, 3.0, 3.5, 2.9, 2.8, 2.8, 2.8), 0.0, 7, 2.8),  # a fall begins the wait anew
        ((4.0, 3.95, 3.91, 1.0), 0.1, 3, 3.91),  # less than tol is no fall; yet the best weights are kept
        ((4.0, 3.8, 3.61, 3.4, 3.35, 3.31), 0.1, 6, 3.31),  # each by more than tol, the last two are not
        ((4.0, 3.5, 3.0), 0.5, 3, 3.0),  # by exactly tol is none
    ],
)
def test_it_ends_when_the_held_out_loss_stays(losses, tol, ended, best):
    course = run(fitting(len(losses), losses, 2, tol))
    assert course.epoch == ended
    assert course.held_out == pytest.approx(losses[:ended])
    assert course.best.value**2 == pytest.approx(best)


def test_of_equals_the_first_is_kept():
    course = run(fitting(3, (2.0, 2.0, 5.0), 3))
    first = course.best
    assert course.held_out.index(min(course.held_out)) == 0
    assert first.value == 2.0**0.5
    again = fitting(3, (2.0, 2.0, 5.0), 3)
    again.over(again.part)
    kept = again.best
    again.over(again.part)
    assert again.best is kept


def test_a_loss_that_is_no_number_is_said_with_its_epoch():
    course = fitting(5)
    course.over(course.part)
    course.part.members.losses = torch.tensor([[1.0, float("nan")]])
    with pytest.raises(ValueError, match="The loss became nan in epoch 2"):
        course.over(course.part)


def config():
    return SIMConfig(MLPConfig(3, 8, 1), 8, None, None, False, 4, 1, "even")


def rows(count):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=generator)
    return Samples(x, x[:, :1] * 2)


def test_a_training_counts_its_steps_and_keeps_adams_moments():
    start = Learnt(untrained_model(config(), 3, CPU))
    one = learn(start, rows(40), squares, Recipe(16, 2, 1e-2), 5)
    assert (one.steps, len(one.losses), one.held_out) == (2 * 3, 2, [])  # three batches an epoch
    assert one.mean.abs().max() > 0
    two = learn(one, rows(40), squares, Recipe(16, 1, 1e-2), 5)
    assert (two.steps, two.losses[:2]) == (9, one.losses)
    assert not any(m.training for m in (one.model, two.model))
    part = _part(one, rows(40), squares, Recipe(16, 1, 1e-2))
    assert torch.equal(part.members.mean[0], one.mean)
    assert torch.equal(part.members.square[0], one.square)
    fresh = _part(Learnt(one.model, one.steps), rows(40), squares, Recipe(16, 1, 1e-2))
    assert fresh.members.mean.abs().max() == 0


def test_the_moments_that_come_back_are_the_trainings_own():
    """They are copies: training on does not change what was learnt before."""
    one = learn(Learnt(untrained_model(config(), 3, CPU)), rows(32), squares, Recipe(16, 1, 1e-2), 5)
    mean, weights = one.mean.clone(), [p.clone() for p in one.model.parameters()]
    learn(one, rows(32), squares, Recipe(16, 1, 1e-2), 5)
    assert torch.equal(one.mean, mean)
    assert all(torch.equal(a, b) for a, b in zip(weights, one.model.parameters(), strict=True))


@pytest.mark.parametrize(("size", "folds"), [(FOLDS - 1, False), (FOLDS, True)])
def test_matrices_are_multiplied_first_where_that_pays(size, folds, monkeypatch):
    import koopsim.sklearn.fitted as module

    asked, whole = [], module.OfAnswers
    monkeypatch.setattr(module, "OfAnswers", lambda loss, first: (asked.append(first), whole(loss, first))[1])
    _part(Learnt(untrained_model(config(), 3, CPU)), rows(4 * FOLDS), squares, Recipe(size, 1, 1e-2))
    assert asked == [folds]
