"""Forecasts of a straight line, where everything can be worked out by hand; and a text of which nothing is known."""

import math

import numpy as np
import pytest
import torch

from koopsim.errors import KoopsimError
from koopsim.tasks.base import Answers
from koopsim.tasks.forecast_sequences import ForecastSequences, ForecastSequencesConfig
from koopsim.tasks.label_sequences import TagSequences, TagSequencesConfig, mean_of_steps
from koopsim.tasks.text import Text, TextConfig


class Nothing(Answers):
    """Zeros of so many outputs at every step: of a forecast, that the last value stays."""

    members = 1

    def __init__(self, outputs, steps=lambda x: x.shape[1]):
        self.outputs, self.steps = outputs, steps

    def __call__(self, x):
        return torch.zeros(1, len(x), self.steps(x), self.outputs)


@pytest.fixture
def line(tmp_path):
    (tmp_path / "line.csv").write_text("v\n" + "\n".join(map(str, range(20))) + "\n")
    config = ForecastSequencesConfig(str(tmp_path / "line.csv"), ahead=2, context=3, test=0.2, valid=0.2)
    return ForecastSequences(config)


def test_windows_lie_where_their_forecasts_do(line):
    """Of 20 steps the last 4 are for the test and 4 before them for the intervals; windows have 3 steps, and 2 more."""
    found = {name: line.split(name)[0].flatten().tolist() for name in ("train", "valid", "test")}
    assert found == {"train": list(range(8)), "valid": [9, 10, 11], "test": [13, 14, 15]}
    assert line.split("train+valid")[0].flatten().tolist() == found["train"] + found["valid"]
    s = line.takes.scale[0]
    assert 1 / s == pytest.approx(math.sqrt(143 / 12), rel=1e-5)  # of 0 .. 11, the part that is learnt
    window = line.inputs(torch.tensor([[4]]))
    assert (window[0] / s).diff().tolist() == pytest.approx([1, 1], rel=1e-4)
    with pytest.raises(KoopsimError, match=r"no split 'all'; expected one of train, valid, test"):
        line.split("all")


def test_figures_of_the_last_value(line):
    s = line.takes.scale[0]
    starts = line.split("train")[1]
    outputs = torch.zeros(len(starts), 3, 2)
    assert float(line.loss(outputs, starts)) == pytest.approx((1 + 4) / 2 * s**2, rel=1e-4)
    steps = torch.tensor([s, 2 * s]).expand(len(starts), 3, 2)  # the line itself
    assert float(line.loss(steps, starts)) == pytest.approx(0, abs=1e-8)
    (found,) = line.judge(Nothing(2), "test", [0])
    wanted = {"rmse": math.sqrt(2.5) * s, "mae": 1.5 * s, "coverage": 1.0, "radius": 1.5 * s}
    assert found == pytest.approx(wanted | {"last_value_rmse": math.sqrt(2.5) * s}, rel=1e-4)


def test_intervals_are_conformal_quantiles(line):
    """The ceil((n + 1) c)-th smallest error, or the largest where there are too few."""
    errors = torch.tensor([3.0, -1.0, 2.0, -5.0, 4.0, 0.5, 7.0, -6.0, 8.0]).view(9, 1, 1)
    for coverage, radius in ((0.5, 4.0), (0.51, 5.0), (0.9, 8.0), (0.99, 8.0), (0.05, 0.5)):
        line.config = ForecastSequencesConfig(ahead=2, context=3, coverage=coverage)
        assert float(line.radii(errors)) == radius


def test_concluded_in_the_units_of_the_data(line, monkeypatch):
    monkeypatch.setattr("koopsim.tasks.forecast_sequences.ModelAnswers", lambda models: Nothing(2))
    found = line.concluded([None])["intervals"]
    assert (found["coverage"], found["windows"]) == (0.9, 3)
    np.testing.assert_allclose(found["radii"], [[1.0], [2.0]], rtol=1e-4)


def test_at_least_a_step_from_two_with_a_coverage_between():
    ForecastSequencesConfig(ahead=1, context=2, coverage=0.5)
    for bad in ({"ahead": 0}, {"context": 1}, {"coverage": 0.0}, {"coverage": 1.0}):
        with pytest.raises(KoopsimError, match="least 1 step from 2, and a coverage between 0 and 1"):
            ForecastSequencesConfig(**bad)


