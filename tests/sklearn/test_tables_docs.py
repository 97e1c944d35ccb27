"""docs/tables.md: its Python and its commands run, in a folder with the files it names."""

import re
import shlex
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

from koopsim.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()


def test_the_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names: dict = {}
    exec(compile(code, "docs/tables.md", "exec"), names)
    assert float(capsys.readouterr().out.split()[0]) > 0.9
    assert names["states"].shape == (143, 32)


def test_the_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = load_diabetes()
    rows = np.c_[found.data, found.target]
    for name, some in (("table.csv", rows), ("other.csv", rows[:50])):
        np.savetxt(name, some, delimiter=",", header=",".join([*found.feature_names, "progress"]), comments="")
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    quick = {"train": ["--recipe.epochs", "3"], "tune": ["--trials", "4", "--max-t", "10", "--retrain", "0"]}
    for line in commands.splitlines():
        words = shlex.split(line)[1:]
        more = ["--device", "cpu"] if words[0] != "report" else []
        assert main([*words, *quick.get(words[0], []), *more]) == 0, line
    assert Path("predictions.csv").read_text().startswith("row,progress,predicted progress\n")
    assert Path("report/tables.png").exists()
