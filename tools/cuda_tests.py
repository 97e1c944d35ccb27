"""Every test marked cuda, in several processes at once, and what came of it as JSON. `make test-gpu`

    python tools/cuda_tests.py [--out FILE] [--processes N] [--sanitize memcheck|racecheck] [-k WORDS]

The file has the digest of all kernels' sources: tests/nn/kernels/test_cuda_record.py fails on any machine once a kernel
is no longer the one that was tested. With --sanitize the tests run under compute-sanitizer, where there is one.
Processes take tests one by one (`claiming.py`), so that none waits for another; torch.compile's caches are shared.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from koopsim.nn.kernels.sources import digest
from koopsim.runs import environment, write_json

HERE, TESTS, RECORD = Path(__file__).parent, Path("tests"), Path("results/h200/cuda-tests.json")
# Other people's plugins may want packages that are not there; one thread each, for there are as many processes.
PLAIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
# Of the time: no test is begun after that, so that processes end by themselves, and a sanitizer's can sum up.
BEGUN, UNDER_SANITIZER = 0.95, 0.85  # by then the longest are over
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")  # a sanitizer's last word
PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/cuda/bin")


def sanitizer() -> str | None:
    """compute-sanitizer's place: on the path, in CUDA's usual folders, or in a package of pip's."""
    more = [str(f) for f in Path("/usr/local").glob("cuda*/bin")]
    more += [str(f.parent) for f in Path(sys.prefix).glob("lib/python*/site-packages/nvidia/**/compute-sanitizer")]
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=":".join([*PLACES, *more]))


def work(command: list[str], folder: Path, until: float, begun: float = BEGUN) -> str:
    """Processes one after the other until no test is left or time is over; the end of what bad ones had to say."""
    said, paths = "", f"{HERE}:{os.environ.get('PYTHONPATH', '')}"
    last = time.time() + (until - time.monotonic()) * begun
    own = {**os.environ, **PLAIN, "PYTHONPATH": paths, "KOOPSIM_CLAIMS": str(folder), "KOOPSIM_CLAIMS_UNTIL": str(last)}
    for _ in range(5):
        try:
            left = until - time.monotonic()
            done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            return said + "\nstopped: time is over"
        if done.returncode not in (0, 5):
            said += (done.stdout + done.stderr)[-3000:]
        listed = folder / "tests.json"
        if not listed.exists() or (folder / "next").stat().st_size >= len(json.loads(listed.read_text())):
            break
    return said


def outcomes(folder: Path) -> dict[str, dict]:
    """{test: outcome, seconds, and of one that did not pass why}; whose process died, or nobody took, was not run.

    So it is with one that was set up and then stopped: what counts as passed has come to its end.
    """
    found: dict[str, dict] = {}
    for file in folder.glob("*.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            test = found.setdefault(line["test"], {"outcome": "not run", "seconds": 0.0})
            test["seconds"] = round(test["seconds"] + line["seconds"], 1)
            if line["outcome"] != "passed":
                test |= {"outcome": line["outcome"]} | ({"text": line["text"]} if line["text"] else {})
            elif line["part"] == "call" and test["outcome"] == "not run":
                test["outcome"] = "passed"
    listed = json.loads((folder / "tests.json").read_text()) if (folder / "tests.json").exists() else []
    return found | {name: {"outcome": "not run", "seconds": None} for name in listed if name not in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--sanitize", choices=["memcheck", "racecheck"])
    parser.add_argument("--seconds", type=float, default=236, help="at most; what is not run by then is recorded so")
    parser.add_argument("-k", dest="words")
    arguments = parser.parse_args()
    tool = sanitizer() if arguments.sanitize else None
    about = {"kernels": digest(), "sanitizer": arguments.sanitize, "environment": environment()}
    if arguments.sanitize and tool is None:
        write_json(arguments.out, about | {"counts": {}, "note": "compute-sanitizer is not on this machine"})
        raise SystemExit("compute-sanitizer is not on this machine: nothing was run.")
    files = [f for f in sorted(TESTS.rglob("test_*.py")) if any(w in f.read_text() for w in ("in_triton", "mark.cuda"))]
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-p", "claiming", "-m", "cuda", *(["-k", arguments.words] if arguments.words else []), *map(str, files)]
    if tool:
        command = [tool, "--tool", arguments.sanitize, "--target-processes", "all", "--log-file", "{said}", *command]
    known = json.loads(RECORD.read_text())["tests"] if RECORD.exists() else {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(arguments.processes) as pool:
        folder = Path(place)
        (folder / "known.json").write_text(json.dumps({k: v["seconds"] for k, v in known.items() if v["seconds"]}))
        command = [word.format(said=folder / "%p.said") if word == "{said}" else word for word in command]
        until = began + arguments.seconds
        begun = UNDER_SANITIZER if tool else BEGUN
        said = list(pool.map(lambda _: work(command, folder, until, begun), range(arguments.processes)))
        tests, heard = outcomes(folder), [file.read_text() for file in sorted(folder.glob("*.said"))]
    counts: dict[str, int] = {}
    for test in tests.values():
        counts[test["outcome"]] = counts.get(test["outcome"], 0) + 1
    for text in said:
        print(text, end="\n" + "=" * 100 + "\n" if text else "")
    faulty = [text for text in heard if any(int(n) for n in SUMMARY.findall(text))]
    faults, unheard = len(faulty), sum(not SUMMARY.search(text) for text in heard)  # stopped before they could say
    seconds = round(time.monotonic() - began)
    print(counts, f"{seconds} s", *([f"{faults} processes with faults, {unheard} unheard"] if tool else []), flush=True)
    own = {"faults": faults, "unheard": unheard, "tool": tool, "found": [t[:3000] for t in faulty]} if tool else {}
    write_json(arguments.out, about | own | {"counts": counts, "tests": tests, "seconds": seconds})
    silent = bool(tool) and not heard
    sys.exit(bool(set(counts) - {"passed", "skipped", "xfailed"}) or bool(faults + unheard) or silent or not counts)


if __name__ == "__main__":
    main()
