import re
import tomllib
from pathlib import Path

from koopsim.presets import run_of
from koopsim.searching.space import base_of, space_of
from koopsim.searching.space_text import overridden
from koopsim.spaces import Choice, LogUniform, Median

TEXT = (Path(__file__).parents[2] / "docs" / "search.md").read_text()


def test_the_example_of_the_docs_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/search.md", "exec"), {})
    assert "recipe.learning_rate" in capsys.readouterr().out


def test_the_file_of_the_docs_is_a_search_space():
    (text,) = re.findall(r"```toml\n(.*?)```", TEXT, re.S)
    base = base_of(run_of("copy/sim-two"))
    space = overridden(space_of(base), base, tomllib.loads(text), "docs")
    assert (space.trials, space.max_t, space.grace) == (50, 6, 3)
    kinds = [LogUniform, Choice, Median]
    names = ["recipe.learning_rate", "recipe.batch_size", "model.fourier.bandwidth"]
    assert [type(space.parameters[n]) for n in names] == kinds


def test_the_options_of_the_docs_exist():
    from koopsim.cli.tune import TuneOptions

    known = {"--help"} | {f"--{name.replace('_', '-')}" for name in TuneOptions.__dataclass_fields__}
    named = {
        o
        for line in TEXT.splitlines()
        if "ray start" not in line
        for o in re.findall(r"(?<![\w-])--[a-z][a-z-]*(?![\w.-])", line)  # a dot: a setting of the run
    }
    assert named <= known, named - known
