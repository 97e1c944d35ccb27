"""Somebody else's package, installed or named, has all the verbs for its task, its model and its data set."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from koopsim import datasets

HERE = Path(__file__).parent
PACKAGE = HERE / "plugin_package"


def driven(commands: list[list[str]], folder: Path, path: Path | None) -> list[dict]:
    """What the verbs said, run in `folder` by a process that finds `path` where Python looks for packages."""
    notes = {name: folder.with_name(f"{folder.name}-{name}.json") for name in ("commands", "said")}
    notes["commands"].write_text(json.dumps(commands))
    paths = [str(path)] if path else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])}
    script = [sys.executable, str(HERE / "drive_verbs.py"), *map(str, notes.values())]
    done = subprocess.run(script, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(notes["said"].read_text())


def agreed(said: list[dict], codes: list[int]) -> None:
    for entry, code in zip(said, codes, strict=False):
        assert entry["code"] == code, entry


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder for PYTHONPATH that pip has installed the sample package into, entry point and all."""
    work = tmp_path_factory.mktemp("door")
    source = shutil.copytree(PACKAGE, work / "source")  # pip builds beside it
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--target", str(work / "site"), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return work / "site"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def told(installed, runs) -> dict[str, dict]:
    """Every verb on what the package brings, by a word for each."""
    images = datasets.load_images("digits")
    Image.fromarray(images.train[0][images.train[1] == 7][0, 0]).save(runs / "seven.png")
    smoke = ["--scale", "smoke"]
    commands = {
        "presets": ["presets", "--json"],
        "train": ["train", "pendulum/sim-single", *smoke, "--out", "whole", "--json"],
        "stopped": ["interrupt", "train", "pendulum/sim-single", *smoke, "--out", "cut", "--json"],
        "resumed": ["train", "--resume", "cut", "--json"],
        "eval": ["eval", "whole", "--json"],
        "model": ["train", "digits/tanh", *smoke, "--out", "tanh", "--json"],
        "data": ["train", "digits/tanh", "--data", "stripes", "--out", "stripes", "--recipe.epochs", "3", "--json"],
        "listed": ["data", "list", "--json"],
        "tune": ["tune", "pendulum/sim-single", *smoke, "--trials", "3", "--out", "search", "--json"],
        "stacked": ["tune", "digits/tanh", *smoke, "--trials", "3", "--engine", "stacked", "--out", "stack", "--json"],
        "predict": ["predict", "tanh", str(runs / "seven.png"), "--json"],
        "export": ["export", "tanh", "--format", "pt2", "--json"],
        "report": ["report", ".", "--out", "report", "--json"],
    }
    return dict(zip(commands, driven(list(commands.values()), runs, installed), strict=False))


def test_every_verb_ends_well(told):
    agreed(list(told.values()), [130 if word == "stopped" else 0 for word in told])


def test_its_presets_are_listed_after_the_papers(told):
    names = [row["name"] for row in json.loads(told["presets"]["out"])]
    assert names[0] == "copy/sim-single"
    assert names.index("image/tancik") < names.index("pendulum/sim-single") < names.index("digits/tanh")


def test_a_stopped_run_goes_on_to_the_same_figures(told):
    assert "Go on with: koopsim train --resume cut" in told["stopped"]["err"]
    whole, resumed = (json.loads(told[word]["out"]) for word in ("train", "resumed"))
    assert whole["test"] == resumed["test"]
    assert [line["train_loss"] for line in whole["metrics"]] == [line["train_loss"] for line in resumed["metrics"]]
    assert len(whole["metrics"]) == 12


def test_it_learns_and_is_judged(told):
    whole, judged = (json.loads(told[word]["out"]) for word in ("train", "eval"))
    assert whole["metrics"][-1]["train_loss"] < whole["metrics"][0]["train_loss"] / 2
    assert judged["error"] == pytest.approx(whole["test"]["error"], rel=1e-5)
    assert json.loads(told["model"]["out"])["test"]["accuracy"] > 0.8


def test_its_data_set_is_listed_and_learnt(told):
    line = json.loads(told["listed"]["out"])[-1]
    assert (line["name"], line["train"], line["present"]) == ("stripes", 600, True)
    result = json.loads(told["data"]["out"])
    assert (result["name"], result["run"]["model"]["outputs"]) == ("stripes/tanh", 3)
    assert result["test"]["accuracy"] > 0.4


def test_its_searches_choose_and_train_again(told, runs):
    found = json.loads(told["tune"]["out"])
    assert (found["metric"], found["trials"]) == ("error", 3)
    assert found["best"]["error"] > 0
    assert "test" in found
    assert json.loads(told["stacked"]["out"])["metric"] == "accuracy"


def test_its_model_names_a_picture(told):
    assert "seven.png" in told["predict"]["out"]
    assert '"7"' in told["predict"]["out"]


def test_its_model_is_exported_and_checked(told, runs):
    done = json.loads(told["export"]["out"])
    assert (runs / done["file"]).exists()
    assert done["difference"] <= 1e-4 * done["scale"]


def test_it_is_in_the_report(told, runs):
    page = (runs / "report" / "index.html").read_text()
    assert "Pendulum after 2" in page
    assert "tanh network" in page
    table = (runs / "report" / "task-pendulum.md").read_text()
    assert "| data | model | params | error | worst |" in table
    assert "tanh network" in (runs / "report" / "table2.md").read_text()
    assert json.loads(told["report"]["out"])["skipped"] == []


def test_without_the_plugin_its_runs_are_refused_by_name_and_with_it_named_they_are_read(told, runs):
    commands = [["eval", "whole"], ["report", "whole", "--out", "bare"], ["train", "--resume", "cut"]]
    said = driven(commands, runs, None)
    agreed(said, [2, 2, 2])
    for entry in said[:3]:
        assert "PendulumConfig" in entry["err"]
        assert "--plugin MODULE" in entry["err"]
    assert not [name for name in said[-1]["modules"] if name.startswith("koopsim_pendulum")]
    named = ("--plugin", "koopsim_pendulum")
    said = driven([["eval", "whole", "--json", *named], ["eval", "whole", "=".join(named)]], runs, PACKAGE / "src")
    agreed(said, [0, 0])
    assert json.loads(said[0]["out"])["error"] == json.loads(told["eval"]["out"])["error"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'koopsim[tune]'")
def test_workers_of_a_cluster_load_what_was_named(tmp_path):
    shutil.copytree(PACKAGE / "src", tmp_path / "here")  # found in the folder where it was named, and nowhere else
    smoke = ["--scale", "smoke", "--trials", "2", "--max-t", "2", "--retrain", "0", "--backend", "ray"]
    command = ["tune", "pendulum/sim-single", *smoke, "--out", "search", "--json", "--plugin", "koopsim_pendulum"]
    said = driven([command], tmp_path / "here", None)
    agreed(said, [0])
    assert json.loads(said[0]["out"])["ended"] == {"finished": 2}
