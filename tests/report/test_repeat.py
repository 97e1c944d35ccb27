"""A run's command makes the same run again: it is parsed as `koopsim train` would."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import made

from koopsim.cli import parse
from koopsim.cli.train import Arguments, TrainOptions
from koopsim.config import FourierConfig, to_dict
from koopsim.presets import PRESETS, run_of
from koopsim.report import collect
from koopsim.report.repeat import command, runs_table

RECORDED = Path(__file__).parent.parent.parent / "results" / "h200"
NAMES = [*PRESETS, *(f"{name}:best" for name, preset in PRESETS.items() if preset.best)]


def parsed(line):
    """The run that `koopsim train` would make of a command line."""
    koopsim, verb, name, *rest = shlex.split(line)
    assert (koopsim, verb) == ("koopsim", "train")
    options = dict(zip(rest[::2], rest[1::2], strict=False))
    scale = options.get("--scale", "paper")
    recipe = options.get("--recipe", "paper")
    base = run_of(f"{name}:{recipe}", scale)
    return parse(Arguments, rest, f"train {name}", Arguments(base, TrainOptions(scale=scale, recipe=recipe))).run  # pyright: ignore


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", ["paper", "smoke"])
def test_every_preset_is_named_by_its_shortest_command(name, scale):
    run = replace(run_of(name, scale), seed=3)
    line = command({"name": name, "run": to_dict(run)})
    assert line is not None
    assert parsed(line) == run
    assert len(line.split()) <= 3 + 2 + 2 + 2


@pytest.mark.parametrize(
    ("name", "recipe", "more"),
    [
        ("copy/deq", {"learning_rate": 0.003, "clip_norm": None}, {"seed": 2}),
        ("cifar10/sim-single:best", {"flip": False, "epochs": 7}, {"precision": "tf32"}),
        ("mnist/mondeq-multi", {"flip": True, "batch_size": 64}, {"train_on": "train"}),
    ],
)
def test_what_differs_from_the_preset_is_in_the_command(name, recipe, more):
    base = run_of(name)
    run = replace(base, recipe=replace(base.recipe, **recipe), **more)
    line = command({"name": name, "run": to_dict(run)})
    assert line is not None
    assert parsed(line) == run


def test_numbers_inside_a_model_are_in_the_command():
    base = run_of("image/sim-two")
    run = replace(base, model=replace(base.model, hidden=64, fourier=FourierConfig(512, 0.5)))
    line = command({"name": "image/sim-two", "run": to_dict(run)})
    assert line is not None
    assert "--model.fourier.bandwidth 0.5" in line
    assert parsed(line) == run


def test_an_unknown_preset_has_no_command():
    assert command({"name": "photos/sim-single", "run": made()["run"]}) is None
    assert command({"name": "copy/deq", "run": {"kind": "Run"}}) is None
    assert command({"name": "copy/deq", "run": made("copy/sim-single")["run"]}) is None


def test_recorded_runs_have_commands_and_environments():
    results, _ = collect([RECORDED])
    assert len(results) >= 30
    table = runs_table(results)
    assert table is not None
    for row in table.rows:
        assert row[1].startswith("koopsim train ")
        assert row[5] != "-"
        assert "NVIDIA H200" in row[6]
