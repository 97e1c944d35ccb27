"""What members answer together: in their own kind of numbers, or in double ones, integers as they are."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from koopsim.config import SIMConfig, TCNConfig
from koopsim.engine.answers import AT_ONCE_BATCHED, StackAnswers
from koopsim.engine.best_epoch import BestEpoch
from koopsim.engine.members import Members, Rule
from koopsim.models import build


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(3, 2))
        self.register_buffer("count", torch.ones((), dtype=torch.int64))

    def forward(self, x):
        return F.embedding(x, self.rows) * self.count


def members(models):
    return Members(models, torch.ones(len(models), 1, 4), 1, Rule())


@pytest.mark.parametrize(("exact", "dtype"), [(False, torch.float32), (True, torch.float64)])
def test_answers_are_each_models_own(exact, dtype):
    models = [nn.Linear(2, 1) for _ in range(3)]
    answers = StackAnswers(members(models), [2, 0], exact)
    x = torch.randn(5, 2, dtype=torch.float64)
    found = answers(x)
    assert (found.dtype, found.shape, answers.members, answers.batched) == (dtype, (2, 5, 1), 2, False)
    assert not found.requires_grad
    for row, which in enumerate((2, 0)):
        torch.testing.assert_close(found[row], models[which].to(dtype)(x.to(dtype)).detach())
    tables = [Table() for _ in range(2)]
    places = torch.tensor([0, 2])
    assert torch.equal(StackAnswers(members(tables), [0, 1])(places)[1], tables[1].rows[places].detach())


def test_a_few_at_a_time_are_all_of_them():
    models = [build(SIMConfig(TCNConfig(levels=2, channels=3, kernel=2), 4, outputs=2, hidden=4)) for _ in range(5)]
    assert len(models) % AT_ONCE_BATCHED
    answers = StackAnswers(members(models), [4, 1, 3])
    x = torch.rand(2, 7)
    assert answers.batched
    for row, which in enumerate((4, 1, 3)):
        torch.testing.assert_close(answers(x)[row], models[which](x).detach(), rtol=1e-4, atol=1e-6)


def test_the_first_of_equals_is_the_best_and_a_run_remembers_it():
    losses = [3.0, 2.0, 2.0, float("nan")]
    best, again = BestEpoch(2, "psnr", False), BestEpoch(2, "psnr", False)
    assert (best.at, best.value, best.over(1), best.over(2)) == (0, float("inf"), False, True)
    lines = []
    for epoch, loss in enumerate(losses, 1):
        best.judge(epoch, {"loss": loss, "psnr": 9.0}, {"flat": torch.tensor([float(epoch)])})
        lines.append({"epoch": epoch, "valid_loss": loss, "valid_psnr": 9.0, "loss": 0.0})
    assert (best.at, best.value, float(best.state["flat"])) == (2, 2.0, 2.0)
    assert [best.over(epoch) for epoch in (2, 3, 4)] == [False, False, True]
    again.recall(lines, best.state)
    assert (again.at, again.value, again.state is best.state) == (2, 2.0, True)
