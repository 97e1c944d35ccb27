"""What every task has without saying so, of the smallest task there is; and whether model and data fit."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset

from koopsim.config import ClassificationConfig, Recipe, Run, SIMConfig, VGGConfig
from koopsim.errors import KoopsimError
from koopsim.tasks import build_task
from koopsim.tasks.base import ModelAnswers, Task
from koopsim.tasks.fits import refuse_misfits
from koopsim.tasks.rows import Rows, Stream, collated, content_digest

SMALL = SIMConfig(VGGConfig(2, (1, 8, 8)), lift_dim=4, hidden=4, outputs=10)
X, Y = torch.arange(7.0).unsqueeze(1), torch.tensor([0, 1, 0, 1, 2, 0, 1])


class Least(Task):
    metric, lower_is_better = "loss", True

    def split(self, name):
        return X, Y

    def loss(self, outputs, targets, smoothing=0.0):
        return F.cross_entropy(outputs, targets, label_smoothing=smoothing)

    def judge(self, answers, split, which):
        return [{"loss": float(self.loss(own, Y))} for own in answers(X)]


def run(**recipe):
    return Run(SMALL, ClassificationConfig("digits"), Recipe(**recipe), train_on="train")


def test_what_a_task_is_unless_it_says_otherwise():
    task, model = Least(), nn.Linear(1, 3)
    assert [task.epoch_steps(run(batch_size=b)) for b in (1, 2, 7, 50)] == [7, 4, 1, 1]
    assert task.names == ("",)
    assert task.seeds(replace(run(), seed=5)) == [5]
    assert (task.example("train")[0] is X, task.inputs(X) is X) == (True, True)
    for precision, cast, products in (
        ("float32", None, "highest"), ("bf16", torch.bfloat16, "highest"), ("tf32", None, "high"),
    ):  # fmt: skip
        own = replace(run(), precision=precision)
        assert (task.autocast(own), task.products(own)) == (cast, products)
    assert task.loss_scale(run()) == 1.0
    assert task.counted(Y) is None
    assert (task.bytes_of(run()), task.work(run()), task.fingerprint(), task.concluded([])) == (None, None, None, {})
    assert task.reported(run()) == ("valid",)
    assert task.reported(replace(run(), train_on="train+valid")) == ("test",)
    data = task.data(run(), [0])
    assert data.x is X
    with torch.no_grad():
        for smoothing in (0.0, 0.3):
            found = task.member_loss(run(label_smoothing=smoothing))(model, X, Y)
            assert torch.equal(found, F.cross_entropy(model(X), Y, label_smoothing=smoothing))


def test_a_line_of_metrics_is_the_mean_of_all_steps_and_the_figures():
    task = Least()
    assert task.line(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), {"loss": 4.0}) == {"train_loss": 3.0, "valid_loss": 4.0}
    assert task.line(torch.tensor([[1.0]]), None) == {"train_loss": 1.0}
    assert task.gathered([{"a": 1.0}, {"a": 2.0}], [0, 1]) == {"a": 1.0}


def test_models_are_judged_as_copies_in_eval_mode_and_in_float64_where_it_is_asked_for():
    model = nn.Sequential(nn.Linear(1, 3), nn.Dropout(0.9)).train()
    answers = ModelAnswers([model])
    torch.testing.assert_close(answers(X)[0], model[0](X).detach())
    assert model.training
    assert answers.unconverged is None
    exact = ModelAnswers([model, model], exact=True)
    assert exact.members == 2
    assert exact(X).dtype == torch.float64
    assert next(model.parameters()).dtype == torch.float32
    found = Least().evaluate(model, "train")
    assert found["loss"] == pytest.approx(float(F.cross_entropy(model[0](X).detach(), Y)))
    assert "unconverged" not in found

    class Solved(ModelAnswers):
        def __call__(self, x):
            found = super().__call__(x)
            self.unconverged = 0.25
            return found

    assert Least().judged(Solved([model]), "train", [0])[0]["unconverged"] == 0.25


# ---------------------------------------------------------------- fits


def test_a_model_that_does_not_take_the_data_is_refused_before_it_trains():
    task = build_task(ClassificationConfig("digits", train=40, test=30))
    good = Run(SMALL, task.config, Recipe(shift=7, cutout=7))
    before = torch.get_rng_state()
    refuse_misfits(good, task)
    assert torch.equal(torch.get_rng_state(), before)
    for recipe in (Recipe(shift=8), Recipe(cutout=8)):
        with pytest.raises(KoopsimError, match="moves or blanks 8 pixels of pictures of 8 x 8; it must be fewer"):
            refuse_misfits(replace(good, recipe=recipe), task)
    with pytest.raises(KoopsimError, match=r"has 9 outputs and the data 10 classes; set --model\.outputs 10\."):
        refuse_misfits(replace(good, model=replace(SMALL, outputs=9)), task)
    with pytest.raises(KoopsimError, match=r"cannot be given this data: .*to have 3 channels.*[^.]\.$"):
        refuse_misfits(replace(good, model=replace(SMALL, lift=VGGConfig(2, (3, 8, 8)))), task)
    for trusted in (SimpleNamespace(many=True, checks_itself=False), SimpleNamespace(many=False, checks_itself=True)):
        refuse_misfits(replace(good, model=None), trusted)


# ---------------------------------------------------------------- rows


def test_a_digest_is_of_kind_shape_and_bytes():
    tensors = [X, X.double(), X.view(1, 7), X + 1, Y, Y[:0], Y[:0].float()]
    assert len({content_digest([t]) for t in tensors}) == len(tensors)
    assert content_digest([X.T.contiguous().T]) == content_digest([X.clone()])
    assert content_digest([X, Y]) != content_digest([Y, X])


def test_samples_become_a_batch():
    x, y = collated([(torch.ones(2), 1), (torch.zeros(2), 0)])
    assert (x.shape, y.tolist(), y.dtype) == ((2, 2), [1, 0], torch.int64)
    assert collated([(0.5, 1.5)])[0].dtype == torch.float32
    for bad in ([torch.ones(2)], [(torch.ones(2),)], [(torch.ones(2), "a")]):
        with pytest.raises(KoopsimError, match="is no tuple"):
            collated(bad)


def test_some_rows_and_some_of_a_stream():
    some = Rows((X, Y)).some(torch.tensor([4, 0]))
    assert (some.tensors[0].flatten().tolist(), some.tensors[1].tolist()) == ([4, 0], [2, 0])
    stream = Stream(TensorDataset(X, Y), 3)
    part = stream.some(torch.tensor([6, 2, 1])).some(torch.tensor([0, 2]))
    assert (len(part), part.workers, part.identity()) == (2, 3, "TensorDataset 2")
    assert [int(part.dataset[i][1]) for i in range(2)] == [1, 1]
    assert isinstance(part.dataset, Subset)
    assert stream.identity() == "TensorDataset 7"
    for bad in ((X,), (X[:0], Y[:0]), (X, torch.tensor(1))):
        with pytest.raises(KoopsimError, match="expected inputs and a target of as many rows, at least one"):
            Rows(bad)
