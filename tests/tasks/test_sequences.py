"""Tasks of sequences: losses against plain words, masks that mask, intervals that cover, and copy memory in them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from koopsim.config import CopyMemoryConfig, Recipe, Run
from koopsim.engine.stacked import Stacked
from koopsim.errors import KoopsimError
from koopsim.kinds import SequenceShape, model_kind
from koopsim.models import build
from koopsim.presets import run_of
from koopsim.tasks import CopyMemory, build_task
from koopsim.tasks.base import ModelAnswers
from koopsim.tasks.forecast_sequences import ForecastSequences, ForecastSequencesConfig
from koopsim.tasks.label_sequences import ClassifySequences, ClassifySequencesConfig, TagSequencesConfig
from koopsim.tasks.sequence_data import MODELS

CPU = torch.device("cpu")


def one_step(model, z, x):
    values = x.unsqueeze(-1) if model.inputs == 1 else x
    return model.deq.cell(z, model.injection(model.embedding(values)))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("channels", [0, 1, 3])
def test_what_is_filled_in_is_never_seen(name, channels):
    """Models are causal: the answers at the steps of a sequence do not depend on what comes after."""
    config = model_kind(MODELS[name]).for_sequences(MODELS[name], SequenceShape(channels, 20), 4)
    torch.manual_seed(0)
    model = build(config).double().eval()
    shape = (2, 20) if channels < 2 else (2, 20, channels)
    x = torch.randint(0, 256, shape) if channels == 0 else torch.randn(shape, dtype=torch.float64)
    other = x.clone()
    other[:, 12:] = 0
    if name == "deq":  # its cell: then so is its fixed point, wherever there is one
        z = torch.randn(2, 20, 32, dtype=torch.float64)
        model = partial(one_step, model, z)
    torch.testing.assert_close(model(x)[:, :12], model(other)[:, :12], rtol=1e-5, atol=1e-7)


def test_a_label_is_the_mean_over_the_steps_that_are_there():
    task = ClassifySequences(ClassifySequencesConfig(samples=40))
    assert task.masked
    _, y = task.split("train")
    outputs = torch.randn(*y.shape, 6)
    lengths = (y >= 0).sum(1)
    assert len(set(lengths.tolist())) > 1
    pooled = torch.stack([own[:n].mean(0) for own, n in zip(outputs, lengths.tolist(), strict=True)])
    labels = torch.tensor([int(own[0]) for own in y])
    torch.testing.assert_close(task.loss(outputs, y), F.cross_entropy(pooled, labels))
    changed = outputs.clone()
    changed[y < 0] += 100.0
    assert torch.equal(task.loss(changed, y), task.loss(outputs, y))

    class Fixed:
        members, unconverged = 1, None

        def __call__(self, xs):
            return outputs[None, : len(xs)]

    (figures,) = task.judge(Fixed(), "train", [0])
    assert figures["accuracy"] == pytest.approx(float((pooled.argmax(1) == labels).double().mean()))


def test_tags_count_only_where_a_sequence_is():
    task = build_task(TagSequencesConfig(samples=30))
    _, y = task.split("valid")
    outputs = torch.randn(*y.shape, 3)
    there = y >= 0
    torch.testing.assert_close(task.loss(outputs, y), F.cross_entropy(outputs[there], y[there]))


def forecaster(**words):
    return ForecastSequences(ForecastSequencesConfig(**{"samples": 600, "ahead": 3, "context": 8} | words))


def test_a_forecast_is_of_the_next_steps_and_parts_do_not_overlap():
    task = forecaster()
    series = task.flat[:, 0]
    for split in ("train", "valid", "test"):
        x, y = task.split(split)
        window = task.inputs(x[:5])
        assert torch.equal(window[0], series[int(x[0]) : int(x[0]) + 8])
        zeros = torch.zeros(5, 8, 3)
        expected = [
            (series[s + t] - series[s + t + k]) ** 2 for s in y[:5, 0].tolist() for t in range(4, 8) for k in (1, 2, 3)
        ]
        torch.testing.assert_close(task.loss(zeros, y[:5]), torch.stack(expected).mean())
    ends = {split: task.split(split)[0] + 8 for split in ("train", "valid", "test")}  # where the forecasts begin
    assert int(ends["train"].max()) + 3 <= int(ends["valid"].min())
    assert int(ends["valid"].max()) + 3 <= int(ends["test"].min())
    learnt = series[: int(ends["valid"].min())]
    assert abs(float(learnt.mean())) < 1e-3  # scaled by what is learnt from, and by nothing else
    assert abs(float(learnt.std()) - 1) < 2e-2


def test_intervals_cover_what_they_say_where_the_parts_are_alike():
    """Errors of one law in both parts: the coverage within three deviations, and the quantile is conformal's."""
    task = forecaster(samples=4000, coverage=0.8)
    random = torch.Generator().manual_seed(0)
    calibrating, testing = (torch.randn(2000, 3, 1, generator=random) for _ in range(2))
    radii = task.radii(calibrating)
    share = (testing.abs() <= radii).double().mean()
    assert abs(float(share) - 0.8) < 3 * (0.16 / 2000) ** 0.5
    ranked = calibrating.abs()[:, 0, 0].sort().values
    assert radii[0, 0] == ranked[int(np.ceil(2001 * 0.8)) - 1]
    model = build(_fitting(task))
    (figures,) = task.judge(ModelAnswers([model]), "test", [0])
    assert 0.6 < figures["coverage"] < 0.95
    (said,) = [task.concluded([model])["intervals"]]
    assert np.array(said["radii"]).shape == (3, 1)


