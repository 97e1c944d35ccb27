"""docs/images/own-pytorch.png: what the three ways of docs/own-pytorch.md learnt, from the page's own code.

    python benchmarks/own_pytorch_figure.py
"""

import os
import re
import tempfile
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import torch
from matplotlib import pyplot as plt

PAGE = Path(__file__).parents[1] / "docs" / "own-pytorch.md"


def main() -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S))
    names: dict = {}
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(compile(code, str(PAGE), "exec"), names)
        os.chdir(here)
    ways = {
        "koopsim.train: a network of one's own": names["network"],
        "plain loop: a SIM": names["model"],
        "Lightning: a SIM": names["module"].model,
    }
    side = torch.linspace(-2.2, 2.2, 241)
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), dim=-1)
    figure, axes = plt.subplots(1, 3, figsize=(11, 4.5), layout="constrained")
    for axis, (title, model) in zip(axes, ways.items(), strict=True):
        model.eval().cpu()
        with torch.no_grad():
            p = model(grid.reshape(-1, 2)).softmax(1)[:, 1].reshape(241, 241)
            right = names["accuracy"](model(names["x_test"]), names["y_test"]).item()
        axis.imshow(p, extent=(-2.2, 2.2, -2.2, 2.2), origin="lower", cmap="RdBu", vmin=0, vmax=1, alpha=0.7)
        axis.scatter(*names["x_test"].T, c=names["y_test"], s=7, cmap="RdBu", edgecolors="black", linewidths=0.3)
        axis.set_title(f"{title}\n{right:.1%} of the test points", fontsize=10)
        axis.set_axis_off()
    figure.savefig(PAGE.parent / "images" / "own-pytorch.png", dpi=90)


if __name__ == "__main__":
    main()
