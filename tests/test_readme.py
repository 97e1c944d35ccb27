"""The README says what is true: its example runs, its tables come from results/, its commands exist."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from koopsim.cli import VERBS, main
from koopsim.report.tables import Table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)
SAYS = [r"0\.9\d+", r"invariant-set\n\[", r"$"]
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
MOST_WORDS = 900


@pytest.mark.parametrize(("code", "says"), list(zip(EXAMPLES, SAYS, strict=True)))
def test_the_examples_run(code, says, tmp_path):
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.match(says, done.stdout), done.stdout


def test_the_commands_run(tmp_path, monkeypatch):
    """On a table of one's own, as they stand there; pip's line is what tools/release.py does."""
    random = np.random.default_rng(0)
    X = random.standard_normal((120, 3))
    rows = np.c_[X, X[:, 0] - 2 * X[:, 1] + 0.1 * random.standard_normal(120)]
    np.savetxt(tmp_path / "table.csv", rows, delimiter=",", header="a,b,c,price", comments="")
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^koopsim (.*?)(?:  +#.*)?$", "\n".join(re.findall(r"```sh\n(.*?)```", README, re.S)), re.M)
    assert len(lines) == 2
    for line in lines:
        assert main(line.split()) == 0
    assert (tmp_path / "report" / "index.html").exists()


def test_the_tables_have_not_drifted_from_the_results():
    done = subprocess.run([sys.executable, ROOT / "tools" / "readme.py", "--check"])
    assert done.returncode == 0, "run 'make readme'"


def test_what_it_says_of_table_1_is_what_was_recorded():
    results = ROOT / "results"
    deq = json.loads((results / "h200" / "copy-deq" / "result.json").read_text())
    trained, tested = (
        f"{100 * share:.0f}%"
        for share in (np.mean([m["unconverged"] for m in deq["metrics"]]), deq["test"]["unconverged"])
    )
    assert f" {trained} of its training and {tested} of its test solves ended above the tolerance" in README


def test_every_command_it_names_exists():
    verbs = set(re.findall(r"^koopsim (\w+)", README, re.M))
    assert verbs
    assert verbs <= set(VERBS)


def test_it_is_short():
    assert len(README.split()) <= MOST_WORDS


def test_every_link_is_absolute_and_leads_somewhere():
    """So that it reads on a package index: pages of the site are pages of docs/, files are files of this repository."""
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) > 8
    places = {
        f"{HOME['Homepage']}/blob/main/": ROOT,
        f"{HOME['Homepage']}/tree/main/": ROOT,
        HOME["Homepage"].replace("github.com", "raw.githubusercontent.com") + "/main/": ROOT,
        f"{HOME['Documentation']}/": ROOT / "docs",
    }
    for link in links:
        place = next((place for place in places if link.startswith(place)), None)
        assert place, link
        name = link.removeprefix(place).replace(".html", ".md")
        assert (places[place] / name).exists(), link


def test_the_first_screen_installs_and_shows():
    """Before forty lines are over: what it is, a picture that moves, how to install it, a first result."""
    screen = "\n".join(README.splitlines()[:40])
    for what in (".gif", "pip install koopsim", "**Take it**", "SIMClassifier"):
        assert what in screen


@pytest.fixture(scope="module")
def readme():
    spec = importlib.util.spec_from_file_location("readme", ROOT / "tools" / "readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_of_fewer_than_three_seeds_are_marked(readme):
    seeds = {"monDEQ (single)": "71.00", "SIM (single)": "73.00 ± 0.10 (n=3)", "SIM (two)": "72.00 ± 0.10 (n=2)"}
    rows = [["X", model, figure, "72.0 ± 0.1"] for model, figure in seeds.items()]
    table = readme.classified(Table("", ["data", "model", "accuracy %", "paper"], rows))
    assert table.rows == [["X", "71.00\\* (72.0)", "-", "73.00 (72.0)", "72.00† (72.0)", "-"]]
    assert "three seeds (†: two, \\*: one)" in README


def test_rows_of_a_changed_tree_are_marked_and_models_have_their_names(readme):
    kinds = [("copy/deq", "0123456+levels", None), ("image/sim-two", "0123456-dirty", "text16")]
    results = [
        {"name": name, "environment": {"commit": commit}, "run": {"model": {}}} | ({"set": place} if place else {})
        for name, commit, place in kinds
    ]
    one = Table("", ["model", "loss"], [["DEQ", "1"], ["SIM (two)", "2"]])
    three = Table("", ["pictures", "model", "dB"], [["text16", "SIM (two)", "3"], ["natural16", "SIM (two)", "4"]])
    assert readme.called(readme.marked(one, results, "loss")).rows == [
        ["DEQ, Anderson (unconverged)", "1‡"],
        ["SIM (two)", "2"],
    ]
    assert [row[2] for row in readme.marked(three, results, "dB").rows] == ["3‡", "4"]
    assert README.count("‡") == 3


def test_tables_of_studies_say_what_their_files_say(readme, monkeypatch):
    studies = readme.studies
    sizes = {3 << 19: "1.5 MiB", 500 << 20: "500 MiB", 5 << 29: "2.5 GiB"}
    assert [studies.size(count) for count in sizes] == list(sizes.values())
    assert studies.middle([1.3, 1.1, 1.2]) == "1.20 (1.10, 1.30)"
    assert studies.middle([1.3]) == "1.30"
    assert studies.error([1.0, 2.0, 3.0]) == pytest.approx(3**-0.5)
    side = {"seconds": 0.0105, "note": "residual 4.0e-04, backward 7.5e-04; 32 + 8 evaluations"}
    names = [f"koopsim, {way}{solver}" for way in ("", "captured, ") for solver in studies.SOLVERS]
    steps = [{"ours": side | {"name": name}, "other": side, "ratio": 3.94} for name in names]
    monkeypatch.setattr(studies, "read", lambda name: {"rows": steps})
    first, *_ = studies.torchdeq().rows  # 3.94 is short of the 4 that were asked of copy memory
    assert first[2:] == ["10.5 ms, 32 + 8, to 4.0e-04, 7.5e-04"] * 2 + ["3.9, short", "4", "3.94"]
    decibels = {"tancik": (3, 2), "sim-rff": (1, 4)}  # of two pictures: 2 dB behind, 2 ahead
    found = {m: {"parameters": 1, "test": {"psnr": 9, "psnr/a": a, "psnr/b": b}} for m, (a, b) in decibels.items()}
    monkeypatch.setattr(studies, "read", lambda name: found["tancik" if "tancik" in name else "sim-rff"])
    assert studies.gap().rows[0][2:4] == ["0.00 ± 2.00", "1 of 2"]
