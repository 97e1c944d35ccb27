"""`eval --other-data` says of pictures what `predict` says of them, one by one."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from koopsim.cli import main
from koopsim.runs import RunDirectory

CLASSES = ("ant", "bee", "cat")
CPU = ("--device", "cpu")


def drawn(folder, classes=CLASSES, count=6, size=(12, 8), mode="RGB", seed=0):
    """Pictures of each class around a colour of its own."""
    random = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        middle = 60 + 60 * np.roll([0, 1, 2], CLASSES.index(name))
        for i in range(count):
            pixels = (middle + random.integers(-50, 50, (*size[::-1], 3))).astype(np.uint8)
            Image.fromarray(pixels).convert(mode).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module", params=["RGB loaded", "RGB streamed", "L loaded"])
def run(request, tmp_path_factory):
    mode, how = request.param.split()
    folder = tmp_path_factory.mktemp(how)
    drawn(folder / "p", mode=mode)
    own = ["--recipe.epochs", "2", *(["--task.stream", "yes"] if how == "streamed" else [])]
    assert main(["train", "--data", str(folder / "p"), *CPU, *own, "--out", str(folder / "run")]) == 0
    return folder / "run"


def evaluated(run, data, capsys, *more):
    capsys.readouterr()
    assert main(["eval", str(run), "--data", str(data), "--other-data", "--json", *CPU, *more]) == 0
    return json.loads(capsys.readouterr().out)


OTHER = {
    "some classes": {"classes": ("bee", "cat")},
    "other sizes": {"size": (14, 10)},
    "grey": {"mode": "L"},
}


@pytest.mark.parametrize("name", OTHER)
def test_it_is_what_predict_says_of_each(run, tmp_path, capsys, name):
    drawn(tmp_path / "o" / "train", **OTHER[name], seed=1)
    test = drawn(tmp_path / "o" / "test", **OTHER[name], seed=2)
    looks = (run / "looks.jsonl").read_text()
    found = evaluated(run, tmp_path / "o", capsys, "--out", str(tmp_path / "mistakes"))
    assert main(["predict", str(run), str(test), *CPU, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    true = [row["picture"].split("/")[-2] for row in said]
    assert found["pictures"] == len(said) == 6 * len(set(true))
    assert found["accuracy"] == np.mean([row["class"] == own for row, own in zip(said, true, strict=True)])
    loss = np.mean([-np.log(row["probabilities"][own]) for row, own in zip(said, true, strict=True)])
    assert found["loss"] == pytest.approx(loss, rel=1e-4)
    assert (run / "looks.jsonl").read_text() == looks, "no look at the run's own test split"
    drawn_there = json.loads((tmp_path / "mistakes" / "mistakes.json").read_text())
    assert drawn_there["classes"] == list(CLASSES)
    pairs = [(own, row["class"]) for row, own in zip(said, true, strict=True)]
    confusion = [[pairs.count((a, b)) for b in CLASSES] for a in CLASSES]
    assert drawn_there["confusion"] == confusion


def test_pictures_of_the_run_itself_are_a_look(run, capsys):
    own = RunDirectory(run).read_config()[1].task.dataset
    before = (run / "looks.jsonl").read_text().count("\n")
    found = evaluated(run, own, capsys)
    assert "pictures" not in found
    assert (run / "looks.jsonl").read_text().count("\n") == before + 1


def test_a_run_that_does_not_know_its_data_cannot_call_any_its_own(run, tmp_path, capsys):
    old = shutil.copytree(run, tmp_path / "old")
    (old / "data.json").unlink()
    looks = (old / "looks.jsonl").read_text()
    assert evaluated(old, RunDirectory(run).read_config()[1].task.dataset, capsys)["pictures"] == 4
    assert (old / "looks.jsonl").read_text() == looks


def test_all_of_a_folder_without_parts_is_two_splits(run, tmp_path, capsys):
    other = drawn(tmp_path / "o", count=10, seed=3)
    parts = [evaluated(run, other, capsys, "--split", split)["pictures"] for split in ("test", "train+valid")]
    assert parts == [6, 24]


def test_a_class_that_the_run_does_not_know_is_refused(run, tmp_path, capsys):
    drawn(tmp_path / "o", count=4)
    (tmp_path / "o" / "cat").rename(tmp_path / "o" / "cta")
    assert main(["eval", str(run), "--data", str(tmp_path / "o"), "--other-data", *CPU]) == 2
    said = capsys.readouterr().err
    assert "has the class 'cta', which" in said
    assert "was never shown: it names ant, bee, cat. Did you mean 'cat'?" in " ".join(said.split())
