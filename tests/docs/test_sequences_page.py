"""docs/sequences.md is carried out as a reader would, and its table is what was measured."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pages import DOCS, ROOT, carry_out


@pytest.mark.slow
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert carry_out(DOCS / "sequences.md") >= 5
    assert (tmp_path / "forecast" / "forecast.png").exists()
    result = json.loads((tmp_path / "runs" / "load" / "result.json").read_text())
    assert result["test"]["rmse"] < result["test"]["last_value_rmse"]


def test_the_table_is_what_was_measured():
    recorded = ROOT / "results" / "sequences.json"
    spec = importlib.util.spec_from_file_location("story", ROOT / "benchmarks" / "sequences_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.table(json.loads(recorded.read_text())["summary"]) in (DOCS / "sequences.md").read_text()
