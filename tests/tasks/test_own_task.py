"""A module and data of one's own: what is cut off, which loss is taken, and means that are weighted by size."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset

from koopsim.config import Recipe, Run
from koopsim.errors import KoopsimError
from koopsim.tasks.base import ModelAnswers
from koopsim.tasks.own import Learning, OwnTask, rows_of

X, Y = torch.arange(5.0).unsqueeze(1), torch.arange(5.0).unsqueeze(1) * 3
MODEL = nn.Linear(1, 1)


def task(data=(X, Y), **learning):
    return OwnTask(MODEL, data, Learning(Recipe(batch_size=2), **{"valid": 0.0} | learning))


def test_figures_are_means_weighted_by_the_size_of_a_batch():
    """Batches of 2, 2 and 1: of a figure that is no mean itself it shows."""
    largest = lambda outputs, target: (outputs - target).abs().max()  # noqa: E731
    own = task(metrics={"largest": largest})
    (found,) = own.judge(ModelAnswers([MODEL]), "train", [0])
    with torch.no_grad():
        off = (MODEL(X) - Y).abs()
    assert found["loss"] == pytest.approx(float(off.square().mean()), rel=1e-5)
    wanted = (2 * off[:2].max() + 2 * off[2:4].max() + off[4].max()) / 5
    assert found["largest"] == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize(
    ("n", "share", "aside"), [(8, 0.25, 2), (8, 0.01, 1), (8, 0.99, 7), (2, 0.5, 1), (10, 0.35, 4)]
)
def test_a_share_is_set_aside_of_each_at_least_one(n, share, aside):
    x = torch.arange(float(n)).unsqueeze(1)
    own = task((x, x), valid=share)
    train, valid = own.parts["train"], own.parts["valid"]
    assert (len(train), len(valid)) == (n - aside, aside)
    assert sorted(torch.cat([train.tensors[0], valid.tensors[0]]).flatten().tolist()) == list(range(n))
    assert len(own.parts["train+valid"]) == n
    again = task((x, x), valid=share)
    assert torch.equal(again.parts["valid"].tensors[0], valid.tensors[0])
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    assert valid.tensors[0].flatten().tolist() == order[:aside].tolist()


def test_one_sample_cannot_be_cut():
    with pytest.raises(KoopsimError, match="There is 1 training sample; setting some aside needs two"):
        task((X[:1], Y[:1]), valid=0.5)


def test_the_loss_goes_by_the_target():
    assert task().own_loss is F.mse_loss
    assert task((X, torch.zeros(5, dtype=torch.int64))).own_loss is F.cross_entropy
    assert task(loss=F.l1_loss).own_loss is F.l1_loss
    assert float(task(loss=F.l1_loss).loss(X, Y)) == pytest.approx(float(F.l1_loss(X, Y)))
    run = Run(None, task().config, Recipe(batch_size=2), train_on="train")
    with torch.no_grad():
        own, wanted = task().member_loss(run)(MODEL, X, Y), F.mse_loss(MODEL(X), Y)
    assert torch.equal(own, wanted)
    sizes = [task().epoch_steps(replace(run, recipe=Recipe(batch_size=b))) for b in (1, 2, 5, 9)]
    assert sizes == [5, 3, 1, 1]


def test_splits_and_what_is_reported():
    own = task(test=(X[:2], Y[:2]), valid=(X[2:], Y[2:]))
    assert own.reported(None) == ("valid", "test")
    assert torch.equal(own.split("test")[0], X[:2])
    assert torch.equal(own.split("test")[1], Y[:2])
    assert [len(batch[0]) for batch in own.batches("valid")] == [2, 1]
    assert [len(batch[0]) for batch in own.batches("train", 4)] == [4, 1]
    with pytest.raises(KoopsimError, match="There is no split 'other' of two tensors; there is train"):
        own.split("other")
    with pytest.raises(KoopsimError, match="of two tensors"):
        task((X, X, Y)).split("train")
    assert own.fingerprint() == task(test=(X[:2], Y[:2]), valid=(X[2:], Y[2:])).fingerprint()
    assert own.fingerprint() != task(test=(X[:2], Y[1:3]), valid=(X[2:], Y[2:])).fingerprint()
    with pytest.raises(KoopsimError, match="judged by itself, not in a stack"):
        own.judge(object(), "train", [0])


def test_data_of_every_kind_become_rows():
    whole = TensorDataset(X, Y)
    for data in (whole, (X, Y), [X.numpy(), Y.numpy().astype(np.float64)]):
        found = rows_of(data, "training", "cpu")
        assert torch.equal(found.tensors[0], X)
        assert torch.equal(found.tensors[1], Y)
        assert found.tensors[1].dtype == torch.float32
    part = rows_of(Subset(whole, [4, 1]), "training", "cpu")
    assert part.tensors[0].flatten().tolist() == [4, 1]
    ints = rows_of((X, np.arange(5)), "training", "cpu").tensors[1]
    assert ints.dtype == torch.int64
    listed = [(X[i], Y[i]) for i in range(5)]

    class Own(torch.utils.data.Dataset):
        def __len__(self):
            return len(listed)

        def __getitem__(self, i):
            return listed[i]

    assert torch.equal(rows_of(Own(), "training", "cpu", stream=False).tensors[0], X)
    assert type(rows_of(Own(), "training", "cpu")).__name__ == "Stream"
    for bad, said in (((X, "y"), "has a str in it"), (3, "is int; expected a torch Dataset")):
        with pytest.raises(KoopsimError, match=said):
            rows_of(bad, "training", "cpu")


@pytest.mark.parametrize(
    ("learning", "said"),
    [
        ({"loss": 3}, "loss is 3; expected a function"),
        ({"metrics": {"m": 1}}, "m is 1; expected a function"),
        ({"valid": 1.0}, "valid is 1.0; expected data, or a share"),
        ({"valid": -0.1}, "valid is -0.1"),
        ({"valid": "some"}, "valid is 'some'"),
        ({"seed": -1}, "seed is -1; it lies between 0"),
        ({"recipe": 1}, "recipe is 1; expected koopsim.Recipe"),
    ],
)
def test_what_is_no_learning_is_refused(learning, said):
    with pytest.raises(KoopsimError, match=said):
        Learning(**learning)
