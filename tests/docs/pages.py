"""The blocks of a page of docs/, and carrying them out as a reader would: from top to bottom in an empty folder."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from koopsim.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


class Block(NamedTuple):
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(python|sh)\n(.*?)^```", page.read_text(), re.S | re.M)]


def commands(text: str) -> list[list[str]]:
    """The koopsim commands of a block or of indented lines; remarks after # are left out."""
    found = []
    for line in text.splitlines():
        words = shlex.split(line.split("   # ")[0].partition("  # ")[0].partition(" | ")[0], comments=True)
        if words and words[0] == "koopsim":
            found.append(words[1:])
    return found


def carry_out(page: Path, python_alone: bool = False) -> int:
    """Run every block; how many there were. Names live on from one Python block to the next."""
    names = {"__name__": "page"}
    for block in (found := blocks(page)):
        if block.kind == "python":
            exec(compile(block.text, str(page), "exec"), names)
            continue
        for words in [] if python_alone else commands(block.text):
            assert main(words) == 0, f"koopsim {' '.join(words)}"
    return len(found)


if __name__ == "__main__":  # one page in a process of its own, in the folder it is started in
    import sys

    carry_out(Path(sys.argv[1]), python_alone="--python-alone" in sys.argv)
