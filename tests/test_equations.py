"""Whoever has the paper open finds each of its equations in the code, and what docs/math.md names is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "koopsim"
TEXT = (ROOT / "docs" / "math.md").read_text()
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ")]
EQUATIONS = 15  # numbered lines in the paper's source, counted from the top
SAID = "\n".join(ast.get_docstring(ast.parse(file.read_text())) or "" for file in sorted(SOURCE.rglob("*.py")))


@pytest.mark.parametrize("number", range(1, EQUATIONS + 1))
def test_an_equation_is_found_by_its_number(number):
    assert re.search(rf"eq\. (\(\d+\)(,| and) )*\({number}\)", SAID), "no module's docstring has it"
    assert any(re.match(rf"\| (\(\d+\), )*\({number}\)[, ].*`eq:", row) for row in ROWS), "no row in math.md"


def test_what_is_named_is_there():
    named = re.findall(r"`((?:\w+/)*\w+\.(?:py|cu))`(?:: ((?:`[\w.]+`(?:, )?)+))?", TEXT)
    assert len(named) > 50
    for path, names in named:
        files = list(SOURCE.rglob(path))
        assert files, f"docs/math.md names {path}"
        text = "\n".join(file.read_text() for file in files)
        for name in re.findall(r"`([\w.]+)`", names):
            last = re.escape(name.rpartition(".")[2])
            assert re.search(rf"(def|class) {last}\b|\b{last}( =|: |,)", text), f"docs/math.md: {name} of {path}"
