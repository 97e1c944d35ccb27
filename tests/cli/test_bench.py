import json

import pytest

from koopsim import bench
from koopsim.bench.setting import Sizes
from koopsim.cli import main

TINY = Sizes(
    turns=3, horizon=5, image_sets=(), large_batch=2, trials=2, growth_horizons=(5, 10), growth_lifted=(4, 8),
    growth_pictures=(1,), growth_trials=(1,), picture_size=8, points=8, growth_solver=0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(bench, "sizes_for", lambda device, quick: TINY)


def test_json_is_alone_on_standard_output(capsys):
    assert main(["bench", "fuse", "--device", "cpu", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert {c["row"] for c in found["comparisons"]} == {"fuse"}
    assert found["comparisons"][0]["ours"]["name"] == "copy/sim-single, fused"
    assert err == "koopsim bench: fuse\n"


def test_tables_files_and_the_limit(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["bench", "stack", "growth", "capture", "--device", "cpu", "--out", str(tmp_path / "b")]) == 0
    out = capsys.readouterr().out
    assert "by arithmetic" in out
    assert "above floor" in out
    assert "Growth with T" in out
    assert "left out capture: a step is captured on CUDA only" in out
    assert sorted(f.name for f in (tmp_path / "b").iterdir()) == [".koopsim", "bench.json", "growth.png"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian"], "Did you mean 'train'"),
        (["--device", "cuda:77"], "cannot be used here"),
        (["--device", "mps"], "which know float64"),
    ],
)
def test_bad_input_is_one_line(arguments, says, capsys):
    assert main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert out == ""
    assert err.count("\n") == 1


def test_a_folder_that_cannot_be_made(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert main(["bench", "stack", "--out", str(tmp_path / "file" / "b")]) == 2
    assert "Cannot make the folder" in capsys.readouterr().err
