import re
from pathlib import Path

from koopsim import bench

TEXT = (Path(__file__).parents[2] / "docs" / "speed.md").read_text()


def test_the_example_of_the_docs_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    exec(compile(code, "docs/speed.md", "exec"), {})
    assert float(capsys.readouterr().out.removeprefix("largest difference")) < 1e-3


def test_every_row_is_explained():
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.M) == [*bench.ROWS, bench.GROWTH]


def test_the_options_of_the_docs_exist():
    from koopsim.cli.bench import Arguments as Bench
    from koopsim.cli.export import Arguments as Export

    known = {f"--{name}" for arguments in (Bench, Export) for name in arguments.__dataclass_fields__} | {"--no-fuse"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", TEXT))
    assert named <= known, named - known
