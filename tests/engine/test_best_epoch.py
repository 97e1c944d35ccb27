"""A run that stops when nothing better comes: which epoch is kept, and that a kill changes nothing."""

from dataclasses import replace

import pytest
import torch

from koopsim.config import Recipe, Run
from koopsim.engine import drive as driving
from koopsim.engine.best_epoch import BestEpoch
from koopsim.engine.drive import Stopped
from koopsim.errors import KoopsimError
from koopsim.kinds import model_kind
from koopsim.runs import RunDirectory
from koopsim.tasks import build_task
from koopsim.tasks.table import MODELS, TableConfig
from koopsim.training import Session, Training, load_run, train_run

SHAPE = model_kind(MODELS["sim-single"]).for_rows(MODELS["sim-single"], 10, 1)
TASK = TableConfig("diabetes", ("target",), "regression")
RUN = Run(SHAPE, TASK, Recipe(64, 60, 2e-2, "cosine", average=0.5, patience=4), train_on="train")
SESSION = Session(torch.device("cpu"))


def trained(path, run=RUN, resume=False):
    directory = RunDirectory(path) if resume else RunDirectory.create(path, run, "diabetes")
    return train_run(run, directory, "diabetes", SESSION, resume)


def test_it_ends_when_nothing_better_comes_and_keeps_the_best(tmp_path):
    result = trained(tmp_path / "run")
    losses = [line["valid_loss"] for line in result["metrics"]]
    best = losses.index(min(losses)) + 1
    assert len(losses) == best + 4 < 60
    assert result["best_epoch"] == best
    assert result["steps"] == result["metrics"][-1]["step"]
    assert result["valid"]["loss"] == pytest.approx(min(losses), rel=1e-6)
    kept = build_task(TASK).evaluate(load_run(tmp_path / "run"), "valid")
    assert kept["loss"] == pytest.approx(min(losses), rel=1e-6)


@pytest.mark.parametrize("epoch", [1, 5, 8])
def test_a_run_that_was_cut_keeps_the_same_epoch_to_the_bit(tmp_path, monkeypatch, epoch):
    whole = trained(tmp_path / "whole")
    note = Training._note

    def cut(self, slots):
        note(self, slots)
        if self.epoch == epoch:
            raise Stopped

    monkeypatch.setattr(driving, "SAVE_SHARE", float("inf"))  # a checkpoint at the end of every epoch
    monkeypatch.setattr(Training, "_note", cut)
    with pytest.raises(Stopped):
        trained(tmp_path / "cut")
    monkeypatch.setattr(Training, "_note", note)
    again = trained(tmp_path / "cut", resume=True)
    assert (again["valid"], again["test"], again["best_epoch"]) == (whole["valid"], whole["test"], whole["best_epoch"])
    assert [line["valid_loss"] for line in again["metrics"]] == [line["valid_loss"] for line in whole["metrics"]]


def test_what_cannot_be_judged_is_refused(tmp_path):
    with pytest.raises(KoopsimError, match="--train-on train"):
        trained(tmp_path / "run", replace(RUN, train_on="train+valid"))
    with pytest.raises(KoopsimError, match="at least 1"):
        Recipe(patience=0)


@pytest.mark.parametrize("lower", [True, False])
def test_without_a_loss_the_tasks_own_figure_counts(lower):
    patience, sign = BestEpoch(2, "psnr", lower), 1 if lower else -1
    for epoch, value in enumerate([5.0, 3.0, 4.0, 3.5], start=1):
        assert not patience.over(epoch - 1) or epoch == 1
        patience.judge(epoch, {"psnr": sign * value}, {"flat": torch.tensor([value])})
    assert patience.over(4)
    assert (patience.at, float(patience.state["flat"])) == (2, 3.0)
