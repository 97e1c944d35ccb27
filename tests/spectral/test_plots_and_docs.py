"""Pictures come out, colours are the paper's, and the how-to page runs."""

import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from scipy.linalg import block_diag

from koopsim.spectral import EDMD, Monomials, analyze
from koopsim.spectral.plots import groups

mpl.use("Agg")
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def _close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def test_groups_are_the_papers():
    c, s = np.cos(1.0), np.sin(1.0)
    verdict = analyze(block_diag(1, -1, [[c, -s], [s, c]], 0.5))
    kind = groups(verdict)
    for w, k in zip(verdict.eigenvalues, kind, strict=True):
        expected = "J1" if abs(w - 1) < 1e-9 else "J2" if abs(w + 1) < 1e-9 else "J3" if abs(w) > 0.9 else "inside"
        assert k == expected
    assert set(groups(analyze(np.diag([2.0, 0.1])))) == {"outside", "inside"}
    assert set(groups(analyze(np.array([[1.0, 1], [0, 1]])))) == {"outside"}
    assert set(groups(analyze(np.eye(2), noise=0.1))) == {"unclear"}


def test_verdict_plot(tmp_path):
    figure = analyze(np.diag([1.0, -1, 0.5])).plot()
    assert len(figure.axes) == 3
    figure.savefig(tmp_path / "verdict.png")
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    assert analyze(np.zeros((2, 2))).plot(ax) is ax.figure


def test_edmd_summary(tmp_path):
    A = np.array([[0.9, -0.2], [0.2, 0.9]])
    run = np.array([np.linalg.matrix_power(A, k) @ [1, 0.5] for k in range(30)])
    model = EDMD(Monomials(2)).fit([run, -0.5 * run])
    model.plot_summary(run).savefig(tmp_path / "summary.png")
    model.plot_summary().savefig(tmp_path / "bare.png")


@pytest.mark.parametrize("name", ["spectra-matrices.md", "spectra-data.md"])
def test_the_pages_run(name):
    page = DOCS / name
    found = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert found
    for block in found:
        exec(compile(block, str(page), "exec"), {})


def test_no_torch_and_no_matplotlib_on_import():
    import subprocess
    import sys

    code = "import sys, koopsim.spectral; print('torch' in sys.modules or 'matplotlib' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
