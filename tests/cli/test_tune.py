import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from koopsim.cli import main
from koopsim.runs import read_run_json
from koopsim.searching.results import read_trials

TINY = [
    *"--scale smoke --device cpu --trials 5 --recipe.epochs 3 --task.horizon 3 --model.lift.levels 2".split(),
    *"--task.train 40 --task.valid 10 --task.test 10".split(),
]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("searches") / "tiny"
    assert main(["tune", "copy/sim-two", *TINY, "--out", str(path)]) == 0
    return path


def test_help_names_presets_and_every_setting(capsys):
    assert main(["tune", "--help"]) == 0
    assert "copy/sim-two" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["tune", "copy/sim-two", "--help"])
    out = capsys.readouterr().out
    for option in ("--trials", "--backend", "--ray-address", "--resume", "--space", "--search", "--json", "--seed"):
        assert option in out


def test_a_search_leaves_its_table_pictures_and_a_trained_run(finished):
    assert len(read_trials(finished / "trials.csv")) == 5
    result = json.loads((finished / "result.json").read_text())
    best = json.loads((finished / "best" / "result.json").read_text())
    assert result["test"] == best["test"]
    assert best["run"]["train_on"] == "train+valid"
    assert best["run"]["recipe"] == result["best"]["run"]["recipe"]
    assert sum(result["ended"].values()) == 5
    assert all((finished / name).exists() for name in ("best-so-far.png", "parallel.png", "sensitivity.png"))


def test_the_trained_run_can_be_evaluated(finished, capsys):
    assert main(["eval", str(finished / "best"), "--device", "cpu", "--json"]) == 0
    assert "loss" in json.loads(capsys.readouterr().out)


def test_the_same_seed_finds_the_same_and_another_draws_others(finished, tmp_path):
    assert main(["tune", "copy/sim-two", *TINY, "--out", str(tmp_path / "a"), "--retrain", "0"]) == 0
    assert main(["tune", "copy/sim-two", *TINY, "--out", str(tmp_path / "b"), "--seed", "1", "--retrain", "0"]) == 0
    first, same, other = (read_trials(p / "trials.csv") for p in (finished, tmp_path / "a", tmp_path / "b"))
    key = "recipe.learning_rate"
    assert [r[key] for r in first] == [r[key] for r in same]
    assert [r["loss"] for r in first] == [r["loss"] for r in same]
    assert not {r[key] for r in first} & {r[key] for r in other}
    assert not (tmp_path / "a" / "best").exists()


