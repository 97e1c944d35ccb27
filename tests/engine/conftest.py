import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # small_search.py


@pytest.fixture(autouse=True)
def _one_thread():
    """Models this small are slower on two."""
    torch.set_num_threads(1)
