"""benchmarks/ calls the library and the verbs: it steps no model by itself, and stays small."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MINE = ["verbs.py", "speed.py", "search_backends.py", "time_to_accuracy.py"]


@pytest.mark.parametrize("name", MINE)
def test_they_step_no_model(name):
    tree = ast.parse((BENCHMARKS / name).read_text())
    called = {n.func.attr for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    assert not called & {"backward", "step", "zero_grad"}
    assert "torch" not in {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}


def test_every_script_is_in_the_table_and_every_named_one_is_there():
    said = (BENCHMARKS / "README.md").read_text()
    table = said.split("## Files whose script is gone")[0]
    for file in [*BENCHMARKS.glob("*.py"), *BENCHMARKS.glob("*.sh")]:
        family = re.sub(r"_.*", "_*.py", file.name)
        assert file.name in table or family in table or file.name == "verbs.py", f"{file.name} is not in README.md"
    for name in re.findall(r"`(\w+\.(?:py|sh))", table):
        assert (BENCHMARKS / name).exists(), name


def test_what_a_sanitizer_is_to_look_at_are_tests_of_a_gpu():
    """A word that names none leaves its kernels out without a sound."""
    found = re.findall(r'^SHARING2?="([^"]+)"', (BENCHMARKS / "kernels_lease.sh").read_text(), re.MULTILINE)
    assert len(found) == 2
    files = {file.stem: file.read_text() for file in (BENCHMARKS.parent / "tests").rglob("test_*.py")}
    own = {stem: text for stem, text in files.items() if "in_triton" in text or "mark.cuda" in text}
    for word in " or ".join(found).split(" or "):
        assert any(word in stem or re.search(rf"^def test_\w*{word}", text, re.M) for stem, text in own.items()), word


def test_a_verb_is_called_and_measured(tmp_path):
    out = tmp_path / "steps.json"
    words = ["epoch", "digits/sim-single", "--batches", "64", "--precision", "float32", "--epochs", "2", "--out", out]
    done = subprocess.run([sys.executable, BENCHMARKS / "speed.py", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert row["batch"] == 64
    steps = -(-1437 // 64)  # the digits' train and valid images
    assert row["ms"] == pytest.approx(1e3 * row["seconds_per_epoch"] / steps, rel=0.1)
    assert "speed.py epoch" in json.loads(out.read_text())["environment"]["command"]


def test_a_lease_is_of_one_machine_and_gives_back_what_there_is(tmp_path):
    def call(*words):
        own = os.environ | {"ROOT": str(tmp_path), "OUT": str(tmp_path / "out")}
        return subprocess.run(
            ["bash", BENCHMARKS / "lease_evidence.sh", *words], env=own, capture_output=True, text=True
        )

    for words in (["part"], ["data"], ["begin", "1", "9", "1", "nothing"], ["back", "0"]):
        done = call(*words)
        assert (done.returncode, "another machine" in done.stdout) == (3, True), words
    (tmp_path / "env.sh").write_text("")
    (tmp_path / "again2-out").mkdir()
    (tmp_path / "again2-out" / "again.json").write_text("{}")
    (tmp_path / "again3.log").write_text("three of four rows\n")
    done = call("back", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "--- again3\nthree of four rows\n"
    assert [f.name for f in (tmp_path / "out").iterdir()] == ["again2.json"]
    assert call("bcak").returncode == 2
