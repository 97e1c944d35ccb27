import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tiny.py, mirror.py


@pytest.fixture(autouse=True)
def _no_npm_and_no_cache(monkeypatch, tmp_path_factory):
    """No test asks the real registry, nor looks into the real data folder."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("KOOPSIM_DATA", str(tmp_path_factory.mktemp("nothing")))
