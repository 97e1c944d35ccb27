"""Looks at a test split are counted: by the run, and by the ledger of what is recorded."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from koopsim.cli import main
from koopsim.runs import RunDirectory

ROOT = Path(__file__).parent.parent
TRAIN = ["train", "copy/sim-single", "--scale", "smoke", "--device", "cpu", "--recipe.epochs", "1",
         "--task.train", "8", "--task.valid", "8", "--task.test", "8"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("looks") / "run"
    assert main([*TRAIN, "--out", str(folder)]) == 0
    return folder


def test_a_run_counts_looks_at_its_test_split(run, capsys):
    directory = RunDirectory(run)
    assert [look["test"] for look in directory.read_looks()] == [directory.read_result()["test"]]
    assert main(["eval", str(run), "--split", "valid", "--device", "cpu"]) == 0
    assert len(directory.read_looks()) == 1  # the valid split may be looked at as often as one likes
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    assert "2 looks at the test split" in capsys.readouterr().out
    assert len(directory.read_looks()) == 2
    assert main([*TRAIN, "--out", str(run), "--overwrite"]) == 0
    assert len(directory.read_looks()) == 3  # begun anew, but not forgotten


def test_who_is_killed_between_the_look_and_the_result_has_looked_once(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    assert main([*TRAIN, "--out", str(directory.path)]) == 0
    once = directory.read_looks()
    for found in (once, []):  # killed after it, and before it
        directory.result_file.unlink()
        directory.looks_file.write_text("".join(json.dumps(look) + "\n" for look in found))
        assert main(["train", "--resume", str(directory.path), "--device", "cpu"]) == 0
        assert [look["test"] for look in directory.read_looks()] == [once[0]["test"]]


def test_a_folder_that_cannot_be_written_is_still_evaluated(run, capsys, monkeypatch):
    from koopsim.errors import KoopsimError

    def refuse(*_):
        raise KoopsimError("read-only")

    monkeypatch.setattr(RunDirectory, "note_look", refuse)
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "not noted: read-only" in said.err
    assert "loss" in said.out


def test_recording_adds_to_the_ledger_and_keeps_what_was_there(run, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("record.py", "ledger.py"):
        (tools / name).write_bytes((ROOT / "tools" / name).read_bytes())
    (tmp_path / "results").mkdir()
    ledger = tmp_path / "results" / "LEDGER.md"
    ledger.write_text("# Looks\n")
    command = [sys.executable, str(tools / "record.py"), str(run), "--to", str(tmp_path / "results" / "here")]
    for _ in range(3):
        subprocess.run(command, check=True, capture_output=True)
    looks = RunDirectory(run).read_looks()
    lines = ledger.read_text().splitlines()[1:]
    assert len(lines) == len(looks)  # a line a look, though it was recorded three times
    assert all("| copy/sim-single at T = " in line and " | 0 | " in line and "loss" in line for line in lines)
    earlier = sorted((tmp_path / "results" / "earlier").iterdir())
    first, second = (e.name for e in earlier)  # of one commit, and neither took the other's place
    assert first.partition("@")[0] == "copy-sim-single-seed0"
    assert second == f"{first}-2"
    for folder in earlier:
        assert json.loads((folder / "result.json").read_text())["name"] == "copy/sim-single"


def test_every_recorded_row_is_in_the_ledger():
    """Rows of before as well, which were put by as NAME@COMMIT: their lines have the place they were kept in."""
    lines = (ROOT / "results" / "LEDGER.md").read_text().splitlines()
    for path in sorted((ROOT / "results").glob("*/*/result.json")):
        if "searches" not in path.parts and "test" in json.loads(path.read_text()):
            name, _, commit = path.parent.name.partition("@")
            commit = commit.partition("-")[0]  # -2: a second one of that commit
            place = f"/{name}/result.json" if commit else str(path.relative_to(ROOT / "results"))
            found = [line for line in lines if place in line and f"| {commit}" in line]
            assert found, f"no line of {path}: use tools/record.py"


def place(file: str) -> tuple[str, str]:
    """Where a ledger's line says this file is, and of what commit: earlier/NAME@COMMIT has the line it had before."""
    path = Path(file)
    folder = path.parent.name if path.name == "result.json" else path.stem
    name, _, commit = folder.partition("@")
    kept = f"{name}/result.json" if path.name == "result.json" else f"{name}.json"
    return (f"/{kept}", f"| {commit.partition('-')[0]}") if commit else (file, "")


def looks_of(ledger, file: Path, name: str) -> list[str]:
    return [said for said in ledger.said_of(json.loads(file.read_text()), name, "", "") if said]


# One line tells all seeds, or the figures are those of runs that have lines of their own.
TOLD_ELSEWHERE = ("sequences", "mdeq-search")


@pytest.fixture(scope="module")
def ledger():
    spec = importlib.util.spec_from_file_location("ledger", ROOT / "tools" / "ledger.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_test_figure_in_results_is_in_the_ledger(ledger):
    """Of runs, of each seed of a search, of studies' rows: by figure and place, or by figure and the row's name."""
    lines, missing, seen = ledger.FILE.read_text().splitlines(), [], 0
    for file in sorted((ROOT / "results").rglob("*.json")):
        name = str(file.relative_to(ROOT / "results"))
        if file.name in ("config.json", "env.json") or file.stem.partition("@")[0] in TOLD_ELSEWHERE:
            continue
        kept, commit = place(name)
        for said in looks_of(ledger, file, name):
            _, row, _, _, figure, *_ = said.split(" | ")
            found = [line for line in lines if f"| {figure} |" in line and commit in line]
            seen += 1
            if not any(f"{kept} |" in line or f"{kept} @" in line or f"| {row} |" in line for line in found):
                missing.append(said)
    assert not missing, "use tools/ledger.py FILE"
    assert seen > 300


def test_the_ledger_sees_runs_searches_and_studies(ledger):
    here = {"date": "2026-11-19T10:00:00", "commit": "0123456789"}
    search = {"name": "a/b", "test": {"accuracy": 0.5}, "best": {"run": {"recipe": {"epochs": 2}}}, "environment": here}
    search |= {"test_over_seeds": {"metric": "accuracy", "values": [0.5, 0.25]}}
    assert list(ledger.said_of(search, "x/result.json", "d", "")) == [
        "| d | a/b | - | - | 50.00% | 0123456 | x/result.json |",
        "| d | a/b | 2 of 2 | epochs 2 | 25.00% | 0123456 | x/result.json |",
    ]
    rows = [{"test": 0.5}, {"test": 0.5}, {"test": {"psnr": 25}}, {"test_psnr": 24.0}, {"accuracy": 0.75, "seed": 3}]
    rows += [{"psnr": {"text": {"test": 20}}}, {"valid": 1.0}, {"test": 0.9, "test_from_zero": 0.8}]
    said = [line.split(" | ") for line in ledger.said_of({"rows": rows, "environment": here}, "y.json", "d", "")]
    figures = ["50.00%", "50.00%", "25.00 dB", "24.00 dB", "75.00%", "20.00 dB", "90.00%", "80.00%"]
    assert [line[4] for line in said] == figures
    assert len(set(map(tuple, said))) == len(said)  # none is left out as a second time of the same


def test_the_ledger_has_its_head(ledger):
    assert ledger.FILE.read_text().startswith(ledger.HEAD)
