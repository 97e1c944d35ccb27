"""Figure 2: the index sets J1, J2, J3 on the unit circle, and what the dynamics do.      paper, section 3.2"""

from pathlib import Path

import numpy as np

from koopsim.files.writing import write_png_and_svg

ROTATION = 2 * np.pi * 0.15


def examples() -> dict[str, np.ndarray]:
    """One matrix for each of the four cases, under a similarity, so that no entry gives it away."""
    from scipy.linalg import block_diag

    c, s = np.cos(ROTATION), np.sin(ROTATION)
    turn = np.array([[c, -s], [s, c]])
    inside = np.diag([0.9, 0.55, -0.4, 0.2])
    blocks = {
        "(i) origin": [np.array([[0.8, -0.3], [0.3, 0.8]]), inside],
        "(ii) fixed point": [np.eye(2), inside],
        "(iii) invariant set": [np.eye(1), -np.eye(1), turn, inside],
        "(iv) divergence": [np.array([[1.0, 1.0], [0.0, 1.0]]), 1.05 * turn, inside],
    }
    rng, found = np.random.default_rng(0), {}
    for name, parts in blocks.items():
        A = np.asarray(block_diag(*parts))
        Q = rng.standard_normal(A.shape) + 2 * np.eye(len(A))
        found[name] = Q @ A @ np.linalg.inv(Q)
    return found


def figure2(folder: Path) -> list[Path]:
    """The spectra of the four cases, coloured as in the paper, with the verdict on each, as PNG and SVG."""
    from matplotlib.figure import Figure

    from koopsim.spectral import analyze

    figure = Figure(figsize=(17, 5), layout="constrained")
    for axis, (name, A) in zip(figure.subplots(1, 4), examples().items(), strict=True):
        verdict = analyze(A)
        verdict.plot(axis)
        axis.set_title(f"{name}\nverdict: {verdict.case}")
    return write_png_and_svg(folder, "figure2", figure, dpi=130)
