"""koopsim.train(model, data): anybody's module, anybody's data, and all that a run has."""

import os
import random
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import koopsim
from koopsim import Learning, Recipe
from koopsim.cli import main
from koopsim.engine import drive
from koopsim.engine.drive import Stopped
from koopsim.engine.feeds import shuffle
from koopsim.errors import KoopsimError
from koopsim.runs import RunDirectory

RECIPE = Recipe(epochs=3, batch_size=8, learning_rate=1e-2)


def points(n=48, seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=random)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def network(dropout=0.0, seed=1, norm=nn.BatchNorm1d):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), norm(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 2))


class Noisy(Dataset):
    """Draws at random from all three generators people use, as an augmentation would."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        noise = 0.1 * torch.randn(4) + 0.1 * random.random() + 0.1 * float(np.random.rand())
        return self.x[i] + noise, int(self.y[i])


def train(model, data, out, **words):
    learning = {k: words.pop(k) for k in list(words) if k not in ("overwrite", "progress")}
    return koopsim.train(
        model, data, out, learning=Learning(**{"recipe": RECIPE} | learning), device="cpu", progress=False, **words
    )


def test_it_is_what_a_plain_loop_does(tmp_path):
    x, y = points()
    ours, theirs = network(norm=nn.LayerNorm), network(norm=nn.LayerNorm)
    train(ours, (x, y), tmp_path / "r", valid=0.0, seed=3)
    adam = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    order = torch.empty(len(x), dtype=torch.int64)
    for epoch in range(3):
        shuffle(order, None, 3, epoch)
        for rows in order.split(8):
            adam.zero_grad()
            F.cross_entropy(theirs(x[rows]), y[rows]).backward()
            adam.step()
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["tensors", "stream"])
def test_a_stop_resumes_to_the_same_bits_dropout_and_random_samples_included(tmp_path, monkeypatch, kind):
    data = points() if kind == "tensors" else Noisy(*points())
    whole = network(0.3)
    expected = train(whole, data, tmp_path / "whole")
    monkeypatch.setattr(drive, "CHUNK_SECONDS", 0.0)  # look after every step
    seen = 0

    def stop_at_the_eighth(self, *where):
        nonlocal seen
        seen += 1
        if seen == 8:
            os.kill(os.getpid(), signal.SIGINT)

    cut = network(0.3)
    with monkeypatch.context() as patched:
        patched.setattr("koopsim.training.unheard", None)
        after = koopsim.training.Training.after
        patched.setattr(koopsim.training.Training, "after", lambda *a: (after(*a), stop_at_the_eighth(*a))[0])
        with pytest.raises(Stopped):
            train(cut, data, tmp_path / "cut")
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
    resumed = train(cut, data, tmp_path / "cut")
    assert resumed["valid"] == expected["valid"] or kind == "stream"  # what it judges on is drawn anew
    for a, b in zip(whole.state_dict().values(), cut.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_run_has_all_that_runs_have(tmp_path, capsys):
    model, (x, y) = network(), points(96)
    right = {"accuracy": lambda out, target: (out.argmax(1) == target).float().mean()}
    result = train(model, TensorDataset(x, y), tmp_path / "r", metrics=right, test=points(20, 1))
    assert result["name"] == "own/Sequential"
    assert result["valid"].keys() == result["test"].keys() == {"loss", "accuracy"}
    with torch.no_grad():
        out, target = model.eval()(points(20, 1)[0]), points(20, 1)[1]
    assert result["test"]["accuracy"] == pytest.approx(float((out.argmax(1) == target).float().mean()))
    assert [line["epoch"] for line in RunDirectory(tmp_path / "r").read_metrics()] == [1, 2, 3]
    assert train(network(), TensorDataset(x, y), tmp_path / "r", metrics=right, test=points(20, 1)) == result
    again = koopsim.load(tmp_path / "r", model=network(seed=7))
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), model.state_dict().values(), strict=True))
    assert main(["report", str(tmp_path / "r"), "--out", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert "Modules and data of one" in page
    assert "96 samples, cross_entropy" in page
    assert main(["eval", str(tmp_path / "r")]) == 2
    assert "koopsim.load(folder, model=model)" in capsys.readouterr().err


def test_several_inputs_numbers_as_targets_and_a_loss_of_ones_own(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 1), nn.Linear(2, 1)

        def forward(self, x, u):
            return self.a(x)[:, 0] + self.b(u)[:, 0]

    x, u = np.random.default_rng(0).normal(size=(64, 3)), np.random.default_rng(1).normal(size=(64, 2))
    y = x @ [1.0, 2.0, 3.0] - u[:, 0]
    steps = Recipe(epochs=60, batch_size=16, learning_rate=3e-2)
    result = train(Two(), (x, u, y), tmp_path / "r", recipe=steps, loss=nn.L1Loss())
    assert result["valid"]["loss"] < 0.2
    assert result["run"]["task"]["loss"] == "L1Loss"


def test_a_sim_of_this_house_is_known_by_its_configuration(tmp_path):
    model = koopsim.build("digits/sim-single")
    x = torch.randn(40, 1, 8, 8)
    train(model, (x, torch.arange(40) % 10), tmp_path / "r")
    loaded = koopsim.load(tmp_path / "r")
    assert torch.equal(loaded(x), model.eval()(x))


def test_a_dataset_is_asked_anew_or_read_once(tmp_path):
    class Counted(Noisy):
        asked = 0

        def __getitem__(self, i):
            Counted.asked += 1
            return super().__getitem__(i)

    train(network(), Counted(*points()), tmp_path / "a", valid=0.0)
    streamed, Counted.asked = Counted.asked, 0
    train(network(), Counted(*points()), tmp_path / "b", valid=0.0, stream=False)
    assert streamed >= 3 * 48
    assert Counted.asked == 48
    subset = Subset(TensorDataset(*points()), range(10))
    assert train(network(), subset, tmp_path / "c", valid=0.0)["run"]["task"]["samples"] == 10


class Endless(IterableDataset):
    def __iter__(self):
        yield 1


@pytest.mark.parametrize(
    ("data", "words", "said"),
    [
        (None, {}, "takes a torch Dataset"),
        ("runs/x", {}, "takes a torch Dataset"),
        (Endless(), {}, "IterableDataset"),
        (iter([1]), {}, "expected a torch Dataset"),
        ((torch.zeros(3, 4), [1, 2, 3]), {}, "list in it"),
        ((torch.zeros(3, 4), torch.zeros(2)), {}, "3 and 2 rows"),
        ((torch.zeros(0, 4), torch.zeros(0)), {}, "at least one"),
        ((torch.zeros(3, 5), torch.zeros(3).long()), {}, "cannot be given 2 of these samples"),
        ((torch.zeros(3, 4), torch.zeros(3).long()), {"loss": lambda out, y: out}, "expected one number"),
        ((torch.zeros(1, 4), torch.zeros(1).long()), {}, "valid=0"),
        (points(17), {"valid": 0}, "more than 1 value per channel"),  # the last batch is of one
        (points(), {"valid": 1.5}, "valid is 1.5"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(tmp_path, data, words, said):
    with pytest.raises(KoopsimError, match=said) as error:
        train(network(), data, tmp_path / "r", **words)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "r").exists()


def test_another_module_data_or_nothing_to_learn_is_refused(tmp_path):
    train(network(), points(), tmp_path / "r")
    with pytest.raises(KoopsimError, match="holds another run"):
        train(nn.Linear(4, 2), points(), tmp_path / "r")
    with pytest.raises(KoopsimError, match="another model than this Linear"):
        koopsim.load(tmp_path / "r", model=nn.Linear(4, 2))
    with pytest.raises(KoopsimError, match="no parameters"):
        train(nn.ReLU(), points(), tmp_path / "s")
    (tmp_path / "r" / "result.json").unlink()
    with pytest.raises(KoopsimError, match=r"not what .* was trained on"):
        train(network(), points(48, seed=5), tmp_path / "r")
    with pytest.raises(KoopsimError, match="A preset has its own"):
        koopsim.train("copy/sim-single", points())


def test_a_finished_run_is_read_only_for_what_it_was_trained_on(tmp_path):
    (x, y), right = points(), {"accuracy": lambda out, target: (out.argmax(1) == target).float().mean()}
    model = network()
    result = train(model, (x, y), tmp_path / "r")
    fresh = network(seed=9)
    before = {name: t.clone() for name, t in fresh.state_dict().items()}
    with pytest.raises(KoopsimError, match=r"not what .* was trained on"):
        train(fresh, (x, 1 - y), tmp_path / "r")
    with pytest.raises(KoopsimError, match=r"finished, with no test data"):
        train(fresh, (x, y), tmp_path / "r", test=points(20, 1))
    with pytest.raises(KoopsimError, match=r"finished, with no 'accuracy' on its valid data"):
        train(fresh, (x, y), tmp_path / "r", metrics=right)
    assert all(torch.equal(t, before[name]) for name, t in fresh.state_dict().items())
    assert train(fresh, (x.numpy(), y.numpy()), tmp_path / "r") == result  # the identical data, in another form
    assert torch.equal(fresh[0].weight, model[0].weight)


def test_a_metric_cannot_take_the_place_of_the_loss(tmp_path):
    with pytest.raises(KoopsimError, match="metrics has 'loss', which is the name of the loss's own figure"):
        train(network(), points(), tmp_path / "r", metrics={"loss": lambda out, target: out.sum() * 0})
    assert not (tmp_path / "r").exists()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["tensors", "stream"])
def test_captured_equals_eager(tmp_path, kind):
    data = points() if kind == "tensors" else Noisy(*points())
    models = []
    for capture in (True, False):
        model = network()
        koopsim.train(
            model, data, tmp_path / str(capture), learning=Learning(RECIPE, capture=capture), device="cuda",
            progress=False,
        )  # fmt: skip
        models.append(model)
    for a, b in zip(*(m.state_dict().values() for m in models), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
