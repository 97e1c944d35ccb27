"""What results/ holds can be had again from the weights beside it."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from koopsim.cli import main
from koopsim.presets import PRESETS, run_of
from koopsim.runs import RunDirectory

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "results" / "h200"
HISTORY = (ROOT / "docs" / "evidence-history.md").read_text()
BROYDEN = "copy-deq-broyden-seed0"


def commits(said: object) -> list[str | None]:
    """What a result says of the commits it was measured at."""
    if isinstance(said, dict):
        own = [said["commit"]] if "commit" in said else []
        return own + [found for part in said.values() for found in commits(part)]
    return [found for part in said for found in commits(part)] if isinstance(said, list) else []


def named(title: str) -> set[str]:
    """The files in the table below this title of the evidence's history."""
    page = HISTORY.partition(title)[2]
    return set(re.findall(r"^\| `(results/\S+)`", re.split(r"^#", page, maxsplit=1, flags=re.M)[0], re.M))


@pytest.fixture(scope="module")
def said() -> dict[str, list[str | None]]:
    files = [file for file in ROOT.glob("results/**/*.json") if "earlier" not in file.parts and file.name != "env.json"]
    return {str(file.relative_to(ROOT)): commits(json.loads(file.read_text())) for file in files}


def clean(commit: str | None) -> bool:
    return bool(commit and re.fullmatch("[0-9a-f]{7,40}", commit))


def landed() -> str:
    """Every commit of the history, a line each; skips where nobody says which there were."""
    asked = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    if asked.returncode or (ROOT / ".git" / "shallow").exists():
        pytest.skip("no clone, or not a whole one: nobody says which commits there were")
    return "\n" + asked.stdout


def test_results_of_a_changed_tree_are_named(said):
    """Each is in the table of docs/evidence-history.md, and nothing else is."""
    assert named("Recorded from a tree with uncommitted changes\n") == {
        file for file, found in said.items() if not all(map(clean, found))
    }


def test_results_of_commits_that_never_landed_are_named(said):
    known = landed()
    assert named("Recorded at a commit that is not in the history\n") == {
        file for file, found in said.items() if any(clean(c) and f"\n{c}" not in known for c in found)
    }


def test_earlier_results_of_such_trees_and_commits_are_named():
    known = landed()
    page = HISTORY.partition("In `results/earlier` the same holds of")[2]
    for file in ROOT.glob("results/earlier/**/*.json"):
        said = commits(json.loads(file.read_text()))
        if any(not clean(commit) or f"\n{commit}" not in known for commit in said):
            assert f"`{file.relative_to(ROOT / 'results' / 'earlier').parts[0]}`" in page, file


def test_results_that_do_not_name_their_gpu_are_named():
    page = HISTORY.partition("do not name their GPU (`gpu` is null)")[2].partition("\n\n")[0]
    files = [file for file in RUNS.rglob("*.json") if file.name not in ("env.json", "config.json", "search.json")]
    found = {file.stem for file in files if json.loads(file.read_text()).get("environment", {}).get("gpu", "-") is None}
    assert found == set(re.findall(r"`([a-z-]+)`", page))


def test_the_public_codes_weights_give_our_answers():
    """What docs/differences.md says of them, of every SIM of the paper's tables at its preset's size."""
    rows = json.loads((ROOT / "results" / "paper-weights.json").read_text())["rows"]
    tasks = {"copy": ("single", "two"), "cifar10": ("single", "two"), "mnist": ("single", "two")}
    tasks |= {"image": ("single", "two", "rff")}
    assert [row["name"] for row in rows] == [f"{task}/sim-{kind}" for task in tasks for kind in tasks[task]]
    said = f"agree to {max(row['difference'] for row in rows):.0e} of"
    assert said in " ".join((ROOT / "docs" / "differences.md").read_text().split())
    for row in rows:
        assert row["parameters"] == (PRESETS[row["name"]].paper_parameters or row["parameters"])


def test_the_command_of_the_broyden_rows_has_their_settings(tmp_path):
    said = re.search(r"`koopsim (train copy/deq --seed 0 [^`]*)`", (ROOT / "docs" / "evidence.md").read_text())
    assert said
    small = [
        "--task.horizon",
        "3",
        "--task.train",
        "4",
        "--task.valid",
        "2",
        "--task.test",
        "2",
        "--recipe.epochs",
        "1",
    ]
    assert main([*said[1].split(), *small, "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    (_, ours), (_, recorded) = (RunDirectory(run).read_config() for run in (tmp_path / "run", RUNS / BROYDEN))
    epochs = recorded.recipe.epochs
    assert replace(ours, task=recorded.task, recipe=replace(ours.recipe, epochs=epochs)) == recorded


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copy-sim-single", "copy-sim-two"])
def test_a_recorded_run_gives_its_figure_again(name, tmp_path, capsys):
    kept = next(folder for folder in (RUNS / name, RUNS / f"{name}-seed0") if folder.exists())
    recorded = RunDirectory(kept).read_result()["test"]
    run = shutil.copytree(kept, tmp_path / name)  # a run notes each look at its test split
    assert main(["eval", str(run), "--device", "cpu", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["loss"] == pytest.approx(recorded["loss"], rel=1e-3)
    assert again["digits_right"] == recorded["digits_right"] == 1.0


@pytest.mark.parametrize("path", sorted(RUNS.glob("*/result.json")), ids=lambda p: p.parent.name)
def test_a_recorded_run_says_what_made_it(path):
    result = RunDirectory(path.parent).read_result()
    name, run = RunDirectory(path.parent).read_config()
    row = re.sub(r"-seed\d+$", "", path.parent.name)
    named = row == re.sub("[/:]", "-", name)  # others are variants, and say so in their folder's name
    assert (replace(run, seed=0) == run_of(name)) == named  # so that `koopsim train NAME --seed N` repeats it
    assert result["name"] == name
    assert result["environment"]["commit"]
    assert result["environment"]["gpu"] == "NVIDIA H200"
    assert result["metrics"] == RunDirectory(path.parent).read_metrics()