def _fitting(task):
    base = run_of("forecast/sim-single").model
    return model_kind(base).for_sequences(base, task.takes.shape, task.takes.outputs)


def test_a_forecaster_keeps_its_middle_part():
    run = run_of("forecast/sim-single", "smoke")
    with pytest.raises(KoopsimError, match="middle part for the intervals"):
        build_task(run.task).data(replace(run, train_on="train+valid"), [0])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"samples": 20}, "no window of 64 steps"),
        ({"target": ("nothing",)}, "no column 'nothing' to forecast"),
        ({"ahead": 0}, "expected at least"),
        ({"coverage": 1.0}, "coverage"),
        ({"valid": 0.6, "test": 0.5}, "less than 1 together"),
    ],
)
def test_what_cannot_be_forecast_is_one_sentence(config, said):
    with pytest.raises(KoopsimError, match=said):
        ForecastSequences(ForecastSequencesConfig(**config))


def test_copy_memory_is_tagging_to_the_bit(tmp_path):
    """The paper's task, and the tagger on the same arrays in a file: the same losses and the same weights."""
    small = CopyMemoryConfig(horizon=5, train=60, valid=10, test=10)
    copy = CopyMemory(small)
    split = ["train"] * 60 + ["valid"] * 10 + ["test"] * 10
    np.savez(tmp_path / "copy.npz", x=copy.x.numpy(), y=copy.y.numpy(), split=split)
    model = replace(run_of("copy/sim-single").model, lift_dim=8, hidden=8)
    recipe = Recipe(batch_size=10, epochs=2, learning_rate=1e-3, clip_norm=1.0)
    found = []
    for task in (small, TagSequencesConfig(str(tmp_path / "copy.npz"))):
        run = Run(model, task, recipe, train_on="train")
        slots = Stacked([run], build_task(task), CPU, 2)
        losses = []
        for _ in range(2):
            slots.begin_epoch()
            slots.advance(0, slots.epoch_steps)
            losses.append(slots.losses(0).clone())
            slots.finish_epoch()
        found.append((torch.stack(losses), slots.part.members.flat.clone()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("seed", [0, 1])
def test_an_oscillator_is_foretold_better_than_by_its_last_value(seed):
    run = run_of("forecast/sim-single")
    task = replace(run.task, samples=900, context=24, ahead=6, seed=seed)
    built = build_task(task)
    model = replace(_fitting(built), lift=replace(_fitting(built).lift, channels=8), lift_dim=16, hidden=16)
    recipe = replace(run.recipe, epochs=4, learning_rate=1e-2)
    slots = Stacked([replace(run, model=model, task=task, recipe=recipe)], built, CPU, 4)
    for _ in range(4):
        slots.begin_epoch()
        slots.advance(0, slots.epoch_steps)
        slots.finish_epoch()
    figures = built.evaluate(slots.part.members.model(0), "test")
    assert figures["rmse"] < 0.7 * figures["last_value_rmse"]
