"""Which kernels these are: a digest of all files that hold one, so that a record of their tests can be told stale.

Besides the kernels' rooms these are files of their neighbours that lay tensors out for them or launch them in turn.
"""

import hashlib
from pathlib import Path

HOME = Path(__file__).parents[2]
ROOMS = ("nn/kernels", "implicit/kernels")
KINDS = (".py", ".cu", ".cuh", ".h", ".hpp")
BESIDE = ("nn/direct.py", "nn/flat.py", "nn/padding.py", "nn/transforms.py")


def files() -> list[Path]:
    """Every source file of the kernels' rooms, and those beside them."""
    found = (file for room in ROOMS for file in (HOME / room).rglob("*") if file.suffix in KINDS)
    return sorted([*found, *(HOME / name for name in BESIDE)])


def digest() -> dict[str, str]:
    """{file: digest}"""
    return {p.relative_to(HOME).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in files()}
