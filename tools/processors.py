"""The fast tests by the kernels of other processors: BLAS, PyTorch and oneDNN have some for each that this one can run.

    python tools/processors.py                  what fails where, and 1 if anything does; four minutes each on two cores

A processor's kernels add in their own order, so a test that stands on a last digit passes on one and fails on the next:
a Zen 5 took Haswell's kernels, and eleven tests that had never failed did.
"""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from kept_numbers import ARITHMETICS  # noqa: E402


def main() -> None:
    failed = 0
    for arithmetic in ARITHMETICS:
        print(" ".join(f"{name}={value}" for name, value in arithmetic.items()), flush=True)
        command = [sys.executable, "-m", "pytest", "-m", "not slow", "-n", "2", "--tb=line", str(TESTS)]
        failed += bool(subprocess.run(command, env=os.environ | arithmetic | {"OMP_NUM_THREADS": "1"}).returncode)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
