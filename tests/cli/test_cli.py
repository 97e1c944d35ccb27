import json
import subprocess
import sys

import pytest

from koopsim.cli import main

TINY = [
    *"--scale smoke --device cpu --recipe.epochs 1 --task.horizon 3".split(),
    *"--task.train 40 --task.valid 10 --task.test 10".split(),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "tiny"
    assert main(["train", "copy/sim-single", *TINY, "--out", str(path), "--model.lift.levels", "2"]) == 0
    return path


def one_line(capsys) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


def test_help_lists_every_verb(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {verb}" in out for verb in ("presets", "train", "eval", "report"))


@pytest.mark.parametrize("verb", ["presets", "eval", "report"])
def test_every_verb_explains_itself(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_train_help_lists_presets_and_their_settings(capsys):
    assert main(["train", "--help"]) == 0
    assert "copy/sim-two" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["train", "copy/sim-two", "--help"])
    out = capsys.readouterr().out
    assert "--model.fourier.bandwidth" in out
    assert "--recipe.learning-rate" in out


def test_presets_as_json(capsys):
    assert main(["presets", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["copy/deq"] == {"name": "copy/deq", "parameters": 17_010, "paper_parameters": 17_010}
    assert rows["cifar10/mondeq-multi"]["paper_parameters"] == 170_194


def test_presets_as_a_table(capsys):
    assert main(["presets"]) == 0
    assert "168,694" in capsys.readouterr().out


def test_json_is_alone_on_standard_output(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "koopsim", "train", "copy/sim-two", *TINY, "--out", str(tmp_path / "r"), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert result["name"] == "copy/sim-two"
    assert "epoch 1/1" in done.stderr


def test_eval_repeats_the_figures_of_the_run(finished, capsys):
    recorded = json.loads((finished / "result.json").read_text())["test"]
    assert main(["eval", str(finished), "--device", "cpu", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert {k: figures[k] for k in recorded} == recorded
    assert main(["eval", str(finished), "--split", "valid", "--device", "cpu"]) == 0
    assert "memoryless_loss" in capsys.readouterr().out


def test_a_finished_run_is_not_trained_again(finished, capsys):
    before = (finished / "metrics.jsonl").read_text()
    assert main(["train", "--resume", str(finished)]) == 0
    assert "nothing to resume" in capsys.readouterr().err
    assert (finished / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian", "copy/sim-single"], "Did you mean 'train'"),
        (["train", "copy/sim-singel"], "Did you mean 'copy/sim-single'"),
        (["train", "cifar10/sim-single"], "koopsim data get cifar10"),
        (["train", "--out", "x"], "Name the preset first"),
        (["train", "copy/sim-two", "--model.fourier.features", "31"], "must be even"),
        (["train", "copy/sim-two", "--model.fourier.bandwidth", "-2"], "must be positive"),
        (["train", "copy/sim-single", "--model.rank", "33"], "between 1 and the lifted dimension 32"),
        (["train", "copy/sim-single", "--device", "cuda:77"], "cannot be used here"),
        (["train", "--resume", "/nowhere/at/all"], "no folder /nowhere/at/all"),
        (["eval", "/nowhere/at/all"], "no folder /nowhere/at/all"),
        (["report", "/nowhere/at/all"], "no file or folder"),
        (["report"], "Name at least one folder"),
    ],
)
def test_bad_input_is_one_line_and_a_failure(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KOOPSIM_DATA", str(tmp_path / "data"))
    assert main(arguments) == 2
    assert says in one_line(capsys)
    assert list(tmp_path.iterdir()) == []  # nothing half-written
    assert list(tmp_path.iterdir()) == []  # nothing half-written


def test_a_typo_in_an_option_suggests_the_right_one(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["train", "copy/sim-single", "--recipe.learning-rat", "0.1"])
    assert stop.value.code == 2
    assert "--recipe.learning-rate" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_tensorboard_is_said_before_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("koopsim.tracking.find_spec", lambda name: None)
    assert main(["train", "copy/sim-single", *TINY, "--tensorboard", "--out", str(tmp_path / "run")]) == 2
    assert "TensorBoard is not installed" in one_line(capsys)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["train", "copy/sim-single", *TINY, "--out", str(blocked / "run")]) == 2
    assert "Cannot make the folder" in one_line(capsys)


def test_eval_of_a_broken_run(finished, tmp_path, capsys):
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(finished, broken)
    whole = (broken / "checkpoint.safetensors").read_bytes()
    (broken / "checkpoint.safetensors").write_bytes(whole[: len(whole) // 2])
    assert main(["eval", str(broken)]) == 2
    assert "not a whole koopsim checkpoint" in one_line(capsys)
    (broken / "config.json").write_text("{")
    assert main(["eval", str(broken)]) == 2
    assert "cannot be read" in one_line(capsys)
    (broken / "config.json").write_text('{"name": "x"}')
    assert main(["eval", str(broken)]) == 2
    assert "not a run's configuration" in one_line(capsys)


@pytest.mark.parametrize(
    ("took", "said"), [(0.0, "0 s"), (0.0319, "0.032 s"), (0.71, "0.71 s"), (1.0, "1.0 s"), (83.26, "83.3 s")]
)
def test_a_short_training_is_not_said_to_take_no_time(took, said):
    from koopsim.cli.train import _seconds

    assert _seconds(took) == said
