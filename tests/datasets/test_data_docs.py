import re
from pathlib import Path


def test_the_example_of_the_docs_runs(tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/data.md", "exec"), {})
    assert "(1, 8, 8)" in capsys.readouterr().out
