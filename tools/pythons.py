"""The fast tests on every other Python from 3.11 to 3.13 that can be had here: `make pythons`, in `make test-all`.

An interpreter that is not here is named and left out. PyTorch is asked for in its CPU build alone: the other one brings
gigabytes of CUDA. Where there is no such build for an interpreter, all files are at least compiled by it.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


def interpreter(version: str) -> str | None:
    """One on the path that starts, or one of pyenv's, whose names on the path may be empty shells."""
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for name in (shutil.which(f"python{version}"), *map(str, kept)):
        if name and subprocess.run([name, "--version"], capture_output=True, check=False).returncode == 0:
            return name
    return None


def torch_version() -> str:
    found = re.search(r"^torch==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found is not None, "constraints.txt names no torch"
    return found[1]


def compiled(name: str) -> str:
    """Whether this interpreter can read every file; FAILED where it cannot."""
    files = [file for room in ("src", "tests", "tools", "benchmarks") for file in (ROOT / room).rglob("*.py")]
    reads = "import sys, pathlib\nfor f in sys.stdin.read().split():\n compile(pathlib.Path(f).read_bytes(), f, 'exec')"
    told = "\n".join(map(str, files))
    done = subprocess.run([name, "-W", "error", "-c", reads], input=told, text=True, check=False)
    return f"{len(files)} files compile" if done.returncode == 0 else "FAILED to compile"


def tried(version: str, tests: list[str]) -> str:
    """What came of the tests on one Python."""
    name = interpreter(version)
    if name is None:
        return "not here"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([name, "-m", "venv", folder], check=True)
        python = Path(folder) / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        cpu = [
            *pip,
            "--retries",
            "0",
            "--timeout",
            "15",
            "--extra-index-url",
            CPU_BUILDS,
            f"torch=={torch_version()}+cpu",
        ]
        if subprocess.run(cpu, check=False, capture_output=True).returncode:
            return "no CPU build of PyTorch to be had; " + compiled(name)
        limited = ["-c", ROOT / "constraints.txt"]  # from the source: tests look at all weights of the zoo
        if subprocess.run([*pip, *limited, "-e", f"{ROOT}[test]"], check=False).returncode:
            return "koopsim[test] cannot be installed; " + compiled(name)
        command = [python, "-m", "pytest", "-m", "not slow", "-n", "2", *tests]
        done = subprocess.run(command, cwd=ROOT, check=False)
    return "passed" if done.returncode == 0 else "FAILED"


def main() -> int:
    here = "{}.{}".format(*sys.version_info[:2])
    found = {version: tried(version, sys.argv[1:]) for version in VERSIONS if version != here}
    print("\n".join(f"Python {version}: {what}" for version, what in found.items()))
    return int(any("FAILED" in what for what in found.values()))


if __name__ == "__main__":
    sys.exit(main())
