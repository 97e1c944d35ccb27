"""The record of the tests on a GPU is of these kernels: CI has none, so a kernel that changed since is noticed here."""

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from koopsim.nn.kernels import sources

TOOLS = Path(__file__).parents[3] / "tools"
RECORD = Path(__file__).parents[3] / "results" / "h200" / "cuda-tests.json"
KNOWN = {  # what failed in the record, and why it stands: anything else has to be mended before it is recorded
    **dict.fromkeys(
        (
            "tests/implicit/kernels/test_cell_kernels.py::test_on_cuda_a_training_step_is_the_twins[anderson-True]",
            "tests/implicit/kernels/test_cell_kernels.py::test_on_cuda_a_training_step_is_the_twins[anderson-False]",
        ),
        "compared two solves that had not converged: of ten inputs of that untrained cell Anderson's method leaves "
        "five so, on a CPU too, and float32 and float64 then differ as much. It has inputs now for which all converge",
    ),
    "tests/nn/test_compile_cuda.py::test_models_that_solve[cifar10/mondeq-multi-train]":
        "new, and the first time on a GPU: what torch 2.11's compiler makes of the multi-tier model's gradient expects "
        "another stride than it is given. On a CPU, torch 2.13, it trains to the same loss",
}  # fmt: skip
# Tests that no process came to: the machine had five for them beside ten trainings. Compiled in the default mode the
# kernels that had changed were tried; in the others, in eval mode, they were not.
NOT_BEGUN = "tests/nn/test_compile_cuda.py::"
# What changed since the record, each by what it is now, and why it may wait for the next one: nothing else may.
SINCE = {
    "nn/kernels/pixels.py": ("ab4ae2f7a3e3ce9e", "new; off unless KOOPSIM_PIXELS=1 (test_who_goes_this_way)"),
    "nn/kernels/tcn_cluster.py": ("eed4010e67bbfd6f", "asks for an H200's shared memory; no kernel changed"),
    "nn/kernels/operators.py": (
        "ead4b8f00de94619",
        "makes the device of its first tensor the current one; where there is one device nothing changes",
    ),
    "nn/kernels/cuda.py": (
        "026f6e496e9c859a",
        "the same when it loads a module; refuses a CPU's tensors; a file of the cache for each thread",
    ),
    "nn/kernels/answer.py": ("f7caf2fcdaa8a9c7", "KOOPSIM_CLUSTERS=0 is asked before; no kernel changed"),
    "nn/kernels/bias_relu.py": ("7d55bfa62c6a05f3", "refuses biases of another width; no kernel changed"),
    "nn/kernels/norm.py": ("ec0a9444338355ea", "refuses to pool odd sides; no kernel changed"),
    "nn/kernels/sources.py": ("ad32cf17eb25b716", "knows more files; no kernel"),
    "implicit/kernels/attention.py": (
        "e5be8a555b7e5e6d",
        "copies who is left out where it has gaps; no kernel changed",
    ),
    "implicit/kernels/ledger.py": ("74573f42bd4a3582", "refuses books with gaps; no kernel changed"),
    "nn/direct.py": ("00b7d64c60d84568", "not looked at when the record was made; as it was then"),
    "nn/flat.py": ("c7bbb46f771db2d4", "the same"),
    "nn/padding.py": ("638044f291ae510a", "not looked at then; `countable` is new"),
    "nn/transforms.py": ("966684f9982b9dde", "not looked at then; `has_room` is new, `on_cpu` is no kernel's"),
}


def stale(recorded: dict[str, str]) -> list[str]:
    """The kernels' files that are not the ones that were tested, nor one of SINCE that is still what is said there."""
    now, known = sources.digest(), {name: digest for name, (digest, _) in SINCE.items()}
    other = {name for name in now.keys() | recorded.keys() if now.get(name) != recorded.get(name)}
    return sorted(name for name in other | known.keys() if name not in other or now.get(name) != known.get(name))