# ---------------------------------------------------------------- text


@pytest.fixture
def text(tmp_path):
    data = bytes((n * 7) % 5 for n in range(35 * 4 + 3))
    (tmp_path / "t").write_bytes(data)
    return Text(TextConfig(str(tmp_path / "t"), length=4)), data


def test_a_text_is_cut_into_windows_and_these_into_parts(text):
    task, data = text
    sizes = {name: len(task.split(name)[0]) for name in ("train", "valid", "test", "train+valid")}
    assert sizes == {"train": 29, "valid": 3, "test": 3, "train+valid": 32}
    x, y = task.split("test")
    assert bytes(x.flatten().tolist()) == data[32 * 4 : 35 * 4]
    assert bytes(y.flatten().tolist()) == data[32 * 4 + 1 : 35 * 4 + 1]  # the next byte
    with pytest.raises(KoopsimError, match="A text has no split 'all'"):
        task.split("all")


def test_who_knows_nothing_needs_eight_bits_a_byte(text):
    task, _ = text
    (found,) = task.judge(Nothing(256), "train+valid", [0])
    assert found["bits"] == pytest.approx(8)
    zeros = float((task.split("train+valid")[1] == 0).double().mean())  # the first of equals
    assert found["right"] == pytest.approx(zeros)
    assert float(task.loss(torch.zeros(2, 4, 256), task.split("valid")[1][:2])) == pytest.approx(math.log(256))


def test_ten_windows_of_two_bytes_are_the_least(tmp_path):
    (tmp_path / "t").write_bytes(bytes(21))
    assert len(Text(TextConfig(str(tmp_path / "t"), length=2)).x) == 10
    assert len(Text(TextConfig(str(tmp_path / "t"), length=2, windows=10)).x) == 10
    (tmp_path / "t").write_bytes(bytes(20))
    with pytest.raises(KoopsimError, match="The text has 20 bytes, 9 windows of 2; expected at least 10"):
        Text(TextConfig(str(tmp_path / "t"), length=2))
    for bad in ({"length": 1}, {"windows": 9}):
        with pytest.raises(KoopsimError, match="expected at least 10 of 2"):
            TextConfig(**bad)


# ---------------------------------------------------------------- labels


def test_the_mean_is_over_steps_that_are_there():
    outputs = torch.tensor([[[1.0, 0.0], [3.0, 2.0], [100.0, 100.0]]])
    there = torch.tensor([[True, True, False]])
    assert mean_of_steps(outputs, there).tolist() == [[2.0, 1.0]]
    assert mean_of_steps(outputs.unsqueeze(0), there).tolist() == [[[2.0, 1.0]]]


def table(tmp_path, rows):
    (tmp_path / "t.csv").write_text("who,v,state\n" + "\n".join(f"{w},{v},{s}" for w, v, s in rows) + "\n")
    return TagSequencesConfig(str(tmp_path / "t.csv"), id="who", target=("state",))


def test_labels_that_cannot_be_learnt_are_refused(tmp_path):
    few = [(f"p{i}", j, "up" if j else "down") for i in range(4) for j in range(3)]
    with pytest.raises(KoopsimError, match="has 4 sequences; train, valid and test need five at least"):
        TagSequences(table(tmp_path, few))
    alike = [(f"p{i}", j, "up") for i in range(6) for j in range(3)]
    with pytest.raises(KoopsimError, match="has 1 class; telling them apart needs two at least"):
        TagSequences(table(tmp_path, alike))
    enough = [(f"p{i}", j, "up" if (i + j) % 2 else "down") for i in range(5) for j in range(2 + i % 2)]
    task = TagSequences(table(tmp_path, enough))
    assert task.masked
    assert task.y.shape == (5, 3)
    assert sorted(int((row < 0).sum()) for row in task.y) == [0, 0, 1, 1, 1]
    assert task.classes == ("down", "up")
    parts = [task.parts[name].tolist() for name in ("train", "valid", "test")]
    assert sorted(row for part in parts for row in part) == list(range(5))
    assert all(parts)
