"""Sequences as a person meets them: a long table through all verbs, lengths that differ, text, and what goes wrong."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from koopsim.cli import main
from koopsim.cli.own_data import on_own_data
from koopsim.errors import KoopsimError
from koopsim.runs import RunDirectory
from koopsim.sequence_answers import SequenceAnswers
from koopsim.tasks import build_task

SMALL = ["--device", "cpu", "--model.lift.channels", "8", "--model.lift-dim", "8", "--model.hidden", "8"]
FEW = ["--task.context", "16", "--recipe.epochs", "3", "--recipe.learning-rate", "0.01"]


def write_log(path, who=("a", "b", "c"), steps=220, seed=0):
    random = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["who", "hour", "load", "heat", "note"])
        for name in who:
            t = np.arange(steps + len(name))
            load = 5 + np.sin(t / 3 + random.uniform(0, 6)) + 0.1 * random.normal(size=len(t))
            rows = [[name, int(h), f"{v:.4f}", f"{20 - v:.4f}", "x"] for h, v in zip(t, load, strict=True)]
            writer.writerows(rows[::-1])  # in no order
    return path


@pytest.fixture(scope="module")
def forecaster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forecast")
    data = write_log(folder / "log.csv")
    words = ["--id", "who", "--time", "hour", "--target", "load", "--horizon", "5", "--drop", "note"]
    out = str(folder / "run")
    assert main(["train", "--data", str(data), *words, *SMALL, *FEW, "--out", out, "--json"]) == 0
    return folder


def test_a_run_says_how_good_its_intervals_were(forecaster):
    result = RunDirectory(forecaster / "run").read_result()
    assert result["name"] == "log/sim-single"
    assert result["run"]["task"]["kind"] == "ForecastSequencesConfig"
    assert 0.5 < result["test"]["coverage"] <= 1
    assert np.array(result["intervals"]["radii"]).shape == (5, 1)
    assert result["test"]["rmse"] < result["test"]["last_value_rmse"]
    assert "valid_rmse" in result["metrics"][-1]


def test_forecast_goes_on_after_the_end_of_each_sequence(forecaster, tmp_path, capsys):
    new = write_log(tmp_path / "new.csv", who=("d", "ee"), steps=40, seed=3)
    out = tmp_path / "f"
    assert main(["forecast", str(forecaster / "run"), "--data", str(new), "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["sequence"] for row in said["forecasts"]] == ["d"] * 5 + ["ee"] * 5
    assert [row["time"] for row in said["forecasts"][:5]] == [41, 42, 43, 44, 45]  # hours after the last
    assert all(row["load low"] < row["load"] < row["load high"] for row in said["forecasts"])
    assert all(2 < row["load"] < 8 for row in said["forecasts"])  # in the units of the data
    with Image.open(out / "forecast.png") as picture:
        assert picture.width > 300
    assert (out / "forecast.csv").read_text().startswith("sequence,ahead,time,load,load low,load high\n")
    assert main(["forecast", str(forecaster / "run"), "--data", str(new)]) == 0
    assert "intervals of 90%" in capsys.readouterr().out
    own = ["forecast", str(forecaster / "run"), "--data", str(new), "--json", "--steps"]
    for steps in (2, 5):
        assert main([*own, str(steps)]) == 0
        fewer = json.loads(capsys.readouterr().out)
        assert fewer["ahead"] == steps
        assert fewer["forecasts"] == [row for row in said["forecasts"] if row["ahead"] <= steps]
    assert main([*own, "6"]) == 2
    assert "--steps is 6;" in (refused := capsys.readouterr().err)
    assert "Ask for at most 5, or train with --horizon 6" in refused


def test_answers_keep_every_digit_of_times_and_values():
    rows = [("a", k, 1704091234.5 + k, 1e6 + 1 / 3, np.float32(0.1)) for k in range(3)]
    text = SequenceAnswers(("sequence", "ahead", "time", "load", "share"), rows, {}).csv()
    found = list(csv.DictReader(text.splitlines()))
    assert [float(row["time"]) for row in found] == [1704091234.5, 1704091235.5, 1704091236.5]
    assert {float(row["load"]) for row in found} == {1e6 + 1 / 3}
    assert {row["share"] for row in found} == {"0.1"}


@pytest.mark.parametrize(
    ("step", "ahead"),
    [("3600000", ["2024-03-01T20:00:00", "2024-03-01T21:00:00"]),
     ("500", ["2024-03-01T00:00:10.000000", "2024-03-01T00:00:10.500000"])],
)  # fmt: skip
def test_dates_go_on_as_dates(forecaster, tmp_path, capsys, step, ahead):
    """So that a forecast can be put beside what was measured; columns that are not taken may be others."""
    when = np.datetime64("2024-03-01", "ms") + np.arange(20) * np.timedelta64(int(step), "ms")
    lines = [f"d,{t},{5 + i % 3},{15 - i % 3}\n" for i, t in enumerate(when)]
    (tmp_path / "new.csv").write_text("who,hour,load,heat,remark\n" + "".join(f"{line[:-1]},fine\n" for line in lines))
    asked = ["forecast", str(forecaster / "run"), "--data", str(tmp_path / "new.csv"), "--steps", "2", "--json"]
    assert main(asked) == 0
    assert [row["time"] for row in json.loads(capsys.readouterr().out)["forecasts"]] == ahead


def test_eval_on_its_own_data_and_on_another_file(forecaster, tmp_path, capsys):
    assert main(["eval", str(forecaster / "run"), "--device", "cpu", "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert own["rmse"] == pytest.approx(RunDirectory(forecaster / "run").read_result()["test"]["rmse"], rel=1e-5)
    new = write_log(tmp_path / "new.csv", who=("d",), steps=90, seed=4)
    answers = tmp_path / "answers.csv"
    assert main(["eval", str(forecaster / "run"), "--data", str(new), "--out", str(answers), "--json"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert 0.5 < other["coverage"] <= 1
    assert other["rmse"] < other["last_value_rmse"]
    assert len(answers.read_text().splitlines()) == 6
    assert main(["eval", str(forecaster / "run"), "--data", str(new), "--split", "valid"]) == 2
    assert "new.csv is judged whole; leave --split or --data out" in " ".join(capsys.readouterr().err.split())


def test_predict_report_and_resume_take_it(forecaster, tmp_path, capsys):
    run = str(forecaster / "run")
    assert main(["predict", run, str(forecaster / "log.csv")]) == 0
    assert capsys.readouterr().out.startswith("sequence,ahead,time,load")
    assert main(["report", run, "--out", str(tmp_path / "page")]) == 0
    assert "Sequences, foretold" in (tmp_path / "page" / "index.html").read_text()
    assert main(["train", "--resume", run, "--device", "cpu"]) == 0


@pytest.mark.slow
def test_export_takes_it(forecaster, tmp_path):
    assert main(["export", str(forecaster / "run"), "--format", "pt2", "--out", str(tmp_path / "model.pt2")]) == 0


@pytest.fixture(scope="module")
def namer(tmp_path_factory):
    """Rising or falling, of lengths that differ: .npz."""
    folder = tmp_path_factory.mktemp("classes")
    random = np.random.default_rng(0)
    lengths = random.integers(8, 21, size=80)
    labels = random.integers(2, size=80)
    x = random.normal(size=(80, 20, 2)) * 0.2
    x[..., 0] += np.linspace(-1, 1, 20) * np.where(labels, 1, -1)[:, None]
    np.savez(folder / "moves.npz", x=x, y=np.array(["falls", "rises"])[labels], lengths=lengths)
    words = ["--goal", "classify", *SMALL, "--recipe.epochs", "12", "--recipe.learning-rate", "0.02"]
    assert main(["train", "--data", str(folder / "moves.npz"), *words, "--out", str(folder / "run")]) == 0
    return folder


def test_sequences_are_named(namer, tmp_path, capsys):
    result = RunDirectory(namer / "run").read_result()
    assert result["test"]["accuracy"] > 0.85
    capsys.readouterr()
    assert main(["predict", str(namer / "run"), str(namer / "moves.npz"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 80
    assert rows[0]["p(falls)"] + rows[0]["p(rises)"] == pytest.approx(1)
    assert main(["eval", str(namer / "run"), "--data", str(namer / "moves.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 0.85
    assert main(["forecast", str(namer / "run"), "--data", str(namer / "moves.npz")]) == 2
    assert "no calibrated intervals" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")
@pytest.mark.parametrize("model", ["deq", "gru", "sim-two"])
def test_the_other_models_take_the_same_data(model, namer, tmp_path):
    words = ["train", f"classify/{model}", "--data", str(namer / "moves.npz"), "--goal", "classify"]
    assert main([*words, "--device", "cpu", "--recipe.epochs", "12", "--out", str(tmp_path / "r")]) == 0
    assert RunDirectory(tmp_path / "r").read_result()["test"]["accuracy"] > 0.7


def test_text_is_bytes(tmp_path, capsys):
    random = np.random.default_rng(0)
    words = {"loud": "HEY STOP NOW RUN".split(), "soft": "well maybe later then".split()}
    with (tmp_path / "talk.csv").open("w") as file:
        file.write("say,mood\n")
        for i in range(60):
            mood = ("loud", "soft")[i % 2]
            file.write(f"{' '.join(random.choice(words[mood], size=random.integers(2, 5)))},{mood}\n")
    words = ["--text", "say", "--target", "mood", *SMALL, "--recipe.epochs", "8", "--recipe.learning-rate", "0.02"]
    out = str(tmp_path / "run")
    assert main(["train", "--data", str(tmp_path / "talk.csv"), *words, "--out", out]) == 0
    assert RunDirectory(out).read_result()["test"]["accuracy"] > 0.8
    (tmp_path / "new.csv").write_text("say\nSTOP HEY\n")
    capsys.readouterr()
    assert main(["predict", out, str(tmp_path / "new.csv")]) == 0
    assert "loud" in capsys.readouterr().out.splitlines()[1]


@pytest.mark.slow
def test_tune_searches_over_sequences(forecaster, tmp_path):
    words = ["tune", "--data", str(forecaster / "log.csv"), "--id", "who", "--time", "hour", "--drop", "note"]
    few = ["--trials", "3", "--max-t", "2", "--horizon", "4", *SMALL, "--task.context", "16"]
    assert main([*words, *few, "--out", str(tmp_path / "s"), "--json"]) == 0
    best = RunDirectory(next((tmp_path / "s").glob("best*"))).read_result()
    assert best["test"]["rmse"] < best["test"]["last_value_rmse"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--id", "nobody", "--time", "hour"], "no column 'nobody'"),
        (["--id", "who", "--time", "hour"], "holds words"),
        (["--id", "who", "--time", "hour", "--drop", "note", "--horizon", "900"], "no window of"),
        (["--id", "who", "--time", "hour", "--target", "note", "--goal", "classify"], "has 1 class"),
        (["--id", "who", "--time", "note", "--goal", "forecast"], "no time"),
        (["--id", "who", "--time", "hour", "--drop", "note", "--group", "who"], "--group says nothing"),
        (["--id", "who", "--time", "hour", "--drop", "note", "--size", "8"], "--size is for pictures"),
        (["--id", "who", "--target", "load", "--goal", "classify", "--drop", "note"], "changes within"),
    ],
)
def test_what_cannot_be_learnt_is_one_sentence_and_nothing_is_written(tmp_path, capsys, words, said):
    data = write_log(tmp_path / "log.csv", steps=30)
    assert main(["train", "--data", str(data), *words, "--out", str(tmp_path / "r")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_forecast_says_what_it_needs(forecaster, tmp_path, capsys):
    run = str(forecaster / "run")
    assert main(["forecast", run]) == 2
    assert "--data FILE" in capsys.readouterr().err
    (tmp_path / "x.csv").write_text("who,hour,load\na,1,2\na,2,3\n")
    assert main(["forecast", run, "--data", str(tmp_path / "x.csv")]) == 2
    assert "no column 'heat', which the model takes" in capsys.readouterr().err  # and not 'note', which it never took
    assert main(["forecast", str(tmp_path / "x.csv"), "--data", str(tmp_path / "x.csv")]) == 2
    said = capsys.readouterr().err
    assert "x.csv is not a run" in said
    assert "what a trained run goes on with" in said
    assert main(["forecast", str(tmp_path / "runs" / "typo"), "--data", str(tmp_path / "x.csv")]) == 2
    assert "typo is no file and not a run" in capsys.readouterr().err
    for option, value in (("--modes", "3"), ("--dt", "0.5"), ("--method", "optimised"), ("--rank", "2")):
        assert main(["forecast", run, "--data", str(tmp_path / "x.csv"), option, value]) == 2
        assert f"{option}: {run} is a run, which forecasts as it was trained; leave it out" in capsys.readouterr().err


def test_windows_are_counted_after_the_options_apply(tmp_path):
    data, said = write_log(tmp_path / "log.csv", who=("a",), steps=80), ["--horizon", "3", "--drop", "who", "note"]
    with pytest.raises(KoopsimError, match="no window of 64 steps"):
        on_own_data("", str(data), said, None)
    run = on_own_data("", str(data), [*said, "--task.context", "8", "--task.test=0.25"], None)[1]
    assert (run.task.context, run.task.test, run.task.ahead) == (8, 0.25, 3)


@pytest.mark.filterwarnings("default")
def test_sequences_in_train_and_test_and_a_note_among_them(tmp_path, capsys):
    random = np.random.default_rng(0)
    for part, count in (("train", 8), ("Test", 3)):
        for sign, name in ((-1, "down"), (1, "up")):
            (tmp_path / "s" / part / name).mkdir(parents=True)
            for i in range(count):
                walk = sign * np.arange(12) / 6 + 0.1 * random.normal(size=12)
                (tmp_path / "s" / part / name / f"{i}.csv").write_text("v\n" + "".join(f"{x:.4f}\n" for x in walk))
    (tmp_path / "s" / "train" / "up" / "notes.txt").write_text("remember")
    own = ["--data", str(tmp_path / "s"), *SMALL, "--recipe.epochs", "2", "--out", str(tmp_path / "run")]
    assert main(["train", *own]) == 0
    assert capsys.readouterr().err.count("22 files are .csv and 1 are not, such as train/up/notes.txt") == 1
    with pytest.warns(UserWarning, match=r"notes\.txt"):
        task = build_task(RunDirectory(tmp_path / "run").read_config()[1].task)
    assert task.classes == ("down", "up")
    assert {name: len(rows) for name, rows in task.parts.items()} == {
        "train": 14, "valid": 2, "test": 6, "train+valid": 16}  # fmt: skip
