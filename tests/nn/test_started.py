"""SIMs that begin elsewhere than at zero."""

from dataclasses import replace

import pytest
import torch

import koopsim
from koopsim.bridge.examine import examine
from koopsim.cli import main
from koopsim.nn.sim import SIM
from koopsim.nn.started import StartedSIM
from koopsim.presets import run_of

KINDS = ("digits/sim-single", "digits/sim-two")
x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def made(preset: str, z0: str) -> StartedSIM:
    torch.manual_seed(0)
    model = koopsim.build(replace(run_of(preset).model, z0=z0)).eval()
    assert isinstance(model, StartedSIM)
    return model


def moved(model: StartedSIM) -> StartedSIM:
    with torch.no_grad():
        model.entry.normal_(std=0.5, generator=torch.Generator().manual_seed(1))
    return model


@pytest.mark.parametrize("preset", KINDS)
@pytest.mark.parametrize("z0", ["learnt", "again"])
def test_it_begins_as_the_sim_without_it(preset, z0):
    model = made(preset, z0)
    assert torch.equal(model(x), model.sim(x))
    more = model.entry.numel() + (model.entry.shape[1] if z0 == "learnt" else 0)
    plain = sum(p.numel() for p in koopsim.build(preset).parameters())
    assert sum(p.numel() for p in model.parameters()) == plain + more


@pytest.mark.parametrize("preset", KINDS)
def test_a_start_that_is_given_is_taken(preset):
    model = moved(made(preset, "learnt"))
    given = torch.randn(5, model.entry.shape[1], generator=torch.Generator().manual_seed(2))
    by_hand = model.sim.psi(model.sim.mu(x) + given @ model.entry.T)
    expected = model.sim.h(model.sim.nu(model.sim.limit(by_hand)))
    assert torch.allclose(model(x, given), expected, atol=1e-6)
    assert torch.allclose(model(x, torch.zeros(model.entry.shape[1])), model.sim(x), atol=1e-6)
    assert torch.equal(model(x), model(x, model.z0.detach()))
    assert not torch.allclose(model(x, given), model.sim(x), atol=1e-3)


@pytest.mark.parametrize("preset", KINDS)
def test_again_begins_at_the_answer_from_zero(preset):
    model = moved(made(preset, "again"))
    assert torch.allclose(model(x), model(x, model.sim.state(x)), atol=1e-6)


@pytest.mark.parametrize("z0", ["learnt", "again"])
def test_the_entry_learns_from_the_first_step(z0):
    model = made("digits/sim-single", z0).train()
    model(x).square().sum().backward()
    assert float(model.entry.grad.abs().max()) > 0


def test_a_start_of_another_size_is_said():
    with pytest.raises(ValueError, match="a state of this model has 32"):
        made("digits/sim-single", "again")(x, torch.zeros(7))


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="'learnt' or 'again'"):
        StartedSIM(koopsim.build("digits/sim-single"), "zero")


def test_it_is_saved_loaded_and_examined(tmp_path):
    model = moved(made("digits/sim-single", "again"))
    model.save(tmp_path / "a.safetensors")
    again = koopsim.load(tmp_path / "a.safetensors").eval()
    assert torch.equal(again(x), model(x))
    assert examine(model).to_dict() == examine(model.sim).to_dict()


def test_zero_is_the_plain_sim():
    assert type(koopsim.build(replace(run_of("digits/sim-single").model, z0="zero"))) is SIM


def test_it_is_trained_from_the_command_line(tmp_path, capsys):
    words = ["train", "digits/sim-single", "--scale", "smoke", "--model.z0", "again", "--recipe.epochs", "1"]
    assert main([*words, "--task.train", "100", "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    trained = koopsim.load(tmp_path / "run")
    assert isinstance(trained, StartedSIM)
    assert float(trained.entry.detach().abs().max()) > 0
