"""What kinds of tasks and models make of data of one's own, of searches and of pictures, said of single cases."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from koopsim.engine.drive import pick_device
from koopsim.errors import KoopsimError
from koopsim.kinds import OwnColumns, model_kind, task_kind
from koopsim.nn.own import OwnModelConfig
from koopsim.nn.tokens import TokenTCN, TokenTCNConfig
from koopsim.presets import run_of
from koopsim.tasks import build_task

CPU = torch.device("cpu")


def test_own_pictures_are_held_out_and_their_batches_fit(tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (200, 1, 8, 12), np.uint8)
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=np.arange(200) % 3, x_test=x, y_test=np.arange(200) % 3)
    run = run_of("cifar10/sim-single")
    kind = task_kind(run.task)
    name, own = kind.on_own_data(run, "cifar10/sim-single", str(tmp_path / "mine.npz"))
    assert name == "mine/sim-single"
    assert own.train_on == "train"
    assert own.model.lift.image == (1, 8, 12)
    assert own.model.outputs == 3
    assert own.recipe.batch_size == min(run.recipe.batch_size, 10)  # a twentieth
    assert own.task.dataset == str(tmp_path / "mine.npz")
    named, known = kind.on_own_data(run, "cifar10/sim-single", "digits")
    assert named == "digits/sim-single"
    assert (known.task.dataset, known.train_on) == ("digits", run.train_on)
    assert kind.data_sets(known.task) == {"digits"}
    assert kind.data_sets(own.task) == set()
    few = tmp_path / "few.npz"
    np.savez(few, x_train=x[:30], y_train=np.arange(30) % 3, x_test=x[:30], y_test=np.arange(30) % 3)
    assert kind.on_own_data(run, "cifar10/sim-single", str(few))[1].recipe.batch_size == 8  # eight at least


def test_a_horizon_is_for_forecasts_alone():
    forecast, classify = (task_kind(run_of(f"{name}/sim-single").task) for name in ("forecast", "classify"))
    assert classify.settings(OwnColumns()) == {}
    with pytest.raises(KoopsimError, match="--horizon is how far to forecast; there is a label to be told here"):
        classify.settings(OwnColumns(horizon=3))
    assert 3 in forecast.settings(OwnColumns(horizon=3)).values()
    assert forecast.settings(OwnColumns()) == {}


def test_a_search_of_pictures_looks_five_times_as_often_and_ends_in_a_run_that_looks_every_hundred():
    run = run_of("image/sim-two", "paper")
    kind = task_kind(run.task)
    steps = run.task.steps_an_epoch * run.recipe.epochs
    run = replace(run, task=replace(run.task, steps_an_epoch=100), recipe=replace(run.recipe, epochs=20))
    base = kind.search_base(run)
    assert (base.task.steps_an_epoch, base.recipe.epochs) == (20, 100)
    other = replace(run, task=replace(run.task, steps_an_epoch=50))
    assert kind.search_base(other).task.steps_an_epoch == 50
    for a, epochs, wanted in ((1, 2000, (100, 20)), (19, 1000, (100, 190)), (20, 100, (20, 100)), (3, 50, (3, 50))):
        own = replace(run, task=replace(run.task, steps_an_epoch=a), recipe=replace(run.recipe, epochs=epochs))
        final = kind.final(own)
        assert (final.task.steps_an_epoch, final.recipe.epochs) == wanted
    assert steps > 0
    assert [name for name, _ in kind.variants(run, ["natural", "/x/text"], 4)] == ["-natural", "-text"]
    assert [(r.task.pictures, r.task.count) for _, r in kind.variants(run, ["natural"], 4)] == [("natural", 4)]


def test_a_picture_is_drawn_row_by_row(monkeypatch):
    run = run_of("image/sim-single", "smoke")
    task = build_task(replace(run.task, size=8, count=1))
    monkeypatch.setattr("koopsim.tasks.image_regression.EVALUATION_ROWS", 7)

    class Coordinates(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return torch.cat([x, x[:, :1] * 0 + self.one], dim=1)

    drawn = task.draw(Coordinates())
    assert drawn.shape == (8, 8, 3)
    np.testing.assert_allclose(drawn[3, 5], [5 / 8, 3 / 8, 1])
    line = task.line(torch.tensor([[0.5, 0.1], [0.5, 0.001]]), {"psnr": 7.0})
    assert line == pytest.approx({"train_loss": 0.0505, "train_psnr": 20.0, "valid_psnr": 7.0}, rel=1e-5)
    assert "valid_psnr" not in task.line(torch.tensor([[0.5]]), None)


def test_tokens_are_embedded_without_mean_and_of_unit_size():
    table = torch.randn(10, 6) * 3 + 5
    model = TokenTCN(table, 4, 2, channels=8, kernel=3)
    assert model.embedding.mean(dim=0).abs().max() < 1e-5
    torch.testing.assert_close(model.embedding * table.std(), table - table.mean(dim=0), rtol=1e-4, atol=1e-4)
    tokens = torch.randint(0, 10, (2, 5))
    torch.testing.assert_close(model(tokens), model.tcn(F.embedding(tokens, model.embedding)))
    torch.testing.assert_close(model(tokens.float()), model(tokens))
    from koopsim.kinds import lift_kind

    kind, config = lift_kind(TokenTCNConfig()), TokenTCNConfig(vocabulary=7, width=5, levels=1, channels=6, kernel=2)
    built = kind.build(config, 3)
    assert built(torch.zeros(1, 4)).shape == (1, 4, 3)
    x, axes = kind.example(config, 200, 6, torch.Generator().manual_seed(0))
    assert (x.shape, int(x.min()), int(x.max()), axes) == ((200, 6), 0, 6, {0: "batch", 1: "length"})


def test_what_a_module_of_ones_own_is_called():
    for config, name in ((OwnModelConfig("Net", "0"), "Net"), (OwnModelConfig("", "0"), "module")):
        kind = model_kind(config)
        assert (kind.slug(config), kind.title(config)) == (name, name)


def test_a_device_that_cannot_be_used_is_one_sentence():
    assert pick_device("cpu") == CPU
    assert pick_device(CPU) == CPU
    for name in ("tpu", "meta", "cuda:99" if not torch.cuda.is_available() else "cuda:9999"):
        with pytest.raises(KoopsimError, match=rf"^The device '{name}' cannot be used here: .*[^.]\.$"):
            pick_device(name)


def test_a_text_of_ones_own_has_no_labels(tmp_path):
    run = run_of("text/sim-single")
    kind, file = task_kind(run.task), tmp_path / "poem.txt"
    file.write_text("roses")
    for goal in (None, "forecast"):
        name, own = kind.on_own_table(run, "text/sim-single", str(file), OwnColumns(goal=goal))
        assert (name, own.task.text, own.model) == ("poem/sim-single", str(file), run.model)
    with pytest.raises(KoopsimError, match="is one text without labels"):
        kind.on_own_table(run, "text/sim-single", str(file), OwnColumns(goal="classify"))


def test_an_example_of_a_gru_is_symbols_a_series_or_vectors():
    from koopsim.nn.recurrent import SYMBOLS, GRUConfig

    kind, random = model_kind(GRUConfig()), torch.Generator().manual_seed(0)
    symbols, axes = kind.example(GRUConfig(inputs=0), 300, 5, random)
    assert (symbols.shape, symbols.dtype, int(symbols.max()), axes) == (
        (300, 5), torch.int64, SYMBOLS - 1, {0: "batch", 1: "length"},
    )  # fmt: skip
    assert kind.example(GRUConfig(inputs=1), 3, 5, random)[0].shape == (3, 5)
    assert kind.example(GRUConfig(inputs=4), 3, 5, random)[0].shape == (3, 5, 4)


@pytest.mark.parametrize("kernel", [2, 3, 8])
def test_as_many_levels_as_it_takes_to_see_the_whole_sequence(kernel):
    """Of L levels the last step sees 1 + 2 (k - 1)(2^L - 1) steps: so many take L, one more takes L + 1."""
    from koopsim.config import TCNConfig
    from koopsim.kinds import SequenceShape, lift_kind

    config = TCNConfig(kernel=kernel)
    kind = lift_kind(config)
    for levels in (2, 3, 5, 7):
        seen = 1 + 2 * (kernel - 1) * (2**levels - 1)
        assert kind.for_sequences(config, SequenceShape(2, seen)).levels == levels
        assert kind.for_sequences(config, SequenceShape(2, seen + 1)).levels == levels + 1
    assert kind.for_sequences(config, SequenceShape(2, 2)).levels == 2  # two at least, eight at most
    assert kind.for_sequences(config, SequenceShape(2, 10**6)).levels == 8
    assert kind.for_sequences(config, SequenceShape(2, 20)).input_channels == 2
    assert kind.for_sequences(TCNConfig(kernel=1), SequenceShape(2, 5)).levels == 8
    assert type(kind.for_sequences(config, SequenceShape(0, 20))).__name__ == "ByteTCNConfig"


def test_pictures_are_streamed_where_they_take_more_than_half_of_what_is_free(tmp_path):
    from koopsim.config import ClassificationConfig
    from koopsim.datasets.blocks import streamable

    x = np.zeros((6, 1, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.arange(6) % 2, x_test=x, y_test=np.arange(6) % 2)
    config = ClassificationConfig(str(tmp_path / "a.npz"))
    kind, size = task_kind(config), streamable(config.dataset, None, False).bytes
    assert kind.settled(config, 2 * size) == (config, "")
    changed, told = kind.settled(config, 2 * size - 2)
    assert changed == replace(config, stream="yes")
    assert "is streamed: 6 pictures of 0.0 GiB, and 0.0 GiB are free." in told
    assert kind.settled(replace(config, stream="no"), 0)[1] == ""
    assert kind.settled(ClassificationConfig("digits"), 0)[1] == ""
