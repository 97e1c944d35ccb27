"""The suite's own two options: --shuffle gives another order for each seed, --only-gpu-skips lets nothing else skip."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import pytest, sys
class Order:
    def __init__(self): self.ran = []
    def pytest_runtest_logreport(self, report):
        if report.when == "call": self.ran.append(report.nodeid.split("::")[1])
def run(*arguments):
    order = Order()
    status = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments], plugins=[order])
    for name in [n for n in sys.modules if n.startswith("test_")]: del sys.modules[name]
    return int(status), order.ran
ways = [], ["--shuffle", "1"], ["--shuffle", "1"], ["--shuffle", "2"]
plain, first, again, other = (run("test_order.py", *way) for way in ways)
assert plain[1] == [f"test_{i}" for i in range(9)], plain
assert first == again and first[1] != plain[1] and other[1] != first[1] and sorted(other[1]) == sorted(plain[1])
assert run("test_gpu.py", "--only-gpu-skips")[0] == 0
assert run("test_package.py")[0] == 0
assert run("test_package.py", "--only-gpu-skips")[0] == 1
"""


@pytest.mark.slow
def test_the_options(tmp_path):
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "test_order.py").write_text("\n".join(f"def test_{i}(): pass" for i in range(9)))
    body = 'import pytest\ndef test_one(): pass\n@pytest.mark.skipif(True, reason="{}")\ndef test_two(): pass\n'
    (tmp_path / "test_gpu.py").write_text(body.format("needs a CUDA device"))
    (tmp_path / "test_package.py").write_text(body.format("onnx is not installed"))
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "test_package.py::test_two: onnx is not installed" in done.stdout
