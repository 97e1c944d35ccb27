"""Tables by the verbs: train, eval, predict, resume, tune, export, report; and one sentence for what cannot be used."""

import csv
import json

import numpy as np
import pytest

from koopsim import load
from koopsim.cli import main
from koopsim.runs import RunDirectory
from koopsim.table_answers import TableAnswers

FAST = ["--device", "cpu", "--recipe.epochs", "6"]


def rows(n: int = 120) -> tuple[list[str], list[list[object]]]:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, n))
    town = random.integers(0, 3, n)
    y = 2 * a - b + town
    head = ["id", "a", "b", "town", "noise", "y", "high"]
    gaps = random.random(n) < 0.1
    return head, [
        [f"p{i}", "" if gaps[i] else f"{a[i]:.6g}", f"{b[i]:.6g}", ["Bonn", "Kiel", ""][town[i]], i % 7, f"{y[i]:.6g}",
         "yes" if y[i] > 1 else "no"] for i in range(n)
    ]  # fmt: skip


def write(path, head, lines) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *lines])
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, and a run of each kind on it."""
    place = tmp_path_factory.mktemp("tables")
    write(place / "t.csv", *rows())
    own = ["train", "--data", str(place / "t.csv"), *FAST]
    assert main([*own, "--target", "y", "--drop", "id", "high", "--out", str(place / "numbers")]) == 0
    assert main([*own, "--target", "high", "--drop", "id", "y", "--out", str(place / "classes")]) == 0
    return place


def test_what_was_found_out_is_said(folder, tmp_path, capsys):
    own = ["train", "--data", str(folder / "t.csv"), "--target", "high", "--drop", "id", "y", *FAST]
    assert main([*own, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "high: foretold as classes; --goal regress says otherwise" in said
    assert "missing values: a by median" in said
    assert "town by a category of its own" in said


def test_what_was_learnt_is_in_the_run(folder):
    for name, meaning, outputs in (("numbers", "regression", 1), ("classes", "classification", 2)):
        called, run = RunDirectory(folder / name).read_config()
        assert called == "t/sim-single"
        assert run.task.meaning == meaning
        assert run.model.outputs == outputs
        inputs = json.loads((folder / name / "inputs.json").read_text())
        assert [c["name"] for c in inputs["columns"]] == ["a", "b", "town", "noise"]
        assert inputs["columns"][0]["flagged"]
        result = RunDirectory(folder / name).read_result()
        assert {"valid", "test", "look"} <= set(result)
        assert result["look"]["missing"] == {
            "a": f"median {inputs['columns'][0]['fill']:g}, and a flag",
            "town": "a category of its own",
        }
        columns = [row["column"] for row in result["look"]["importances"]]
        assert columns[-1] == "noise" or columns.index("a") < columns.index("noise")
    assert "confusion" in RunDirectory(folder / "classes").read_result()["look"]
    assert "truth" in RunDirectory(folder / "numbers").read_result()["look"]


def test_eval_and_predict_another_table(folder, capsys):
    head, lines = rows()
    other = write(folder / "other.csv", head[::-1], [line[::-1] for line in lines[:30]])
    capsys.readouterr()
    out = folder / "answers.csv"
    assert main(["eval", str(folder / "numbers"), "--data", other, "--out", str(out), "--json", "--device", "cpu"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["rows"] == 30
    assert main(["eval", str(folder / "numbers"), "--data", other, "--split", "valid", "--device", "cpu"]) == 2
    assert "other.csv is judged whole; leave --split or --data out" in " ".join(capsys.readouterr().err.split())
    found = list(csv.DictReader(out.read_text().splitlines()))
    truth, said = (np.array([float(r[key]) for r in found]) for key in ("y", "predicted y"))
    np.testing.assert_allclose(figures["rmse"], np.sqrt(np.mean((truth - said) ** 2)), rtol=1e-4)
    np.testing.assert_allclose(
        figures["score"], 1 - np.sum((truth - said) ** 2) / np.sum((truth - truth.mean()) ** 2), rtol=1e-4
    )
    assert main(["predict", str(folder / "numbers"), other, "--json", "--device", "cpu"]) == 0
    asked = json.loads(capsys.readouterr().out)
    assert [row["predicted y"] for row in asked] == said.tolist()  # to the last digit
    assert [row["y"] for row in asked] == truth.tolist()  # a number, as it is one in the answer
    bare = write(folder / "bare.csv", head[:5], [line[:5] for line in lines[:3]])
    assert main(["predict", str(folder / "classes"), bare, "--device", "cpu"]) == 0
    said = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert said[0] == ["row", "predicted high", "probability", "p(no)", "p(yes)"]
    assert len(said) == 4
    answers = load(folder / "classes").predict(bare)
    assert isinstance(answers, TableAnswers)
    assert answers.labels == [row[1] for row in said[1:]]
    assert main(["eval", str(folder / "classes"), "--device", "cpu"]) == 0
    assert main(["eval", str(folder / "classes"), "--split", "valid", "--out", str(folder / "v.json")]) == 0
    assert set(json.loads((folder / "v.json").read_text())[0]) == {*said[0], "high"}


def test_eval_of_the_tests_answers_is_a_look(tmp_path, capsys):
    """With --out as without: the look is counted, and a table that was replaced is no longer the run's."""
    table, run = write(tmp_path / "t.csv", *rows()), tmp_path / "run"
    assert main(["train", "--data", table, "--target", "y", "--drop", "id", "--out", str(run), *FAST]) == 0
    looks = len(RunDirectory(run).read_looks())
    for n, split in enumerate(("test", "valid", "test")):
        assert main(["eval", str(run), "--split", split, "--out", str(tmp_path / f"{n}.csv"), "--device", "cpu"]) == 0
    assert len(RunDirectory(run).read_looks()) == looks + 2
    assert f"{looks + 2} looks at the test split by now" in capsys.readouterr().out
    head, lines = rows()
    write(tmp_path / "t.csv", head, lines[::-1])
    assert main(["eval", str(run), "--out", str(tmp_path / "moved.csv"), "--device", "cpu"]) == 2
    assert "The data is not what" in capsys.readouterr().err
    assert not (tmp_path / "moved.csv").exists()


