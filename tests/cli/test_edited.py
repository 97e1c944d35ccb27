"""Files of ours that somebody edited: each verb that reads one refuses in a line that names the file and the field."""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_foreign import RUN, refused

import koopsim
from koopsim.cli import main
from koopsim.datasets.inputs import inputs_from_dict
from koopsim.errors import KoopsimError
from koopsim.files.tensors import read_tensors, write_tensors
from koopsim.presets import run_of
from koopsim.runs import RunDirectory, write_json
from koopsim.searching.directory import Search, SearchDirectory
from koopsim.searching.space import base_of, space_of

CPU = ["--device", "cpu"]


def edited(file: Path, change) -> None:
    """A JSON file with a part of it changed in place; what `change` returns, if anything, takes its place."""
    value = json.loads(file.read_text())
    new = change(value)
    file.write_text(json.dumps(value if new is None else new[0]))


def put(*path, value):
    def change(whole):
        for key in path[:-1]:
            whole = whole[key]
        whole[path[-1]] = value

    return change


# ---------------------------------------------------------------- what came of a run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("edited") / "run"
    assert main([*RUN, "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda r: [None], "it is None"),
        (lambda r: [[]], "it is []"),
        (lambda r: r.pop("environment") and None, "'environment' is missing"),
        (put("name", value=3), "'name' is 3"),
        (put("parameters", value="many"), "'parameters'"),
        (put("test", value=None), "'test' is None"),
        (put("test", "loss", value="x"), "'test.loss' is 'x'"),
        (put("metrics", 0, value=[]), "'metrics[0]' is []"),
        (put("milliseconds_per_step", value={}), "'milliseconds_per_step'"),
        (put("look", value={"missing": 3}), "'look.missing' is 3"),
        (put("run", value={}), "run"),
        (put("run", "recipe", "epochs", value=-1), "epochs"),
    ],
)
def test_a_runs_result(change, field, finished, tmp_path, capsys):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    assert RunDirectory(run).read_result()["name"] == "copy/sim-single"
    edited(run / "result.json", change)
    for more in ([], ["--json"]):
        refused(["train", "--resume", run, *CPU, *more], capsys, "result.json", field)


def test_a_result_of_a_run_without_other_data_is_one_too(finished, tmp_path, capsys):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    edited(run / "result.json", lambda r: [{k: v for k, v in r.items() if k not in ("test", "valid")}])
    assert main(["train", "--resume", str(run), *CPU]) == 0
    assert "parameters" in capsys.readouterr().out


def test_an_environment_that_is_none(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "env.json").write_text("[]")
    with pytest.raises(KoopsimError, match=r"env\.json is not a run's environment: it is \[\]"):
        RunDirectory(run).read_environment()


# ---------------------------------------------------------------- a search

ROW = {"trial": 0, "seeds": [1], "figures": [0.5], "mean": 0.5, "std": 0.0, "in_search": 0.5, "in_search_epochs": 1}
FOUND = {
    "name": "copy/sim-single", "metric": "loss", "trials": 2, "ended": {"finished": 2}, "seconds": 0.5,
    "environment": {}, "best": {"trial": 1, "t": 1, "loss": 2.25, "values": {"recipe.batch_size": 10}}, "pictures": [],
    "doubts": ["few trials"], "confirmed": [ROW], "test": {"loss": 2.5},
    "test_over_seeds": {"values": [2.5, 3.5], "mean": 3.0, "std": 0.7},
}  # fmt: skip


@pytest.fixture
def search(tmp_path):
    run = base_of(run_of("copy/sim-single", "smoke"))
    directory = SearchDirectory.create(tmp_path / "s", Search("copy/sim-single", run, space_of(run, "smoke")))
    write_json(directory.result_file, FOUND)
    return directory


