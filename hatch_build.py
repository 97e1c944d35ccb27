"""Puts the commit into what is built, so that `koopsim --version` and every run's env.json can say it without git."""

import importlib.util
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict) -> None:
        root = Path(self.root)
        inside = root / "src" / "koopsim"
        if version == "editable" or (inside / "commit.txt").exists():  # an unpacked sdist brings its own
            return
        spec = importlib.util.spec_from_file_location("origin", inside / "origin.py")
        assert spec is not None
        assert spec.loader is not None
        origin = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(origin)
        commit = origin.commit()
        if commit is None:
            return
        file = Path(tempfile.mkdtemp()) / "commit.txt"
        file.write_text(f"{commit}\n")
        target = "koopsim/commit.txt" if self.target_name == "wheel" else "src/koopsim/commit.txt"
        build_data["force_include"][str(file)] = target