def check(record: dict[str, Any]) -> None:
    """What a record must be; those of before `xfailed` was kept apart have it among the skipped, without a reason."""
    assert record["counts"].get("passed", 0) > 100
    assert not set(record["counts"]) - {"passed", "skipped", "xfailed", "failed", "not run"}
    found = record["tests"]
    assert all(name.startswith(NOT_BEGUN) for name, test in found.items() if test["outcome"] == "not run")
    assert {name for name, test in found.items() if test["outcome"] == "failed"} <= KNOWN.keys()
    assert all(test.get("text") for test in found.values() if test["outcome"] == "xfailed"), "for what reason?"


@pytest.mark.skipif(not RECORD.exists(), reason="no record yet: make test-gpu on a machine with a GPU")
def test_the_kernels_are_those_that_were_tested_on_a_gpu():
    record = json.loads(RECORD.read_text())
    assert not stale(record["kernels"]), "kernels changed since they ran on a GPU: make test-gpu, and commit its record"
    check(record)


def test_records_of_now_and_of_before_are_read():
    before = {"counts": {"passed": 200, "skipped": 1}, "tests": {"a": {"outcome": "skipped", "seconds": 1.0}}}
    check(before)
    now = {"counts": {"passed": 200, "xfailed": 1}, "tests": {"a": {"outcome": "xfailed", "seconds": 1.0}}}
    with pytest.raises(AssertionError, match="for what reason"):
        check(now)
    now["tests"]["a"]["text"] = "torch compiles its own layers wrongly"
    check(now)
    for outcome in ("failed", "not run"):
        now["tests"]["b"] = {"outcome": outcome, "seconds": 1.0}
        with pytest.raises(AssertionError):
            check(now)


TESTS = """
import pytest

def test_right(): pass
def test_left_out(): pytest.skip("no such chip")
def test_known(): pytest.xfail("the compiler is wrong: a CUDA error")
@pytest.mark.xfail(reason="by mark")
def test_marked(): assert False
def test_wrong(): assert False, "a bad number"
"""