def test_a_search_is_told_in_words(search, capsys):
    assert main(["tune", "--resume", str(search.path), *CPU]) == 0
    said = capsys.readouterr().out
    assert "trial 1, validation loss 2.25 after 1 epochs" in said
    assert "note: few trials" in said


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda r: [None], "it is None"),
        (lambda r: ["settings"], "it is 'settings'"),
        (lambda r: [{"settings": {}}], "'name' is missing"),
        (put("ended", value={"finished": "x"}), "'ended.finished' is 'x'"),
        (put("best", value=[]), "'best' is []"),
        (put("best", "loss", value=None), "'loss' is None"),
        (put("metric", value="psnr"), "'psnr' is missing"),
        (put("doubts", value=3), "'doubts' is 3"),
        (put("confirmed", 0, "mean", value="x"), "'confirmed[0].mean' is 'x'"),
        (put("test_over_seeds", value=None), "'test_over_seeds' is None"),
        (put("pictures", value=[7]), "'pictures[0]' is 7"),
        (put("judge_over", value="x"), "'judge_over' is 'x'"),
    ],
)
def test_a_searchs_result(change, field, search, capsys):
    edited(search.result_file, change)
    for more in ([], ["--json"]):
        refused(["tune", "--resume", search.path, *CPU, *more], capsys, "result.json", field)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda r: [None], "it is None"),
        (put("name", value=None), "'name' is None"),
        (put("seed", value=True), "'seed' is True"),
        (put("at_once", value=1.5), "'at_once' is 1.5"),
        (put("backend", value="x"), "The backend is 'x'; expected one of local, ray"),
        (put("engine", value=""), "The engine is ''"),
        (put("space", value=[]), "'space' is []"),
        (put("space", "max_t", value="x"), "'space.max_t' is 'x'"),
        (put("retrain", value=None), "'retrain' is None"),
        (put("space", "judge_over", value=2.5), "'space.judge_over' is 2.5"),
        (put("space", "judge_over", value=0), "judge_over is 0; give a whole number"),
    ],
)
def test_what_a_search_was_asked(change, field, search, capsys):
    edited(search.search_file, change)
    refused(["tune", "--resume", search.path, *CPU], capsys, "search.json", field)


def test_what_bench_wrote_before(tmp_path, capsys):
    assert main(["bench", "stack", "--quick", *CPU, "--out", str(tmp_path / "b")]) == 0
    (tmp_path / "b" / "bench.json").write_text("null\n")
    refused(["bench", "stack", "--quick", *CPU, "--out", tmp_path / "b"], capsys, "bench.json", "it is None")


# ---------------------------------------------------------------- what a model takes


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edited")
    rows = [f"{a:.3f},{'uv'[b]},{a - b:.3f}" for a, b in zip(np.linspace(-1, 1, 60), [0, 1] * 30, strict=True)]
    (folder / "t.csv").write_text("\n".join(["a,b,y", *rows, ""]))
    words = ["train", "--data", str(folder / "t.csv"), "--target", "y", *CPU, "--recipe.epochs", "1"]
    assert main([*words, "--out", str(folder / "run")]) == 0
    return folder


TWICE = {"kind": "CategoryInput", "name": "a", "words": ["u", "v"], "flagged": False}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda i: i["columns"].append(TWICE | {"name": "c"}), "'columns' makes inputs of 5"),
        (lambda i: i["columns"].append(TWICE), "'columns' says 'a' twice"),
        (lambda i: i["columns"].pop() and None, "'columns' makes inputs of 1"),
        (put("columns", 1, "words", value=["u", "u", "v"]), "'words' says 'u' twice"),
        (put("columns", 1, "flagged", value=True), "'columns' makes inputs of 4"),
        (put("columns", 0, "deviation", value=0), "'deviation of a' is 0"),
        (put("columns", 0, "deviation", value=1e-320), "'deviation of a'"),
        (lambda i: i["targets"].append(i["targets"][0] | {"name": "z"}), "'targets' needs 2 outputs"),
        (lambda i: i["targets"].append(i["targets"][0]), "'targets' says 'y' twice"),
        (put("targets", 0, "classes", value=["p", "q", "r"]), "'targets' needs 3 outputs"),
        (put("targets", 0, "classes", value=["p"]), "'classes' belongs to one target alone, which has at least two"),
        (put("columns", value=[]), "'columns' names no columns"),
        (put("targets", value=[]), "'targets' names no target"),
    ],
)
def test_what_a_tables_model_takes(change, field, table, tmp_path, capsys):
    run = Path(shutil.copytree(table / "run", tmp_path / "run"))
    edited(run / "inputs.json", change)
    refused(["predict", run, table / "t.csv", *CPU], capsys, "inputs.json", field)


