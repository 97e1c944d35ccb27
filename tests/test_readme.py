"""The README says what is true: its example runs, its tables come from results/, its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

from koopsim.cli import VERBS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.match(r"loss \d\.\de-0[34], [\d,]+ parameters, U V is \d", done.stdout), done.stdout


def test_the_tables_have_not_drifted_from_the_results():
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "readme.py", "--check"])
    assert done.returncode == 0, "run 'make readme'"


def test_every_command_it_names_exists():
    verbs = set(re.findall(r"^koopsim (\w+)", README, re.M))
    assert verbs
    assert verbs <= set(VERBS)


def test_every_file_it_links_to_is_there():
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
