"""docs/extending.md speaks of what is there."""

import re
from importlib import import_module
from pathlib import Path

from koopsim import kinds

HERE = Path(__file__).parent
TEXT = (HERE.parent / "docs" / "extending.md").read_text()
SAMPLES = "\n".join(file.read_text() for file in (HERE / "plugin_package" / "src").rglob("*.py"))


def test_what_a_kind_may_say_exists():
    rows = re.findall(r"^\| `([^|]+)` \|", TEXT.partition("| say |")[2].partition("\n\n")[0], re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"(\w+)(?:\(|$|`)", row)]
    assert len(names) >= 8
    assert not [name for name in names if not hasattr(kinds.ModelKind, name)]
    for name in ("fetch", "on_disk"):
        assert hasattr(kinds.DatasetKind, name)
    for name in ("own_space", "shown", "place", "smoke", "presets"):
        assert hasattr(kinds.TaskKind, name)


def test_every_dotted_name_can_be_imported():
    dotted = {name for name in re.findall(r"\bkoopsim(?:\.\w+)+", TEXT) if name != "koopsim.plugins"}
    assert len(dotted) >= 4
    for name in dotted:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute) or import_module(name)


def test_the_configurations_shown_are_the_samples_own():
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        lines = re.findall(r"^\s*(?:class \w+\(.*|config.*|name, title.*|shape, .*|\w+: \w+ = .*)$", block, re.M)
        for line in lines:
            assert line.split("#")[0].strip() in SAMPLES, line
