"""What a classifier gets wrong: its confusion matrix and its worst mistakes, as pictures.

confusion[i, j] = how many images of class i were called j
worst           = wrong images by how sure the model was of the wrong answer
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from koopsim.files.writing import figure_text, write_figure

SHOWN = 24  # mistakes on the picture
LARGEST = 60  # classes whose shares are written into the matrix, which grows no larger


def confusion_matrix(labels: np.ndarray, named: np.ndarray, classes: int) -> np.ndarray:
    """(classes, classes) counts: true class down, named class across."""
    return np.bincount(labels * classes + named, minlength=classes * classes).reshape(classes, classes)


def worst_mistakes(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the wrong images, the surest of a wrong class first, and the probability given to it."""
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = shifted / shifted.sum(1, keepdims=True)
    wrong = np.flatnonzero(logits.argmax(1) != labels)
    sure = probabilities[wrong].max(1)
    order = np.argsort(-sure, kind="stable")[:SHOWN]
    return wrong[order], sure[order]


def draw_confusion(confusion: np.ndarray, classes: Sequence[str], title: str, file: Path) -> None:
    """The matrix in shares of each true class, the diagonal left pale so that mistakes stand out."""
    from matplotlib.figure import Figure

    n, classes = len(classes), [figure_text(name, 24) for name in classes]
    share = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    mistakes = share * (1 - np.eye(n))
    side = min(n, LARGEST)
    width = 1.8 + 0.55 * side
    figure = Figure(figsize=(width, 1.6 + 0.5 * side + 0.16 * (_lines(title, width) - 1)), layout="constrained")
    axis = figure.add_subplot()
    axis.imshow(mistakes, cmap="Reds", vmin=0, vmax=max(mistakes.max(), 1e-9))
    for i in range(n):
        for j in range(n):
            if confusion[i, j] and n <= LARGEST:
                dark = mistakes[i, j] > 0.6 * mistakes.max() and i != j
                style = {"fontsize": 8, "color": "white" if dark else "black", "weight": "bold" if i == j else "normal"}
                axis.text(j, i, f"{100 * share[i, j]:.1f}", ha="center", va="center", **style)
    axis.set_xticks(range(n), classes, rotation=45, ha="right")
    axis.set_yticks(range(n), classes)
    axis.set_xlabel("named")
    axis.set_ylabel("true")
    figure.suptitle(f"{_wrapped(title, width)}\n% of each class", fontsize=10)  # of the figure: wider than the matrix
    write_figure(file, figure)


def _wrapped(title: str, inches: float) -> str:
    """The title in lines that fit so many inches, at ten points: some thirteen letters an inch."""
    return "\n".join(textwrap.wrap(figure_text(title, 120), max(12, int(12.5 * inches))))


def _lines(title: str, inches: float) -> int:
    return _wrapped(title, inches).count("\n") + 1


def draw_mistakes(
    images: np.ndarray, true: Sequence[str], named: Sequence[str], sure: np.ndarray, title: str, file: Path
) -> None:
    """(n, C, H, W) bytes side by side, each with what it is and what it was called."""
    from matplotlib.figure import Figure

    columns = min(8, max(5, len(images)))
    rows = max(1, -(-len(images) // columns))
    figure = Figure(figsize=(1.35 * columns, 0.5 + 1.75 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for axis in axes:
        axis.axis("off")
    for axis, image, is_, called, p in zip(axes, images, true, named, sure, strict=False):
        grey = image.shape[0] == 1
        axis.imshow(image[0] if grey else image.transpose(1, 2, 0), cmap="gray" if grey else None, vmin=0, vmax=255)
        is_, called = figure_text(is_, 24), figure_text(called, 24)
        axis.set_title(f"{is_}\ncalled {called}\n{p:.0%} sure", fontsize=7)
    figure.suptitle("\n".join(textwrap.wrap(figure_text(title, 120), 15 * columns)), fontsize=10)
    write_figure(file, figure)
