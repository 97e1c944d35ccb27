"""Builds what is published and tries it as a stranger would: `make release`.

    dist/koopsim-*.whl, koopsim-*.tar.gz, koopsim_zoo-*.whl      built
    an empty environment                                         the wheel with its dependencies; the README's examples
    the unpacked sdist                                           its own tests

What it found goes into results/release.json.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from pathlib import Path

from koopsim.runs import environment, write_json

ROOT = Path(__file__).resolve().parent.parent
LARGEST_WHEEL = 3_000_000  # bytes


def run(*command: object, where: Path = ROOT, **variables: str) -> str:
    """The output of a command; it must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=where, env=os.environ | variables, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed in {where}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def build(out: Path, isolated: bool = True) -> dict[str, Path]:
    """The wheel, the sdist and the zoo's wheel."""
    build_it = [sys.executable, "-m", "build", *([] if isolated else ["--no-isolation"]), "--outdir", out]
    run(*build_it, ROOT)
    run(*build_it, "--wheel", ROOT / "packages" / "zoo")
    patterns = {"wheel": "koopsim-*.whl", "zoo": "koopsim_zoo-*.whl", "sdist": "koopsim-*.tar.gz"}
    return {name: max(out.glob(pattern), key=lambda file: file.stat().st_mtime) for name, pattern in patterns.items()}


def empty_environment(folder: Path) -> Path:
    """The Python of a new environment that has nothing but pip."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def readme_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def readme_runs(python: Path, where: Path) -> float:
    """Seconds that the README's Python took, one block after the other as a reader would."""
    began = time.perf_counter()
    for block in readme_blocks():
        run(python, "-W", "error::DeprecationWarning:koopsim", "-c", block, where=where)
    return time.perf_counter() - began


def own_data(python: Path, where: Path) -> float:
    """Seconds from a table of one's own to a report, by the README's two commands."""
    rows = "\n".join(f"{i % 7},{i % 11},{3 * (i % 7) - i % 11}" for i in range(200))
    (where / "table.csv").write_text(f"a,b,price\n{rows}\n")
    began = time.perf_counter()
    run(python, "-m", "koopsim", "train", "--data", "table.csv", "--target", "price", "--out", "runs/mine", where=where)
    run(python, "-m", "koopsim", "report", "runs", "--out", "report", where=where)
    return time.perf_counter() - began


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (inner,) = folder.iterdir()
    return inner


def sdist_tests(sdist: Path, folder: Path, *tests: str) -> str:
    """The last line of pytest over the tests of an unpacked sdist, of its own source."""
    inner = unpacked(sdist, folder)
    command = (sys.executable, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", *tests)
    said = run(*command, where=inner, PYTHONPATH=str(inner / "src"), OMP_NUM_THREADS="1")
    return said.strip().splitlines()[-1]


def site_of_a_clone(folder: Path) -> float:
    """Seconds of `make docs` in a fresh clone, its packages included."""
    run("git", "clone", "--quiet", ROOT, folder)
    began = time.perf_counter()
    run("make", "docs", where=folder)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    everything = ["-n", "2", "--only-gpu-skips"]
    parser.add_argument("--tests", nargs="*", default=everything, help="what to run of the sdist's tests; all of them")
    asked = parser.parse_args()
    found: dict = {"environment": environment()}
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        began = time.perf_counter()
        files = build(asked.out)
        found["build_seconds"] = time.perf_counter() - began
        found["bytes"] = {file.name: file.stat().st_size for file in files.values()}
        assert files["wheel"].stat().st_size < LARGEST_WHEEL, found["bytes"]
        began = time.perf_counter()
        python = empty_environment(scratch / "empty")
        pins = ["-c", ROOT / "constraints.txt"]
        run(python, "-m", "pip", "install", "--quiet", *pins, "torch", where=scratch)
        run(python, "-m", "pip", "install", "--quiet", *pins, files["wheel"], where=scratch)
        found["install_seconds"] = time.perf_counter() - began
        found["installed"] = run(python, "-m", "koopsim", "--version", where=scratch).strip()
        found["own_data_seconds"] = own_data(python, scratch)
        found["readme_seconds"] = readme_runs(python, scratch)
        found["make_docs_seconds"] = site_of_a_clone(scratch / "clone")
        (scratch / "sdist").mkdir()
        began = time.perf_counter()
        found["sdist_tests"] = sdist_tests(files["sdist"], scratch / "sdist", *asked.tests)
        found["sdist_tests_asked"] = asked.tests
        found["sdist_tests_seconds"] = time.perf_counter() - began
    write_json(ROOT / "results" / "release.json", found)
    print({key: value for key, value in found.items() if key != "environment"})


if __name__ == "__main__":
    main()
