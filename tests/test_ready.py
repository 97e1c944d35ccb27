"""A run is ready in seconds: nothing of torch's compiler is imported unless it is used."""

import subprocess
import sys

import pytest

COMPILER = ("torch._dynamo", "torch._inductor", "sympy")
SCRIPT = """
import sys
from koopsim.cli import main
main(["train", {preset!r}, "--scale", "smoke", "--device", "cpu", "--recipe.epochs", "1", "--out", sys.argv[1]])
print([name for name in {compiler!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("preset", ["image/sim-rff", pytest.param("digits/sim-single", marks=pytest.mark.slow)])
def test_training_does_not_import_the_compiler(preset, tmp_path):
    script = SCRIPT.format(preset=preset, compiler=COMPILER)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.strip().splitlines()[-1] == "[]"