def test_json_is_alone_on_standard_output(tmp_path):
    command = [sys.executable, "-m", "koopsim", "tune", "digits/sim-single", "--trials", "3", "--scale", "smoke"]
    command += ["--task.train", "120", "--max-t", "2", "--retrain", "2", "--device", "cpu", "--json"]
    done = subprocess.run([*command, "--out", str(tmp_path / "s")], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["metric"] == "accuracy"
    assert len(result["test_over_seeds"]["values"]) == 2
    assert (tmp_path / "s" / "best-2" / "result.json").exists()
    assert "3/3 trials" in done.stderr
    assert "left" in done.stderr


def test_the_space_from_a_file_and_from_the_command_line(tmp_path, capsys):
    (tmp_path / "space.toml").write_text("trials = 3\nmax_t = 2\ngrace = 1\n[parameters]\nbatch_size = [10]\n")
    words = [w for w in TINY if w not in ("--trials", "5")]
    search = ["--space", str(tmp_path / "space.toml"), "--search", "learning_rate=0.01", "bandwidth=median"]
    assert main(["tune", "copy/sim-two", *words, *search, "--out", str(tmp_path / "s"), "--retrain", "0"]) == 0
    rows = read_trials(tmp_path / "s" / "trials.csv")
    assert [(r["recipe.batch_size"], r["recipe.learning_rate"]) for r in rows] == [("10", "0.01")] * 3
    assert len({r["model.fourier.bandwidth"] for r in rows}) == 3
    assert all(float(r["model.fourier.bandwidth"]) > 0 for r in rows)


def test_a_search_begun_again_trains_its_best_again_and_counts_its_own_epochs(tmp_path, capsys):
    words = "tune digits/sim-single --scale smoke --device cpu --trials 1 --search epochs=3 --out".split()
    words.append(str(tmp_path))
    assert main(words) == 0
    first, file = read_run_json(tmp_path / "result.json"), tmp_path / "best" / "result.json"
    assert "best trial  epoch 3/3" in capsys.readouterr().err
    file.write_text(file.read_text().replace(str(first["test"]["accuracy"]), "0.123"))
    assert main([*words, "--overwrite"]) == 0
    assert read_run_json(tmp_path / "result.json")["test"] == first["test"]


def test_doubts_are_kept_and_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("koopsim.searching.outcome.doubts", lambda *given: ["Look again."])
    words = "tune digits/sim-single --scale smoke --device cpu --trials 1 --retrain 0 --out".split()
    assert main([*words, str(tmp_path)]) == 0
    assert "note: Look again." in capsys.readouterr().out
    assert read_run_json(tmp_path / "result.json")["doubts"] == ["Look again."]


def test_a_finished_search_is_not_run_again(finished, capsys):
    before = (finished / "trials.csv").read_text()
    assert main(["tune", "--resume", str(finished)]) == 0
    assert "nothing to resume" in capsys.readouterr().err
    assert (finished / "trials.csv").read_text() == before


def test_ctrl_c_between_two_trainings_says_how_to_go_on(finished, tmp_path, capsys, monkeypatch):
    def pressed(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("koopsim.searching.carrying_out.resume_search", pressed)
    monkeypatch.setattr("koopsim.searching.carrying_out.start_search", pressed)
    assert main(["tune", "--resume", str(finished)]) == 130
    assert f"stopped. Go on with: koopsim tune --resume {finished}" in capsys.readouterr().err
    assert main(["tune", "copy/sim-two", *TINY, "--out", str(tmp_path / "new")]) == 130  # nothing is there yet
    assert capsys.readouterr().err == "koopsim: stopped.\n"


def test_ctrl_c_leaves_a_search_to_be_resumed(tmp_path):
    words = [w if w != "40" else "4000" for w in TINY]
    command = [sys.executable, "-m", "koopsim", "tune", "copy/sim-two", *words, "--out", str(tmp_path / "s")]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    assert child.stderr is not None
    assert any("trials" in line for line in child.stderr)  # the first epoch of the first trial
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert f"koopsim tune --resume {tmp_path / 's'}" in err
    assert (tmp_path / "s" / "state.safetensors").exists()
    assert not (tmp_path / "s" / "result.json").exists()
    assert main(["tune", "--resume", str(tmp_path / "s"), "--device", "cpu", "--retrain", "0"]) == 0
    assert all(r["status"] in ("finished", "pruned") for r in read_trials(tmp_path / "s" / "trials.csv"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tune", "copy/sim-singel"], "Did you mean 'copy/sim-single'"),
        (["tune", "--out", "x"], "Name the preset first"),
        (["tune", "copy/sim-single", "--trials", "0"], "trials is 0"),
        (["tune", "copy/sim-single", "--grace", "9"], "grace is 9"),
        (["tune", "copy/sim-single", "--search", "lerning_rate=1"], "Did you mean 'recipe.learning_rate'"),
        (["tune", "copy/sim-single", "--search", "bandwidth=1,2"], "no Fourier features"),
        (["tune", "copy/sim-single", "--space", "nothing.yaml"], "cannot be read"),
        (["tune", "cifar10/sim-single"], "koopsim data get cifar10"),
        (["tune", "--resume", "/nowhere/at/all"], "no folder /nowhere/at/all"),
    ],
)
def test_bad_input_is_one_line_and_a_failure(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KOOPSIM_DATA", str(tmp_path / "data"))
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert says in err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_ray_is_said_before_anything_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("koopsim.searching.carrying_out.find_spec", lambda name: None)
    assert main(["tune", "copy/sim-two", *TINY, "--backend", "ray", "--out", str(tmp_path / "s")]) == 2
    assert "pip install 'koopsim[tune]'" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_folder_with_a_search_is_left_alone(finished, capsys):
    assert main(["tune", "copy/sim-two", *TINY, "--out", str(finished)]) == 2
    assert "already holds a search" in capsys.readouterr().err