PICTURES = {"kind": "ImageInputs", "classes": ["a", "b"], "shape": [1, 4, 4], "scale": [0.01], "shift": [0.0]}
STEPS = {
    "kind": "SequenceInputs", "goal": "forecast", "channels": ["a", "b"], "scale": [1.0, 2.0], "shift": [0.0, 0.0],
    "targets": ["b"], "length": 5, "ahead": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("good", "more", "field"),
    [
        (PICTURES, {"classes": []}, "'classes' names none"),
        (PICTURES, {"classes": ["a", "a"]}, "'classes' says 'a' twice"),
        (PICTURES, {"scale": [0.0]}, "'scale' is 0"),
        (PICTURES, {"shape": [1, 4, 2**31]}, "'shape' has a side of more than"),
        (STEPS, {"channels": ["a", "a"], "targets": ["a"]}, "'channels' says 'a' twice"),
        (STEPS, {"targets": ["c"]}, "'targets' says 'c', which is no channel"),
        (STEPS, {"targets": []}, "'targets' names no channel"),
        (STEPS, {"ahead": 0}, "'ahead' is 0"),
        (STEPS, {"scale": [1.0, -1.0]}, "'scale' is -1"),
        (STEPS, {"goal": "classify"}, "'classes' names none"),
        (STEPS, {"goal": "tag", "classes": ["x", "x"]}, "'classes' says 'x' twice"),
    ],
)
def test_what_models_of_pictures_and_sequences_take(good, more, field):
    inputs_from_dict(copy.deepcopy(good), "inputs.json")
    with pytest.raises(KoopsimError) as error:
        inputs_from_dict(copy.deepcopy(good) | more, "inputs.json")
    assert str(error.value).startswith("inputs.json: ")
    assert field in str(error.value)


@pytest.mark.parametrize("takes", ["", 0, False, [], {}, "x"])
def test_what_a_saved_model_takes(takes, table, tmp_path, capsys):
    """Nothing is null, and null only."""
    whole = koopsim.load(table / "run")
    whole.save(tmp_path / "m.safetensors")
    tensors, header = read_tensors(tmp_path / "m.safetensors", "model")
    header["koopsim.model"]["takes"] = takes
    write_tensors(tmp_path / "m.safetensors", tensors, header)
    with pytest.raises(KoopsimError, match=r"m\.safetensors: takes"):
        koopsim.load(tmp_path / "m.safetensors")
    header["koopsim.model"]["takes"] = None
    write_tensors(tmp_path / "m.safetensors", tensors, header)
    assert koopsim.load(tmp_path / "m.safetensors").takes is None


def test_a_picture_of_another_size_than_the_network_takes(tmp_path, capsys):
    from PIL import Image

    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", x=rng.integers(0, 255, (40, 8, 8, 3), np.uint8), y=np.arange(40) % 2)
    Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(tmp_path / "p.png")
    run = tmp_path / "run"
    assert main(["train", "--data", str(tmp_path / "x.npz"), *CPU, "--recipe.epochs", "1", "--out", str(run)]) == 0
    assert main(["predict", str(run), str(tmp_path / "p.png"), *CPU]) == 0
    one = {"shape": [1, 8, 8], "scale": [0.01], "shift": [0.0]}
    edited(run / "inputs.json", lambda i: i.update(one))
    refused(["predict", run, tmp_path / "p.png", *CPU], capsys, "inputs.json", "'shape' makes inputs of 1 x 8 x 8")
    edited(run / "inputs.json", lambda i: i.update(shape=[3, 8, 8], scale=[0.01] * 3, shift=[0.0] * 3))
    edited(run / "inputs.json", lambda i: i.update(classes=["a", "b", "c"]))
    refused(["predict", run, tmp_path / "p.png", *CPU], capsys, "inputs.json", "'classes' needs 3 outputs")
