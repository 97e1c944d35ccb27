"""Runs the notebooks again and writes them with what they showed: `make notebooks`.

`python tools/notebooks.py NAME ...` runs some of them. Each runs in an empty folder, so that it brings what it needs.
"""

import argparse
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
MOST_SECONDS = 120


def executed(file: Path) -> tuple[nbformat.NotebookNode, float]:
    """The notebook with its outputs, and how long it took."""
    notebook = nbformat.read(file, as_version=4)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"timeout": 10 * MOST_SECONDS, "kernel_name": "python3", "resources": {"metadata": {"path": folder}}}
        NotebookClient(notebook, **settings).execute()
    for cell in notebook.cells:  # what differs from run to run without meaning anything
        cell.metadata = {}
        for output in cell.get("outputs", []):
            output.pop("metadata", None) if output.output_type == "stream" else None
    return notebook, time.perf_counter() - began


def pictures(notebook: nbformat.NotebookNode) -> int:
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return sum("image/png" in output.get("data", {}) for output in outputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args().names or [file.stem for file in sorted(NOTEBOOKS.glob("*.ipynb"))]
    for name in asked:
        file = NOTEBOOKS / f"{name}.ipynb"
        notebook, seconds = executed(file)
        nbformat.write(notebook, file)
        print(f"{name}: {seconds:.0f} s, {pictures(notebook)} pictures", flush=True)


if __name__ == "__main__":
    main()
