"""A saved model, or a run's folder, is all that is needed to use it: weights, classes, normalisation."""

import csv
import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import koopsim
from koopsim import zoo
from koopsim.bridge import DistillWarning, Lessons, Student, distill
from koopsim.cli import main
from koopsim.config import DEQConfig, FourierConfig, MLPConfig, SIMConfig, VGGConfig
from koopsim.datasets.inputs import ImageInputs, picture_files, read_inputs
from koopsim.errors import KoopsimError
from koopsim.files.tensors import read_tensors
from koopsim.nn.saved import save_model
from koopsim.predicting import predict
from koopsim.presets import PRESETS, run_of
from koopsim.runs import RunDirectory
from koopsim.tasks import build_task
from koopsim.tasks.inputs import inputs_of

CLASSES = ("cross", "ring")


def drawn(kind: str, random: np.random.Generator, size: int = 12) -> Image.Image:
    """A cross or a ring, tinted, with noise: easy to tell apart."""
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    shape = np.minimum(abs(x), abs(y)) < 1.2 if kind == "cross" else abs(np.hypot(x, y) - size / 3) < 1.2
    pixels = 40 + 170 * shape[..., None] * random.uniform(0.6, 1, 3) + random.normal(0, 8, (size, size, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(run directory, pictures): trained on pictures of one's own, which are moved away afterwards."""
    folder, random = tmp_path_factory.mktemp("own"), np.random.default_rng(0)
    for kind in CLASSES:
        (folder / "pictures" / kind).mkdir(parents=True)
        for i in range(40):
            drawn(kind, random).save(folder / "pictures" / kind / f"{i}.png")
    words = [
        "--recipe.epochs",
        "4",
        "--recipe.learning-rate",
        "5e-3",
        "--recipe.batch-size",
        "16",
        "--precision",
        "float32",
    ]
    data = ["--data", str(folder / "pictures"), "--device", "cpu"]
    assert main(["train", *data, *words, "--out", str(folder / "run")]) == 0
    task = build_task(RunDirectory(folder / "run").read_config()[1].task)
    figures = task.evaluate(koopsim.load(folder / "run"), "test")
    shutil.move(folder / "pictures", folder / "elsewhere")
    return folder / "run", folder / "elsewhere", task, figures


def test_the_folder_alone_is_enough(trained):
    run, pictures, task, figures = trained
    model = koopsim.load(run)
    assert model.takes == inputs_of(task) == read_inputs(run)
    found = model.predict(picture_files([pictures / "ring"]))
    assert found.classes == CLASSES
    assert np.allclose(found.probabilities.sum(1), 1)
    assert np.mean([label == "ring" for label in found.labels]) > 0.9
    assert figures["accuracy"] > 0.9


def test_it_says_what_evaluating_says(trained):
    run, _, task, figures = trained
    x, y = (t.numpy() for t in task.split("test"))
    found = koopsim.load(run).predict(x)
    assert np.mean(found.probabilities.argmax(1) == y) == pytest.approx(figures["accuracy"])
    losses = -np.log(found.probabilities[np.arange(len(y)), y])
    assert losses.mean() == pytest.approx(figures["loss"], rel=1e-5)


def test_mean_and_deviation_are_those_of_the_training_images(trained):
    _, _, task, _ = trained
    from koopsim.datasets import load_images

    takes = inputs_of(task)
    x = load_images(str(trained[1])).train[0] / 255
    assert takes.mean == pytest.approx(x.mean((0, 2, 3)), rel=1e-6)
    assert takes.deviation == pytest.approx(x.std((0, 2, 3)), rel=1e-6)
    assert ImageInputs.of(load_images(str(trained[1]))).scale == takes.scale


def test_the_verb_writes_csv_and_json(trained, tmp_path, capsys):
    run, pictures, _, _ = trained
    files = [str(pictures / "ring" / "1.png"), str(pictures / "cross" / "2.png")]
    assert main(["predict", str(run), *files, "--device", "cpu"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["picture"] for row in rows] == files
    assert [row["class"] for row in rows] == ["ring", "cross"]
    assert float(rows[0]["p(ring)"]) == float(rows[0]["probability"]) > 0.5
    assert main(["predict", str(run), *files, "--json", "--device", "cpu"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["class"] for row in said] == ["ring", "cross"]
    assert sum(said[0]["probabilities"].values()) == pytest.approx(1)
    assert (
        main(["predict", str(run), str(pictures / "ring"), "--out", str(tmp_path / "a.json"), "--device", "cpu"]) == 0
    )
    assert len(json.loads((tmp_path / "a.json").read_text())) == 40
    again = ["predict", str(run), *files, "--out", str(tmp_path / "a.json"), "--device", "cpu"]
    assert main(again) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*again, "--overwrite"]) == 0
    assert len(json.loads((tmp_path / "a.json").read_text())) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing.png"], "There is no picture nothing.png"),
        ([], "Name pictures"),
        (["{run}"], "holds no pictures"),
        (["{run}/config.json"], "cannot be read as a picture|is not a picture"),
        (["{pictures}", "--out", "a.txt"], "ends in .csv or .json"),
    ],
)
def test_what_cannot_be_named_is_one_line(trained, capsys, words, says):
    import re

    run, pictures, _, _ = trained
    filled = [word.format(run=run, pictures=pictures) for word in words]
    assert main(["predict", str(run), *filled, "--device", "cpu"]) == 2
    err = capsys.readouterr().err
    assert re.search(says, err)
    assert err.count("\n") == 1


