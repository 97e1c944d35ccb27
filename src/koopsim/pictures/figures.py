"""Pictures side by side: the paper's Figure 5, error maps, PSNR against seconds, and a fit as it converges."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from koopsim.files.writing import figure_text, write_atomically, write_figure
from koopsim.pictures.read import to_pixels


def figure5(
    rows: Sequence[Mapping[str, NDArray]], path: Path, psnrs: Sequence[Mapping[str, float]] | None = None
) -> Path:
    """Truth and models side by side, one row a picture: each row maps a title to (height, width, 3) in [0, 1]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * len(rows[0]), 2.8 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for r, row in enumerate(rows):
        for axis, (title, values) in zip(axes[r], row.items(), strict=True):
            axis.imshow(np.clip(values, 0, 1), interpolation="nearest")
            axis.set_axis_off()
            known = (psnrs[r] if psnrs else {}).get(title)
            shown = figure_text(title)
            axis.set_title(shown if known is None else f"{shown}, {known:.1f} dB", fontsize=10)
    write_figure(path, figure)
    return path


def error_map(truth: NDArray, fitted: NDArray) -> NDArray[np.uint8]:
    """(height, width, 3): each pixel's root mean squared error, black at zero, bright at a tenth of white."""
    from matplotlib import colormaps

    white = float(np.iinfo(truth.dtype).max)
    found = np.empty((*truth.shape[:2], 3), np.uint8)
    for top in range(0, len(truth), 512):  # in bands, so that a large picture is not copied in floating point
        rows = slice(top, top + 512)
        error = np.sqrt(np.square((truth[rows].astype(np.float32) - fitted[rows]) / white).mean(axis=2))
        found[rows] = colormaps["inferno"](np.clip(10 * error, 0, 1), bytes=True)[:, :, :3]
    return found


def save_animation(frames: Sequence[NDArray], path: Path, milliseconds: int = 120) -> None:
    """A GIF of (height, width, 3) frames in [0, 1]; the last one stays for two seconds."""
    images = [Image.fromarray(to_pixels(frame)) for frame in frames]
    file = io.BytesIO()
    durations = [milliseconds] * (len(images) - 1) + [2000]
    images[0].save(file, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)
    write_atomically(path, file.getvalue())
