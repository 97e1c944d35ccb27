"""Which kernels these are: a digest of all files that hold one, so that a record of their tests can be told stale."""

import hashlib
from pathlib import Path

ROOMS = ("nn/kernels", "implicit/kernels")


def files() -> list[Path]:
    """Every source file of the kernels' rooms."""
    home = Path(__file__).parents[2]
    return sorted(p for room in ROOMS for p in (home / room).iterdir() if p.suffix in (".py", ".cu"))


def digest() -> dict[str, str]:
    """{file: digest}"""
    home = Path(__file__).parents[2]
    return {p.relative_to(home).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in files()}
