"""A folder for a model hub: it loads back to the same model, its card is valid and says what is recorded."""

import json

import pytest
import torch
import yaml

import koopsim
from koopsim import zoo
from koopsim.cli import main
from koopsim.config import ModelConfig, from_dict
from koopsim.hub import card_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("hub") / "model"
    assert main(["export", "zoo:mnist/sim-two", "--format", "hub", "--out", str(out)]) == 0
    return out


def test_the_folder_is_the_model(folder):
    images = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    again, first = koopsim.load(folder / "model.safetensors"), koopsim.load("mnist/sim-two")
    assert torch.equal(again(images), first(images))
    assert again.takes.classes == first.takes.classes
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["SIM"]
    assert from_dict(ModelConfig, config["model"], "config") == first.config


def test_the_card_can_be_read_by_a_hub_and_by_people(folder):
    _, head, text = (folder / "README.md").read_text().split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["library_name"] == "koopsim"
    assert about["pipeline_tag"] == "image-classification"
    card = zoo.card("mnist/sim-two")
    assert f"| accuracy | {card['test']['accuracy']:.6g} |" in text
    assert card["data_licence"] in text
    assert card["repeat"] in text


def test_what_is_not_ours_stays(folder, tmp_path, capsys):
    (tmp_path / "README.md").write_text("mine")
    assert main(["export", "zoo:copy/sim-single", "--format", "hub", "--out", str(tmp_path)]) == 2
    assert (tmp_path / "README.md").read_text() == "mine"
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_of_ones_own(tmp_path):
    tiny = ["--scale", "smoke", "--recipe.epochs", "1", "--device", "cpu"]
    assert main(["train", "digits/sim-single", *tiny, "--out", str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), "--format", "hub", "--out", str(tmp_path / "hub")]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert f"| accuracy | {result['test']['accuracy']:.6g} |" in (tmp_path / "hub" / "README.md").read_text()


@pytest.mark.parametrize("name", zoo.cards())
def test_every_card_of_the_zoo_reads_as_markdown(name):
    card = zoo.card(name)
    text = card_text(name, zoo.run_of_card(name).model, card["parameters"], card)
    assert yaml.safe_load(text.split("---\n")[1])["license"] == "apache-2.0"
    assert f"# {name}" in text
    assert card["sha256"] in text
