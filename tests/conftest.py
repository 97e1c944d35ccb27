"""What tests of several folders share."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch


@pytest.fixture
def in_triton() -> Callable[[str], None]:
    """Runs a script whose kernels are Triton's: on CUDA, or in Triton's interpreter where there is none.

    In a process of its own, for the interpreter must be chosen before Triton is imported.
    """
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    environment = dict(os.environ) | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})

    def run(script: str) -> None:
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What goes through Triton's interpreter here runs as it is on CUDA: `-m cuda` means these too."""
    for item in items:
        if "in_triton" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cuda)
