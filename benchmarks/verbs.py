"""Calls a verb of koopsim as a user would and gives back the JSON it prints."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from koopsim.cli import main
from koopsim.errors import KoopsimError
from koopsim.runs import environment, write_json


def koopsim(*words: object, fresh: bool = False, python: str = "") -> dict[str, Any]:
    """`koopsim WORDS --json`, in this process or in a fresh one (of another environment's `python`)."""
    argv = [*map(str, words), "--json"]
    if fresh or python:
        command = [python or sys.executable, "-m", "koopsim", *argv]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=fresh_environment())
        return json.loads(done.stdout)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if code := main(argv):
            raise KoopsimError(f"koopsim {' '.join(argv)} ended with {code}.")
    return json.loads(said.getvalue())


def fresh_environment() -> dict[str, str]:
    """That of a process which keeps its bytecode, as what was installed has it: else each one compiles all modules."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def trained(*words: object, python: str = "") -> dict[str, Any]:
    """The result of `koopsim train WORDS`, whose folder is not kept."""
    with tempfile.TemporaryDirectory() as folder:
        return koopsim("train", *words, "--out", Path(folder) / "run", python=python)


def write(out: Path | None, figures: dict[str, Any]) -> None:
    """Into a file with where and when it was measured, if there is to be one."""
    print(json.dumps(figures, indent=2), flush=True)
    if out:
        write_json(out, figures | {"environment": environment()})
