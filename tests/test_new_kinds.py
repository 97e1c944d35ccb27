"""What a new task, model or data set costs: one file each, put into a copy of the package; nothing else changes."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_doors import PACKAGE, agreed, driven

import koopsim

HERE = Path(__file__).parent
SAMPLES = PACKAGE / "src" / "koopsim_pendulum"
ADDED = {"tasks/pendulum.py": "pendulum.py", "nn/tanh.py": "tanh.py", "datasets/stripes.py": "stripes.py"}


def contents(folder: Path) -> dict[str, str]:
    files = (file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> Path:
    """A copy of the package with three files more."""
    source, place = Path(koopsim.__file__).parent, tmp_path_factory.mktemp("house")
    shutil.copytree(source, place / "koopsim", ignore=shutil.ignore_patterns("__pycache__"))
    before = contents(source)
    for file, sample in ADDED.items():
        shutil.copy(SAMPLES / sample, place / "koopsim" / file)
    after = contents(place / "koopsim")
    assert {name for name in after if after[name] != before.get(name)} == set(ADDED)
    assert before.keys() <= after.keys()
    return place


def test_each_costs_one_file_and_has_the_verbs(house, tmp_path):
    smoke = ["--scale", "smoke"]
    said = driven(
        [
            ["train", "pendulum/sim-single", *smoke, "--out", "task"],
            ["eval", "task"],
            ["tune", "pendulum/sim-single", *smoke, "--trials", "2", "--out", "search"],
            ["train", "digits/tanh", *smoke, "--out", "model"],
            ["eval", "model"],
            ["tune", "digits/tanh", *smoke, "--trials", "2", "--retrain", "0", "--out", "models"],
            ["train", "digits/sim-single", "--data", "stripes", "--out", "data", "--recipe.epochs", "2"],
        ],
        tmp_path,
        house,
    )
    agreed(said, [0] * 7)
    assert {"koopsim.tasks.pendulum", "koopsim.nn.tanh", "koopsim.datasets.stripes"} <= set(said[-1]["modules"])


@pytest.mark.slow
def test_the_contract_finds_them_by_itself(house):
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", str(HERE / "test_contract.py")]
    command += ["-k", "pendulum or tanh or stripes or matrix"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(house)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    for test in ("pendulum/sim-single", "digits/tanh", "stripes", "in_the_matrix"):
        assert [line for line in done.stdout.splitlines() if test in line and "PASSED" in line], test
