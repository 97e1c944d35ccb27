"""Draws the README's moving picture, docs/images/settles.gif: four maps, one start, and what `analyze` says of each.

    z_{l+1} = A z_l,   the eigenvalues inside, at 1, on and outside the unit circle
"""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from koopsim.spectral import analyze

FILE = Path(__file__).resolve().parent.parent / "docs" / "images" / "settles.gif"
STEPS, WIDTH = 36, 4.0
WORDS = {"origin": "settles at zero", "fixed-point": "settles at a point", "invariant-set": "oscillates for ever"}
WORDS["divergent"] = "blows up"
START = np.array([1.0, 0.35])


def turning(radius: float, angle: float) -> np.ndarray:
    c, s = radius * np.cos(angle), radius * np.sin(angle)
    return np.array([[c, -s], [s, c]])


def maps() -> list[np.ndarray]:
    S = np.array([[0.5, 1.0], [1.2, -0.35]])
    leads_to_a_point = S @ np.diag([1.0, -0.87]) @ np.linalg.inv(S)
    return [turning(0.9, 0.5), leads_to_a_point, turning(1.0, 0.5), turning(1.035, 0.5)]


def frame(step: int, whole: list[tuple[np.ndarray, str]]) -> Image.Image:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(8.4, 2.5), dpi=100)
    for axis, (orbit, word) in zip(axes, whole, strict=True):
        seen = orbit[: step + 1]
        axis.plot(*seen.T, "-", color="#1f77b4", alpha=0.35, lw=1)
        axis.scatter(*seen.T, s=9, color="#1f77b4", alpha=np.linspace(0.25, 1, len(seen)))
        axis.plot(*seen[-1], "o", color="#c1440e", ms=6)
        axis.set(xlim=(-2.2, 2.2), ylim=(-2.2, 2.2), xticks=[], yticks=[], aspect="equal")
        axis.set_title(word, fontsize=11)
    figure.tight_layout(pad=0.4)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    plt.close(figure)
    return Image.open(drawn).convert("RGB").quantize(48)


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    whole = []
    for A in maps():
        orbit = [START]
        for _ in range(STEPS):
            orbit.append(A @ orbit[-1])
        whole.append((np.array(orbit), WORDS[analyze(A).case]))
    frames = [frame(step, whole) for step in range(STEPS + 1)]
    waits = [120] * STEPS + [2500]
    frames[0].save(FILE, save_all=True, append_images=frames[1:], duration=waits, loop=0, optimize=True)


if __name__ == "__main__":
    main()