@pytest.mark.filterwarnings("default")
def test_eval_of_the_table_that_was_learnt_from_is_said(folder, capsys):
    head, lines = rows()
    for data in (str(folder / "t.csv"), write(folder / "fresh.csv", head, lines[:30])):
        capsys.readouterr()
        assert main(["eval", str(folder / "numbers"), "--data", data, "--json", "--device", "cpu"]) == 0
        assert ("most of these rows it has learnt from" in capsys.readouterr().err) == data.endswith("t.csv")


def test_a_saved_file_answers_too(folder, tmp_path):
    model = load(folder / "classes")
    again = load(model.save(tmp_path / "m.safetensors"))
    np.testing.assert_array_equal(
        again.predict(str(folder / "t.csv")).values, model.predict(str(folder / "t.csv")).values
    )


def test_resume_tune_export_and_report(folder, tmp_path, capsys):
    assert main(["train", "--resume", str(folder / "numbers")]) == 0
    search = [
        "tune",
        "table/sim-single",
        "--scale",
        "smoke",
        "--trials",
        "3",
        "--out",
        str(tmp_path / "s"),
        "--retrain",
        "0",
    ]
    assert main([*search, "--device", "cpu"]) == 0
    assert main(["report", str(folder), "--out", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    for words in ("Tables, looked at", "Permutation importances", "Confusions", "Residuals"):
        assert words in page
    assert (tmp_path / "report" / "tables.png").stat().st_size > 10_000
    pytest.importorskip("onnx")
    assert main(["export", str(folder / "numbers"), "--out", str(tmp_path / "m.pt2"), "--format", "pt2"]) in (0, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--target", "why"], "no column 'why'. Did you mean 'y'"),
        ([], "is a table: say which of its columns"),
        (["--target", "y"], "column 'id' has 84 different words"),
        (["--target", "y", "--drop", "id", "--split", "town"], "column 'town' says 'Bonn'"),
        (["--target", "id"], "120 classes in 120 rows"),
        (["--target", "y", "--drop", "id", "--model.lift.inputs", "99"], "The model cannot be given this data"),
    ],
)
def test_refusals_write_nothing(folder, tmp_path, capsys, change, said):
    assert main(["train", "--data", str(folder / "t.csv"), *change, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_options_of_the_task_are_options_of_the_table(folder, tmp_path):
    """--task.drop id is --drop id: the model is made for what is left."""
    words = ["train", "--data", str(folder / "t.csv"), "--target", "y", "--recipe.epochs", "1", "--device", "cpu"]
    for name, option in (("plain", "--drop"), ("longer", "--task.drop")):
        assert main([*words, option, "id", "--out", str(tmp_path / name)]) == 0
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("plain", "longer")]
    assert configs[0] == configs[1]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([["1", "x"], ["2", ""], *[["3", "y"]] * 20], "1 of 22 rows have no 'y', the target; the first is line 3"),
        ([["1", "x"]] * 20, "is 'x' in every row"),
        ([["1", "2"], ["2", "3"], ["3", "4"]], "has 3 rows; expected at least 10"),
        ([[f"2024-01-{i + 1:02}", i % 2] for i in range(20)], "holds dates such as '2024-01-01'"),
    ],
)
def test_bad_tables(tmp_path, capsys, lines, said):
    file = write(tmp_path / "bad.csv", ["a", "y"], lines)
    assert main(["train", "--data", file, "--target", "y", "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_other_columns_and_taken_files(folder, tmp_path, capsys):
    other = write(tmp_path / "o.csv", ["a", "z"], [[1, 2]] * 3)
    assert main(["eval", str(folder / "numbers"), "--data", other, "--out", str(tmp_path / "p.csv")]) == 2
    assert "no column 'b' and 2 more, which the model was trained on; it has: a, z" in capsys.readouterr().err
    assert not (tmp_path / "p.csv").exists()
    (tmp_path / "mine.csv").write_text("x")
    assert main(["predict", str(folder / "numbers"), other, "--out", str(tmp_path / "mine.csv")]) == 2
    assert "exists; add --overwrite" in capsys.readouterr().err
    assert main(["predict", str(folder / "numbers"), other, other]) == 2
    assert "2 tables are named" in capsys.readouterr().err
    assert main(["eval", str(folder / "numbers"), "--data", other, "--out", str(tmp_path / "p")]) == 2
    assert "ends in .csv or .json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "y", "y"], "--target names 'y' twice; once is enough"),
        (["--target", "a", "--target", "y"], "--target is given twice, and only the last would count"),
        (["--target", "y", "--target=y"], "--target is given twice"),
        (["--target", "y", "--drop", "id", "id"], "--drop names 'id' twice"),
        (["--target", "a", "--drop", "id", "--goal", "classify"], "Numbers are foretold by --goal regress."),
    ],
)
def test_columns_that_cannot_be_meant(folder, tmp_path, capsys, words, said):
    (tmp_path / "f.csv").write_text("id,a,y\n" + "".join(f"{i},{i / 7},{i}\n" for i in range(30)))
    assert main(["train", "--data", str(tmp_path / "f.csv"), *words, *FAST, "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("a", "y"), [("1e300", "1"), ("1", "-1e300"), ("inf", "1"), ("1", "inf")])
def test_numbers_too_large_are_refused_before_anything_is_written(tmp_path, capsys, a, y):
    lines = [[i, i / 7] for i in range(30)]
    file = write(tmp_path / "t.csv", ["a", "y"], [*lines[:20], [a, y], *lines[20:]])
    assert main(["train", "--data", file, "--target", "y", *FAST, "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert f"column '{'y' if a == '1' else 'a'}' is " in err
    assert "in line 22; correct or remove it" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_european_table_is_the_same_table(folder, tmp_path):
    """Semicolons, decimal commas, one more of them at each end."""
    head, lines = rows()
    text = "\n".join(";".join([*(str(cell).replace(".", ",") for cell in line), ""]) for line in [head, *lines])
    (tmp_path / "t.csv").write_text(text)
    own = ["train", "--data", str(tmp_path / "t.csv"), *FAST, "--target", "y", "--drop", "id", "high"]
    assert main([*own, "--out", str(tmp_path / "run")]) == 0
    result, plain = (RunDirectory(place).read_result() for place in (tmp_path / "run", folder / "numbers"))
    assert result["test"] == plain["test"]


@pytest.mark.filterwarnings("default")
def test_a_slip_is_said_once(tmp_path, capsys):
    words = ["low"] * 29 + ["high"] * 30
    cells = [*[str(i % 5) for i in range(58)], "1.5.2"]
    file = write(tmp_path / "t.csv", ["a", "y"], list(zip(cells, words, strict=True)))
    assert main(["train", "--data", file, "--target", "y", *FAST, "--out", str(tmp_path / "run")]) == 0
    err = capsys.readouterr().err
    assert err.count("line 60: '1.5.2' is no number, as 58 of the 59 cells of column 'a' are") == 1
