"""The figure and the table of docs/images-as-networks.md from results/picture-bytes.json and picture-bytes-jpeg.json.

python benchmarks/picture_bytes_page.py
"""

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "images-as-networks.md"
NETWORKS, JPEGS = (ROOT / "results" / f"{name}.json" for name in ("picture-bytes", "picture-bytes-jpeg"))
BEGIN, END = "<!-- picture-bytes:table -->\n", "<!-- picture-bytes:end -->\n"


def recorded() -> list[dict]:
    """The networks, with the JPEG that was measured beside them last."""
    key = ("picture", "budget", "seed", "network_bytes")
    jpegs = {tuple(row[k] for k in key): row for row in json.loads(JPEGS.read_text())["rows"]}
    return [row | jpegs.get(tuple(row[k] for k in key), {}) for row in json.loads(NETWORKS.read_text())["rows"]]


def by_budget(rows: list[dict]) -> dict:
    """{picture: {budget: (mean PSNR, its spread, JPEG's PSNR)}}"""
    found: dict = {}
    for row in rows:
        if row["budget"]:
            found.setdefault(row["picture"], {}).setdefault(row["budget"], []).append(row)
    return {picture: {b: _figures(own) for b, own in budgets.items()} for picture, budgets in found.items()}


def _figures(rows: list[dict]) -> tuple[float, float, float | None]:
    own = [row["psnr"] for row in rows]
    theirs = [row["jpeg_at_equal_bytes"]["psnr"] for row in rows if row["jpeg_at_equal_bytes"]]
    spread = float(np.std(own, ddof=1)) if len(own) > 1 else 0.0
    return float(np.mean(own)), spread, float(np.mean(theirs)) if theirs else None


def table(rows: list[dict]) -> str:
    """Markdown: a row a picture and number of bytes."""
    lines = ["| picture | bytes | network, dB | JPEG of as many bytes, dB | |", "|---|---|---|---|---|"]
    for picture, budgets in by_budget(rows).items():
        for budget, (mean, spread, jpeg) in sorted(budgets.items()):
            other = "it cannot" if jpeg is None else f"{jpeg:.2f}"
            ahead = None if jpeg is None else mean - jpeg
            who = "the network" if ahead is None or ahead > 0.05 else "JPEG" if ahead < -0.05 else "a draw"
            own = f"{mean:.2f} ± {spread:.2f}" if spread else f"{mean:.2f}"
            lines.append(f"| {picture} | {budget:,} | {own} | {other} | {who} |")
    return "\n".join(lines) + "\n"


def draw(rows: list[dict], file: Path) -> None:
    found = by_budget(rows)
    figure, axes = plt.subplots(1, len(found), figsize=(3.6 * len(found), 3.2), layout="constrained", squeeze=False)
    for axis, (picture, budgets) in zip(axes[0], found.items(), strict=True):
        sizes = sorted(budgets)
        mean, spread, jpeg = (np.array([budgets[b][i] for b in sizes], float) for i in range(3))
        axis.errorbar(sizes, mean, spread, marker="o", markersize=4, color="#2563eb", label="network, --bytes")
        axis.plot(sizes, jpeg, marker="s", markersize=4, color="#6b7280", label="JPEG at its best")
        axis.set_xscale("log")
        axis.set_xticks(sizes, [f"{size // 1000}k" for size in sizes])
        axis.minorticks_off()
        axis.set_title(picture, fontsize=10)
        axis.set_xlabel("bytes")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("PSNR, dB")
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=100)


def main() -> None:
    rows = recorded()
    draw(rows, ROOT / "docs" / "images" / "picture-bytes.png")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(rows) + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
