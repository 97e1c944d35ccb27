"""A look at a model of a table: truth in the units of the table, confusions counted, columns by what they are worth."""

import numpy as np
import pytest
import torch

from koopsim.datasets.table import read_table
from koopsim.datasets.table_inputs import TableInputs
from koopsim.datasets.table_learning import learn_inputs, learn_targets
from koopsim.tasks import table_look


def learnt(tmp_path, target):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 40))
    lines = [f"{x:.6f},{y:.6f},{10 + 4 * x:.6f},{'hot' if x > 0 else 'cold'}" for x, y in zip(a, b, strict=True)]
    (tmp_path / "t.csv").write_text("a,b,price,state\n" + "\n".join(lines) + "\n")
    table = read_table(tmp_path / "t.csv")
    drop = "state" if target == "price" else "price"
    rows = np.arange(40)
    targets = learn_targets(table, [target], None, rows)
    inputs: TableInputs = learn_inputs(table, targets, rows)
    kept = [c for c in inputs.columns if c.name != drop]
    inputs = TableInputs(tuple(kept), inputs.targets)
    return inputs, torch.as_tensor(inputs.encode(table)), torch.as_tensor(inputs.encode_targets(table))


def test_numbers_in_the_units_of_the_table(tmp_path):
    inputs, x, y = learnt(tmp_path, "price")
    mse = lambda answers, truth: -float((answers - truth).double().square().mean())  # noqa: E731
    found = table_look.look_at(lambda rows: rows[:, :1].double(), mse, x, y, inputs)
    assert found["rows"] == 40
    assert found["target"] == "price"
    truth, answers = np.array(found["truth"]), np.array(found["answers"])
    assert truth.min() > -5
    assert truth.mean() == pytest.approx(float(inputs.targets[0].mean), abs=1e-4)
    np.testing.assert_allclose(answers, truth, atol=1e-3)  # the price is a line in a, and both are scaled
    assert found["score"] == pytest.approx(0, abs=1e-9)
    first, second = found["importances"]
    assert (first["column"], second["column"]) == ("a", "b")
    assert first["mean"] > 1.0
    assert first["std"] > 0
    assert (second["mean"], second["std"]) == (0, 0)


def test_classes_are_counted_truth_by_answer(tmp_path, monkeypatch):
    inputs, x, y = learnt(tmp_path, "state")
    right = lambda answers, truth: float((answers.argmax(1) == truth).double().mean())  # noqa: E731
    ask = lambda rows: torch.stack([rows[:, 0] * 0, rows[:, 0] - rows[:, 0].median()], dim=1).double()  # noqa: E731
    found = table_look.look_at(ask, right, x, y, inputs)
    assert found["classes"] == ["cold", "hot"]
    counts = np.array(found["confusion"])
    assert counts.sum() == 40
    answers = ask(x).argmax(1)
    for truth in (0, 1):
        for said in (0, 1):
            assert counts[truth, said] == int(((y == truth) & (answers == said)).sum())
    assert found["score"] == pytest.approx(counts.trace() / 40)
    monkeypatch.setattr(table_look, "MOST_ROWS", 11)
    assert table_look.look_at(ask, right, x, y, inputs)["rows"] == 11
