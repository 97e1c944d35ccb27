"""Every test marked cuda, in several processes at once, and what came of it as JSON. `make test-gpu`

    python tools/cuda_tests.py [--out FILE] [--processes N] [--sanitize memcheck|racecheck] [-k WORDS]

The file has the digest of all kernels' sources: tests/nn/kernels/test_cuda_record.py fails on any machine once a kernel
is no longer the one that was tested. With --sanitize the kernels' own tests run under compute-sanitizer.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from koopsim.nn.kernels.sources import digest
from koopsim.runs import environment, write_json

TESTS = Path("tests")
PLAIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other people's plugins may want packages that are not there
SECONDS = 280  # a process may take


def names(words: str | None) -> list[str]:
    """The marked tests, without looking into files that have none: those may want packages that are not here."""
    files = [f for f in sorted(TESTS.rglob("test_*.py")) if any(w in f.read_text() for w in ("in_triton", "mark.cuda"))]
    chosen = ["-k", words] if words else []
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "--collect-only", "-q", "-m", "cuda", *chosen, *files]
    done = subprocess.run(command, env=dict(os.environ) | PLAIN, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if "::" in line]
    if not found:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    return found


def run(share: list[str], prefix: list[str], folder: Path, number: int) -> tuple[dict[str, dict], str]:
    """({test: outcome, seconds}, the end of what a process that failed had to say)"""
    report = folder / f"{number}.xml"
    command = [*prefix, sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "--tb=short", "-p", "no:cacheprovider"]
    small = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", **PLAIN}
    try:
        done = subprocess.run(
            [*command, f"--junitxml={report}", *share],
            env=dict(os.environ) | small, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        text = done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        text = f"stopped after {SECONDS} s\n" + (late.stdout or b"").decode(errors="replace")[-3000:]
    found = {}
    for case in ET.parse(report).iter("testcase") if report.exists() else []:
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        found[name] = {"outcome": kinds[0] if kinds else "passed", "seconds": round(float(case.get("time", 0)), 1)}
    hidden = [name for name in share if name not in found]
    found |= {name: {"outcome": "error", "seconds": None} for name in hidden}  # a process that died
    bad = any(v["outcome"] in ("failure", "error") for v in found.values())
    warned = "ERROR SUMMARY" in text and "ERROR SUMMARY: 0" not in text
    return found, text[-6000:] if bad or warned else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/h200/cuda-tests.json"))
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--sanitize", choices=["memcheck", "racecheck"])
    parser.add_argument("-k", dest="words")
    arguments = parser.parse_args()
    found = names(arguments.words)
    shares = [found[i :: arguments.processes] for i in range(arguments.processes) if found[i :: arguments.processes]]
    tool = ["compute-sanitizer", "--tool", arguments.sanitize, "--target-processes", "all", "--error-exitcode", "9"]
    prefix = tool if arguments.sanitize else []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(shares)) as pool:
        parts = list(pool.map(lambda i: run(shares[i], prefix, Path(folder), i), range(len(shares))))
    outcomes = {name: value for part, _ in parts for name, value in part.items()}
    counts: dict[str, int] = {}
    for value in outcomes.values():
        counts[value["outcome"]] = counts.get(value["outcome"], 0) + 1
    for _, text in parts:
        if text:
            print(text, "\n" + "=" * 100)
    print(counts, f"{time.perf_counter() - began:.0f} s", flush=True)
    result = {"kernels": digest(), "sanitizer": arguments.sanitize, "counts": counts, "tests": outcomes}
    write_json(arguments.out, result | {"seconds": round(time.perf_counter() - began), "environment": environment()})
    sys.exit(bool(set(counts) - {"passed", "skipped"}))


if __name__ == "__main__":
    main()
