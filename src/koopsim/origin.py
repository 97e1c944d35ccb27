"""Which koopsim this is: the commit that the version in `koopsim/__init__.py` was built from.

A clone asks git; a wheel or an sdist carries the answer in commit.txt, which hatch_build.py puts there.
"""

import os
import subprocess
from pathlib import Path

FILE = Path(__file__).with_name("commit.txt")


def commit() -> str | None:
    """The commit of this source; KOOPSIM_COMMIT where a tree travelled without its history; None: nobody knows."""
    if "KOOPSIM_COMMIT" in os.environ:
        return os.environ["KOOPSIM_COMMIT"]
    here = FILE.resolve().parent
    if not (here.parent.parent / ".git").exists():
        return FILE.read_text(encoding="utf-8").strip() if FILE.exists() else None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    except OSError:  # a clone on a machine without git
        return None
    return done.stdout.strip() or None
