"""The task of tables: what it learns from, what it judges by, and one sentence for what it cannot use."""

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, mean_absolute_error, r2_score, root_mean_squared_error

from koopsim.config import Run
from koopsim.datasets.table_inputs import Target
from koopsim.errors import KoopsimError
from koopsim.kinds import task_kind
from koopsim.presets import run_of
from koopsim.searching.stacking import stack_key, stackable
from koopsim.tasks import build_task, table
from koopsim.tasks.base import ModelAnswers
from koopsim.tasks.table import TableConfig, TableTask, batch_for, row_figures


def csv(path, n=60, text=None) -> str:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, n))
    parts = ("train", "valid", "test")
    rows = [f"{a[i]},{'ABC'[i // 3 % 3]},{i % 6},{parts[i % 3]},{2 * a[i] + b[i]}" for i in range(n)]
    path.write_text(text or "a,town,patient,part,y\n" + "\n".join(rows) + "\n")
    return str(path)


def test_figures_are_scikit_learns():
    rng = np.random.default_rng(0)
    scores, y = rng.normal(size=(50, 3)), rng.integers(0, 3, 50)
    found = row_figures(torch.tensor(scores), torch.tensor(y), (Target("y", ("a", "b", "c")),))
    assert found["score"] == pytest.approx(np.mean(scores.argmax(1) == y))
    assert found["balanced"] == pytest.approx(balanced_accuracy_score(y, scores.argmax(1)))
    f, y = rng.normal(size=(2, 50, 2))
    found = row_figures(torch.tensor(f), torch.tensor(y), (Target("y", None, 5.0, 3.0), Target("z")))
    assert found["score"] == pytest.approx(r2_score(y, f))
    assert found["rmse"] == pytest.approx(3 * root_mean_squared_error(y[:, 0], f[:, 0]))
    assert found["mae"] == pytest.approx(3 * mean_absolute_error(y[:, 0], f[:, 0]))


def test_rows_are_judged_in_pieces(tmp_path, monkeypatch):
    task = TableTask(TableConfig(csv(tmp_path / "t.csv"), ("y",), drop=("part", "patient")))
    models = [torch.nn.Linear(4, 1) for _ in range(3)]
    x = task.split("train")[0]
    whole = task.outputs(ModelAnswers(models), x)
    assert whole.shape == (3, 42, 1)
    monkeypatch.setattr(table, "EVALUATION_BATCH", 10)
    torch.testing.assert_close(task.outputs(ModelAnswers(models), x), whole)


def test_scaling_is_of_the_training_rows(tmp_path):
    task = build_task(TableConfig(csv(tmp_path / "t.csv"), ("y",), drop=("part", "patient")))
    assert isinstance(task, TableTask)
    x, y = task.split("train")
    torch.testing.assert_close(x[:, 0].mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(y.std(correction=0), torch.tensor(1.0), atol=1e-6, rtol=0)
    assert x.shape[1] == 4
    sizes = {name: len(task.split(name)[0]) for name in ("train", "valid", "test", "train+valid")}
    assert sizes == {"train": 42, "valid": 6, "test": 12, "train+valid": 48}


def test_splits_by_column_and_by_group(tmp_path):
    file = csv(tmp_path / "t.csv")
    said = TableTask(TableConfig(file, ("y",), drop=("patient",), split="part"))
    assert said.rows("test").tolist() == list(range(2, 60, 3))
    assert {c.name for c in said.takes.columns} == {"a", "town"}
    grouped = TableTask(TableConfig(file, ("y",), drop=("part",), group="patient", valid=0.2))
    patients = {name: {i % 6 for i in grouped.rows(name).tolist()} for name in ("train", "valid", "test")}
    assert not patients["train"] & patients["test"]
    assert not patients["train"] & patients["valid"]
    assert "patient" not in {c.name for c in grouped.takes.columns}


def test_trials_of_a_search_share_a_stack():
    run = run_of("table/sim-single")
    kind = task_kind(run.task)
    space = kind.space(kind.search_base(run), smoke=True)
    assert stackable(run)
    assert set(space.parameters) == {"recipe.learning_rate", "recipe.weight_decay"}
    assert isinstance(run, Run)
    assert stack_key(run)


def test_batches_grow_with_the_table():
    assert [batch_for(n) for n in (10, 150, 400, 1000, 10**4, 10**5, 10**7)] == [32, 64, 128, 128, 512, 2048, 4096]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": ("z",)}, "no column 'z'"),
        ({"target": ("y",), "drop": ("q",)}, "no column 'q'"),
        ({"target": ("y",), "group": "q"}, "no column 'q'"),
        ({"target": ("y",), "split": "town"}, "column 'town' says 'A'"),
        ({"target": ("y", "town")}, "holds words; regression foretells numbers"),
        ({"target": ()}, "No target is named"),
        ({"target": ("y",), "group": "town", "split": "part"}, "name one"),
        ({"target": ("y",), "test": 1.0}, "together below 1"),
    ],
)
def test_refusals(tmp_path, settings, message):
    with pytest.raises(KoopsimError, match=message):
        build_task(TableConfig(csv(tmp_path / "t.csv"), **settings))


def test_three_rows_are_too_few(tmp_path):
    with pytest.raises(KoopsimError, match="has 3 rows; expected at least 10"):
        build_task(TableConfig(csv(tmp_path / "t.csv", text="a,y\n1,2\n2,3\n3,4\n"), ("y",)))
