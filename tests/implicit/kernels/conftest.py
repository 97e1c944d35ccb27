"""The emulator of tests/nn/kernels for CUDA's source, here too."""

import importlib.util
from pathlib import Path

HOME = Path(__file__).parents[2] / "nn" / "kernels" / "conftest.py"
spec = importlib.util.spec_from_file_location("emulator", HOME)
assert spec is not None
assert spec.loader is not None
emulator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(emulator)
emulated = emulator.emulated