def test_evaluating_after_the_pictures_have_moved(trained, capsys):
    run, pictures, _, figures = trained
    assert main(["eval", str(run), "--device", "cpu"]) == 2
    assert "--data DIR" in capsys.readouterr().err
    assert main(["eval", str(run), "--data", str(pictures), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == figures["accuracy"]


def test_a_run_from_before_inputs_were_written_down(trained, tmp_path, capsys):
    run, pictures, _, _ = trained
    old = shutil.copytree(run, tmp_path / "old")
    (old / "inputs.json").unlink()
    file = str(pictures / "ring" / "1.png")
    assert main(["predict", str(old), file, "--device", "cpu"]) == 2
    assert "--data" in capsys.readouterr().err
    assert main(["predict", str(old), file, "--data", str(pictures), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["class"] == "ring"


def test_other_sizes_modes_and_forms_of_a_picture(trained, tmp_path):
    run, pictures, _, _ = trained
    model = koopsim.load(run)
    ring = Image.open(pictures / "ring" / "3.png")
    large = ring.resize((60, 60))
    large.convert("RGBA").save(tmp_path / "large.png")
    found = model.predict([pictures / "ring" / "3.png", tmp_path / "large.png", large, ring])
    assert found.labels == ["ring"] * 4
    assert found.names[2:] == ("2", "3")
    np.testing.assert_allclose(found.probabilities[0], found.probabilities[3], rtol=1e-5)
    np.testing.assert_allclose(found.probabilities[1], found.probabilities[2], rtol=1e-5)
    assert model.predict(ring).labels == ["ring"]
    assert len(model.predict([])) == 0
    with pytest.raises(KoopsimError, match="takes uint8"):
        model.predict(np.zeros((2, 3, 5, 5), np.uint8))


# ---------------------------------------------------------------- files


SMALL = {
    "sim": SIMConfig(VGGConfig(4, (1, 8, 8)), lift_dim=8, fourier=FourierConfig(8, 2.0), hidden=6, outputs=3),
    "projector": SIMConfig(MLPConfig(2, 6), lift_dim=6, projector=True, hidden=5, outputs=2),
    **{name: replace(run_of(name, "smoke")).model for name in ("copy/deq", "digits/mondeq-multi", "image/tancik")},
}


@pytest.mark.parametrize("name", SMALL)
def test_a_model_comes_back_the_same(name, tmp_path):
    torch.manual_seed(0)
    model = koopsim.build(SMALL[name]).eval()
    again = koopsim.load(model.save(tmp_path / "m.safetensors"))
    assert type(again) is type(model)
    assert again.config == SMALL[name]
    assert not again.training
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)
    files = [read_tensors(m.save(tmp_path / "n.safetensors"), "model")[1] for m in (model, again)]
    assert files[0] == files[1]


def test_parameters_that_are_views_of_one_vector(tmp_path):
    model = koopsim.build(SMALL["sim"])
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    start = 0
    for p in model.parameters():
        p.data = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    with pytest.raises(RuntimeError):
        import safetensors.torch

        safetensors.torch.save_model(model, tmp_path / "plain.safetensors")
    again = koopsim.load(model.save(tmp_path / "m.safetensors"))
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(again(x), model.eval()(x))
    assert (tmp_path / "m.safetensors").stat().st_size < 4 * flat.numel() + 20_000


def test_a_saved_model_exports(tmp_path, capsys):
    file = koopsim.build(SMALL["projector"]).eval().save(tmp_path / "points.safetensors", name="points")
    out = tmp_path / "points.pt2"
    assert main(["export", str(file), "--format", "pt2", "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["name"] == "points"
    assert said["difference"] <= 1e-4 * said["scale"]


def test_double_precision_stays(tmp_path):
    model = koopsim.build(SMALL["projector"]).double()
    again = koopsim.load(model.save(tmp_path / "m.safetensors"))
    assert {p.dtype for p in again.parameters()} == {torch.float64}


def test_a_trained_classifier_keeps_its_classes(trained, tmp_path):
    run, pictures, _, _ = trained
    model = koopsim.load(run)
    again = koopsim.load(model.save(tmp_path / "rings.safetensors", name="rings"))
    files = picture_files([pictures / "cross"])[:5]
    assert np.array_equal(again.predict(files).probabilities, model.predict(files).probabilities)


def test_a_distilled_sim_is_saved(tmp_path):
    torch.manual_seed(0)
    deq = koopsim.build(DEQConfig(heads=2, head_dim=4, model_dim=8, inner_dim=8))
    x = torch.randint(0, 10, (12, 9))
    with pytest.warns(DistillWarning, match="hardly better than a constant"):
        sim, _ = distill(deq, x, Student(lift_dim=8), Lessons(epochs=1, batch_size=4))
    again = koopsim.load(sim.save(tmp_path / "sim.safetensors"))
    assert torch.equal(again(x), sim.eval()(x))


def test_a_model_put_together_by_hand_says_what_is_missing(tmp_path):
    sim = koopsim.SIM(nn.Linear(2, 4), 4, 3)
    with pytest.raises(KoopsimError, match="put together by hand"):
        sim.save(tmp_path / "m.safetensors")
    sim.config = SMALL["projector"]
    with pytest.raises(KoopsimError, match="not what its SIMConfig builds"):
        sim.save(tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["empty", "cut", "foreign", "ending", "missing"])
def test_a_file_that_is_no_model_is_one_line(what, tmp_path):
    import safetensors.torch

    file = tmp_path / "m.safetensors"
    model = koopsim.build(SMALL["projector"])
    model.save(file)
    if what == "empty":
        file.write_bytes(b"")
    elif what == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif what == "foreign":
        safetensors.torch.save_file({"a": torch.zeros(2)}, file)
    with pytest.raises(KoopsimError) as caught:
        if what == "ending":
            model.save(tmp_path / "m.pt")
        elif what == "missing":
            koopsim.load(tmp_path / "nowhere" / "m.safetensors")
        else:
            koopsim.load(file)
    assert "\n" not in str(caught.value)


def test_anyones_module_with_a_registered_configuration(tmp_path):
    model = koopsim.build(SMALL["projector"])
    copy = nn.Module()
    copy.__dict__.update(nn.Sequential().__dict__)
    for name, child in model.named_children():
        copy.add_module(name, child)
    save_model(tmp_path / "m.safetensors", copy, SMALL["projector"])
    assert isinstance(koopsim.load(tmp_path / "m.safetensors"), koopsim.SIM)


@pytest.mark.parametrize("name", zoo.cards())
def test_models_of_the_zoo_know_what_they_take(name):
    model = koopsim.load(name)
    assert model.config == zoo.run_of_card(name).model == PRESETS[name.partition(":")[0]].model
    if name.startswith("copy/"):
        assert model.takes is None
        with pytest.raises(KoopsimError, match="does not say how pictures become its inputs"):
            predict(model, np.zeros((1, 1, 2, 2), np.uint8))
        return
    channels, height, width = model.takes.shape
    found = model.predict(np.random.default_rng(0).integers(0, 256, (2, channels, height, width), dtype=np.uint8))
    assert len(found.classes) == 10
    assert np.isfinite(found.probabilities).all()
