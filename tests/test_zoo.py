"""The models inside the package: there, whole, and as good as their cards say."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

import koopsim
from koopsim import zoo
from koopsim.cli import main
from koopsim.errors import KoopsimError
from koopsim.presets import run_of


@pytest.mark.parametrize("name", zoo.cards())
def test_a_model_is_its_card(name):
    card, file = zoo.card(name), zoo.FOLDER / zoo.card(name)["file"]
    assert file.stat().st_size < 1_000_000
    assert card["data_licence"]
    assert card["commit"]
    run = zoo.run_of_card(name)
    assert replace(run, seed=0) == run_of(name)  # so that its card's command repeats it
    assert card["repeat"].endswith(f"--seed {run.seed}")
    model = koopsim.load(name)
    assert not model.training
    assert koopsim.count_parameters(model) == card["parameters"]


def test_every_file_has_a_card():
    kept = {file.name for file in zoo.FOLDER.glob("*.safetensors")}
    assert kept == {card["file"] for card in zoo.cards().values()}


def test_weights_are_trained_not_drawn():
    trained, drawn = koopsim.load("mnist/sim-single"), koopsim.build("mnist/sim-single")
    assert not torch.equal(next(trained.parameters()), next(drawn.parameters()))


def test_an_unknown_model_says_which_was_meant(capsys):
    with pytest.raises(KoopsimError, match="Did you mean 'mnist/sim-two'"):
        koopsim.load("zoo:mnist/sim-tow")
    assert main(["eval", "zoo:mnist/sim-tow"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_device_that_is_not_here_is_one_line():
    for device in ("mps", "cuda:77"):
        with pytest.raises(KoopsimError, match=f"The device '{device}' cannot be used here") as error:
            koopsim.load("mnist/sim-single", device)
        assert "\n" not in str(error.value)


def test_damaged_weights_are_refused(tmp_path, monkeypatch):
    shutil.copytree(zoo.FOLDER, tmp_path / "zoo", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(zoo, "FOLDER", tmp_path / "zoo")
    file = tmp_path / "zoo" / zoo.card("copy/sim-single")["file"]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(KoopsimError, match="damaged; install koopsim"):
        koopsim.load("copy/sim-single")


def test_weights_of_the_other_package_are_found_there(tmp_path, monkeypatch):
    other = tmp_path / "koopsim_zoo"
    other.mkdir()
    shutil.copy(zoo.FOLDER / zoo.card("svhn/sim-two")["file"], other)
    monkeypatch.setattr(zoo, "FOLDER", tmp_path / "nothing")
    with pytest.raises(KoopsimError, match=r"pip install 'koopsim\[zoo\]'"):
        koopsim.load("svhn/sim-two")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert koopsim.count_parameters(koopsim.load("svhn/sim-two")) == zoo.card("svhn/sim-two")["parameters"]


@pytest.mark.slow
def test_eval_gives_the_recorded_figure(capsys):
    assert main(["eval", "zoo:copy/sim-single", "--device", "cpu", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["loss"] == pytest.approx(zoo.card("copy/sim-single")["test"]["loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist/sim-single", "mnist/sim-two", "cifar10/sim-single"])
def test_eval_gives_the_recorded_accuracy_where_the_data_is(name, capsys):
    from koopsim import datasets

    if not {e.name: e.present for e in datasets.inventory()}[name.split("/")[0]]:
        pytest.skip("the data set is not here")
    assert main(["eval", f"zoo:{name}", "--device", "cpu", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["accuracy"] == pytest.approx(zoo.card(name)["test"]["accuracy"], abs=3e-4)
