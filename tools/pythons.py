"""The fast tests on every other Python from 3.11 to 3.13 that can be had here: `make pythons`, in `make test-all`.

An interpreter that is not on the path, or on which PyTorch cannot be installed, is named and left out.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13")


def interpreter(version: str) -> str | None:
    """One on the path that starts, or one of pyenv's, whose names on the path may be empty shells."""
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for name in (shutil.which(f"python{version}"), *map(str, kept)):
        if name and subprocess.run([name, "--version"], capture_output=True, check=False).returncode == 0:
            return name
    return None


def tried(version: str, tests: list[str]) -> str:
    """What came of the tests on one Python."""
    name = interpreter(version)
    if name is None:
        return "not here"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([name, "-m", "venv", folder], check=True)
        python = Path(folder) / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
        for what in (["torch"], ["-e", f"{ROOT}[test]"]):  # from the source: tests look at all weights of the zoo
            if subprocess.run([*pip, *what], check=False).returncode:
                return f"{what[-1]} cannot be installed"
        command = [python, "-m", "pytest", "-m", "not slow", "-n", "2", *tests]
        done = subprocess.run(command, cwd=ROOT, check=False)
    return "passed" if done.returncode == 0 else "FAILED"


def main() -> int:
    here = "{}.{}".format(*sys.version_info[:2])
    found = {version: tried(version, sys.argv[1:]) for version in VERSIONS if version != here}
    print("\n".join(f"Python {version}: {what}" for version, what in found.items()))
    return int("FAILED" in found.values())


if __name__ == "__main__":
    sys.exit(main())
