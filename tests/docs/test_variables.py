"""Every environment variable that the package asks for has its row in docs/reference.md."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
INTERNAL = {"KOOPSIM_LAUNCHED"}  # one process of koopsim to another


def test_the_table_of_variables_is_whole():
    files = [*(ROOT / "src" / "koopsim").rglob("*.py")]
    asked = {name for file in files for name in re.findall(r"KOOPSIM_[A-Z_]+[A-Z]", file.read_text())}
    rows = set(re.findall(r"^\| `(KOOPSIM_[A-Z_]+)`", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE))
    assert rows == asked - INTERNAL
