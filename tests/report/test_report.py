import json

import pytest

from koopsim.cli import main
from koopsim.report import collect, copy_memory_table
from koopsim.report.tables import spread


def result(name="copy/sim-single", loss=1e-9, seed=0, horizon=500):
    return {
        "name": name,
        "parameters": 17_294,
        "test": {"loss": loss, "digits_right": 1.0, "sequences_right": 1.0, "memoryless_loss": 0.04},
        "milliseconds_per_step": 0.5,
        "train_seconds": 60.0,
        "metrics": [{"epoch": e, "step": 10 * e, "seconds": 2.0 * e, "train_loss": 10.0**-e} for e in (1, 2, 3)],
        "run": {"task": {"horizon": horizon}, "recipe": {"batch_size": 1}, "seed": seed},
        "environment": {"gpu": None, "cpu": "a chip"},
    }


@pytest.fixture
def folder(tmp_path):
    for i, loss in enumerate((1e-9, 3e-9)):
        (tmp_path / f"single-{i}.json").write_text(json.dumps(result(loss=loss, seed=i)))
    run = tmp_path / "deq"
    run.mkdir()
    (run / "result.json").write_text(json.dumps(result("copy/deq", 2e-9)))
    (run / "config.json").write_text("{}")
    return tmp_path


def test_published_stands_beside_ours(folder):
    results, skipped = collect([folder])
    table = copy_memory_table(results)
    assert skipped == []
    assert table is not None
    rows = {row[0]: row for row in table.rows}
    assert rows["SIM (single)"][3:5] == ["2.00e-09 ± 1.41e-09 (n=2)", "7.03e-09"]
    assert rows["DEQ"][3:5] == ["2.00e-09", "2.24e-09"]
    assert "0.0400 at T = 500" in table.note
    assert table.markdown().count("\n") == 5
    assert table.csv().startswith('"model",')


def test_broken_and_unfinished_runs_are_listed_not_fatal(folder, capsys):
    (folder / "bad.json").write_text("{")
    (folder / "other.json").write_text("[1]")
    (folder / "going").mkdir()
    (folder / "going" / "config.json").write_text("{}")
    assert main(["report", str(folder), "--out", str(folder / "out"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["runs"] == 3
    assert len(said["skipped"]) == 3
    assert any("unfinished" in line for line in said["skipped"])
    for file in said["files"]:
        assert (folder / "out" / file.split("/")[-1]).stat().st_size > 100


def test_nothing_to_report_is_an_error(tmp_path, capsys):
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "No finished runs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_spread():
    assert spread([1.5], ".1f") == "1.5"
    assert spread([1.0, 3.0], ".1f") == "2.0 ± 1.4 (n=2)"
