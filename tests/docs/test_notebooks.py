"""The notebooks run from top to bottom in an empty folder, within two minutes, and show pictures."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = {
    "quickstart", "from-deq-to-sim", "settle-oscillate-blow-up", "invariant-densities", "own-tables",
    "pictures-as-networks", "search-in-a-minute", "extending",
}  # fmt: skip


def test_all_of_them_are_there():
    assert {file.stem for file in NOTEBOOKS} == NAMES


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_it_is_kept_with_what_it_showed(file):
    cells = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert file.stat().st_size < 1_500_000


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
@pytest.mark.filterwarnings("ignore")  # those of Jupyter's own machinery
def test_it_runs(file):
    if importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None:
        pytest.skip("Jupyter is not installed: pip install 'koopsim[notebooks]'")
    spec = importlib.util.spec_from_file_location("notebooks_of_koopsim", ROOT / "tools" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    notebooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebooks)
    notebook, _ = notebooks.executed(file)  # its cells have ten times MOST_SECONDS on a loaded machine
    assert notebooks.pictures(notebook) >= 1
