"""A precision that was asked for and that this device does not compute in is said; a preset's own is not."""

from dataclasses import replace

import pytest

from koopsim.cli import main
from koopsim.cli.train import say_precision
from koopsim.engine import stacked
from koopsim.presets import run_of
from koopsim.runs import read_run_json

TINY = "--scale smoke --device cpu --recipe.epochs 1 --task.train 20 --task.test 10".split()
COPY = [*TINY, *"--task.valid 10 --task.horizon 3 --model.lift.levels 2".split()]


@pytest.mark.parametrize("asked", [["--precision", "bf16"], ["--precision=tf32"], ["--precision", "float64"], []])
def test_training_says_it_once(asked, tmp_path, capsys):
    assert main(["train", "copy/sim-single", *COPY, *asked, "--out", str(tmp_path / "run")]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("koopsim:")]
    short = asked and "float64" not in asked
    name = asked[-1].removeprefix("--precision=") if asked else ""
    assert said == ([f"koopsim: --precision {name} is a GPU's; on cpu this computes in float32."] if short else [])
    used = read_run_json(tmp_path / "run" / "result.json")["precision"]
    assert used == ("float64" if "float64" in asked else "float32")


def test_a_presets_own_goes_unsaid_and_so_does_what_a_gpu_does(capsys):
    run = run_of("cifar10/sim-single")  # in bf16, by its preset
    say_precision([], run, "mps")
    say_precision(["--precision", "bf16"], run, "cuda")
    assert capsys.readouterr().err == ""
    say_precision(["--precision", "bf16"], run, "mps")
    assert "on mps this computes in float32" in capsys.readouterr().err


@pytest.mark.parametrize("there", [True, False])
def test_a_processor_that_has_it_computes_in_it_and_says_nothing(there, monkeypatch, capsys):
    monkeypatch.setattr(stacked, "multiplies_bf16", lambda: there)
    run = replace(run_of("digits/sim-single"), precision="bf16")
    say_precision(["--precision", "bf16"], run, "cpu")
    assert capsys.readouterr().err == (
        "" if there else "koopsim: --precision bf16 is a GPU's; on cpu this computes in float32.\n"
    )


def test_a_search_says_it(tmp_path, capsys):
    rest = ["--trials", "1", "--retrain", "0", "--precision", "bf16", "--out", str(tmp_path / "search")]
    assert main(["tune", "copy/sim-two", *COPY, *rest]) == 0
    assert "koopsim: --precision bf16 is a GPU's; on cpu this computes in float32.\n" in capsys.readouterr().err
