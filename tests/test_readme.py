"""The README says what is true: its example runs, its tables come from results/, its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from koopsim.cli import VERBS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)
SAYS = [r"0\.\d+", r"invariant-set \[\s*1\.", r"loss \d\.\de-0[345], [\d,]+ parameters"]


@pytest.mark.parametrize(("code", "says"), list(zip(EXAMPLES, SAYS, strict=True)))
def test_the_examples_run(code, says, tmp_path):
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.match(says, done.stdout), done.stdout


def test_the_tables_have_not_drifted_from_the_results():
    done = subprocess.run([sys.executable, ROOT / "tools" / "readme.py", "--check"])
    assert done.returncode == 0, "run 'make readme'"


def test_every_command_it_names_exists():
    verbs = set(re.findall(r"^koopsim (\w+)", README, re.M))
    assert verbs
    assert verbs <= set(VERBS)


def test_every_file_it_links_to_is_there():
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
