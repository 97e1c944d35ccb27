"""docs/own-pytorch.md runs: without Lightning always, with it where it is installed (`make test-all` installs it)."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[1] / "docs" / "own-pytorch.md").read_text()
PARTS = dict(re.findall(r"^(# .*?|## .*?)$(.*?)(?=^## |\Z)", TEXT, re.S | re.M))


def run(*heads, names=None):
    names = {} if names is None else names
    for head in heads:
        text = next(part for title, part in PARTS.items() if head in title)
        code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.S)).replace("epochs=60", "epochs=25")
        assert code
        exec(compile(code.replace("range(60)", "range(25)"), f"own-pytorch.md, {head}", "exec"), names)
    return names


def test_the_engine_and_a_plain_loop(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run("Your own", "The engine", "plain loop")
    assert names["result"]["test"]["accuracy"] > 0.75
    assert names["plain"] > 0.75
    assert (tmp_path / "runs" / "spirals" / "result.json").exists()
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.skipif(find_spec("lightning") is None, reason="PyTorch Lightning is not installed: pip install lightning")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_lightning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("Your own", "The engine", "PyTorch Lightning")
    assert float(names["trainer"].callback_metrics["accuracy"]) > 0.75


def test_make_test_all_installs_lightning():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    installed = makefile.partition("EVERYTHING :=")[2].partition("\n")[0]
    assert "lightning" in installed
    assert "$(PIP) $(EVERYTHING)" in makefile.partition("test-all:")[2].partition("\n\n")[0]