def test_what_is_expected_to_fail_is_kept_apart_with_its_reason(tmp_path, monkeypatch):
    """The plugin in a process of its own, as tools/cuda_tests.py runs it."""
    monkeypatch.syspath_prepend(str(TOOLS))
    outcomes = importlib.import_module("cuda_tests").outcomes
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "known.json").write_text("{}")
    own = {**os.environ, "KOOPSIM_CLAIMS": str(tmp_path), "PYTHONPATH": str(TOOLS)}
    own["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "claiming", "test_some.py"]
    done = subprocess.run(command, env=own, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found = {name.split("::")[1]: (test["outcome"], test.get("text")) for name, test in outcomes(tmp_path).items()}
    assert found["test_right"] == ("passed", None)
    begun = {"test": "test_some.py::test_begun", "part": "setup", "outcome": "passed", "seconds": 0.0, "text": ""}
    (tmp_path / "0.jsonl").write_text(json.dumps(begun) + "\n")
    assert outcomes(tmp_path)["test_some.py::test_begun"]["outcome"] == "not run", "it was set up, and stopped"
    assert found["test_left_out"] == ("skipped", "Skipped: no such chip")
    assert found["test_known"] == ("xfailed", "the compiler is wrong: a CUDA error")
    assert found["test_marked"] == ("xfailed", "by mark")
    assert found["test_wrong"][0] == "failed"
    assert "a bad number" in found["test_wrong"][1]


def test_a_sanitizers_last_word_is_understood(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    summary = importlib.import_module("cuda_tests").SUMMARY
    said = "========= ERROR SUMMARY: 0 errors\n========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"
    assert summary.findall(said) == ["0", "2"]
    assert not summary.findall("12 passed in 3 s")


def test_no_test_is_begun_when_time_is_over(tmp_path):
    (tmp_path / "test_some.py").write_text("def test_right(): pass\n")
    (tmp_path / "known.json").write_text("{}")
    own = {**os.environ, "KOOPSIM_CLAIMS": str(tmp_path), "PYTHONPATH": str(TOOLS), "KOOPSIM_CLAIMS_UNTIL": "1.0"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "claiming", "test_some.py"]
    done = subprocess.run(command, env=own, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert not list(tmp_path.glob("*.jsonl")), done.stdout + done.stderr


FAULTY = """
def test_faulty(): raise RuntimeError("CUDA error: an illegal memory access was encountered")
def test_long(): pass
def test_short(): pass
"""


def test_who_has_a_spoilt_context_ends_and_another_goes_on(tmp_path, monkeypatch):
    """No test is lost in between, and the longest come first."""
    monkeypatch.syspath_prepend(str(TOOLS))
    tool = importlib.import_module("cuda_tests")
    (tmp_path / "test_some.py").write_text(FAULTY)
    seconds = {"faulty": 9.0, "short": 1.0, "long": 7.0}
    (tmp_path / "known.json").write_text(json.dumps({f"test_some.py::test_{k}": v for k, v in seconds.items()}))
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "claiming", "test_some.py"]
    said = tool.work(command, tmp_path, time.monotonic() + 60)
    assert "illegal memory access" in said
    assert [name.split("_")[-1] for name in json.loads((tmp_path / "tests.json").read_text())] == [
        "faulty", "long", "short"]  # fmt: skip
    found = {name.split("_")[-1]: test["outcome"] for name, test in tool.outcomes(tmp_path).items()}
    assert found == {"faulty": "failed", "long": "passed", "short": "passed"}
    assert len(list(tmp_path.glob("*.jsonl"))) == 2, "one goes on in a spoilt context"


def test_tests_are_begun_for_a_part_of_the_time(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    tool = importlib.import_module("cuda_tests")
    tell = "import os; print(os.environ['KOOPSIM_CLAIMS_UNTIL']); raise SystemExit(3)"
    for share, seconds in (((), 95), ((tool.UNDER_SANITIZER,), 85)):
        began = time.time()
        last = float(tool.work([sys.executable, "-c", tell], tmp_path, time.monotonic() + 100, *share))
        assert last - began == pytest.approx(seconds, abs=2)


SANITIZER = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do
  [ "$1" != --log-file ] || log=$(echo "$2" | sed "s/%p/$$/")
  shift 2
done
echo "========= COMPUTE-SANITIZER" > "$log"
"$@"
[ -z "$FOUND" ] || echo "========= ERROR SUMMARY: $FOUND errors" >> "$log"
"""
ENDING = "import os, pytest\n@pytest.mark.cuda\ndef test_one():\n    {}\n"


@pytest.mark.parametrize(
    ("body", "found", "outcome", "told"),
    [
        ("pass", "0", "passed", (0, 0)),
        ("pass", "2", "passed", (1, 0)),
        ("pass", "", "passed", (0, 1)),  # it was stopped before it could say
        ("os._exit(0)", "0", "not run", (0, 0)),  # the process died in it
    ],
)
def test_what_makes_a_record_good(body, found, outcome, told, tmp_path, monkeypatch):
    """`main` under a sanitizer that says what it is told: everything passed, no fault, and every process was heard."""
    monkeypatch.syspath_prepend(str(TOOLS))
    tool = importlib.import_module("cuda_tests")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_gpu.py").write_text(ENDING.format(body))
    (tmp_path / "compute-sanitizer").write_text(SANITIZER)
    (tmp_path / "compute-sanitizer").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FOUND", found)
    monkeypatch.setattr(sys, "argv", "cuda_tests.py --sanitize memcheck --processes 1 --out record.json".split())
    with pytest.raises(SystemExit) as end:
        tool.main()
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["counts"], (record["faults"], record["unheard"])) == ({outcome: 1}, told)
    assert bool(end.value.code) is not (outcome == "passed" and told == (0, 0))
    assert [text.count("SUMMARY: 2") for text in record["found"]] == [1] * told[0]


def test_a_changed_kernel_is_noticed(monkeypatch):
    now = sources.digest()
    assert {"nn/kernels/tcn.cu", "implicit/kernels/inverse.py"} <= now.keys()
    before = now | dict.fromkeys(SINCE, "another")
    assert stale(before) == []
    assert stale(before | {"nn/kernels/tcn.cu": "another"}) == ["nn/kernels/tcn.cu"]
    assert stale({k: v for k, v in before.items() if not k.endswith("norm.py")}) != []
    assert stale(now) == sorted(SINCE), "what has been tested since waits for nothing"
    for name, (digest, why) in SINCE.items():
        monkeypatch.setitem(SINCE, name, ("what it was when it was said", why))
        assert stale(before) == [name], "it changed again"
        monkeypatch.setitem(SINCE, name, (digest, why))
