"""Runs and searches that koopsim 0.1 (b2b92ed) left half-way, kept as it wrote them: they go on to its own figures.

`old/wanted.json` is what that version came to.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from koopsim.runs import RunDirectory
from koopsim.searching.directory import SearchDirectory
from koopsim.searching.local import LocalSearch
from koopsim.tasks import build_task
from koopsim.training import Session, load_run, train_run

OLD = Path(__file__).parent / "old"
WANTED = json.loads((OLD / "wanted.json").read_text())
HERE = Session(torch.device("cpu"))
pytestmark = pytest.mark.filterwarnings("ignore::koopsim.implicit.UnconvergedWarning")


@pytest.mark.parametrize("name", [name for name in WANTED if not name.startswith("search")])
def test_a_run_of_before_goes_on_to_its_figures(name, tmp_path):
    shutil.copytree(OLD / name, tmp_path / name)
    directory = RunDirectory(tmp_path / name)
    _, run = directory.read_config()
    result = train_run(run, directory, name, HERE, resume=True)
    assert result["test"] == pytest.approx(WANTED[name]["test"], rel=1e-4)
    assert result["metrics"][-1]["train_loss"] == pytest.approx(WANTED[name]["train_loss"], rel=1e-4)


@pytest.mark.parametrize("name", ["copy", "digits-averaged", "pictures-averaged"])
def test_a_finished_run_of_before_is_loaded(name):
    folder = OLD / f"{name}-finished"
    _, run = RunDirectory(folder).read_config()
    assert build_task(run.task).evaluate(load_run(folder), "test") == pytest.approx(
        WANTED[name]["test"], rel=1e-6
    )  # float32: products may be taken in another order


@pytest.mark.parametrize("name", [name for name in WANTED if name.startswith("search")])
def test_a_search_of_before_comes_to_its_verdicts(name, tmp_path):
    shutil.copytree(OLD / name, tmp_path / name)
    directory = SearchDirectory(tmp_path / name)
    search = directory.read()
    local = LocalSearch(search, directory, HERE)
    local.load()
    for trial, wanted in zip(local.run(), WANTED[name], strict=True):
        assert (trial.status, trial.t) == (wanted["status"], wanted["t"])
        assert trial.last(search.space.metric) == pytest.approx(wanted["last"], rel=1e-5)
