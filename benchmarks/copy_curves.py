"""Training loss of copy memory epoch by epoch, of the recorded runs: a figure, and the table of docs/claims.md.

    python benchmarks/copy_curves.py          docs/images/copy-epochs.png, and the table into the page

Run-time is left out: some of these runs shared their GPU, others had it to themselves.
"""

import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from koopsim.report import collect
from koopsim.report.names import look_of, rank_of, title_of, variant_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "claims.md"
MARKS = "<!-- copy-epochs -->\n", "<!-- /copy-epochs -->"
HORIZON, EPOCHS = 500, (1, 2, 3, 4, 5, 10, 15, 20)


Model = tuple[str, str]  # its name, and what of it is not the preset's


def curves() -> dict[Model, list[list[float]]]:
    """Of each model at T = 500 the mean training loss of every epoch, a list a seed."""
    found: dict[Model, list[list[float]]] = {}
    results, _ = collect([ROOT / "results" / "h200"])
    for result in results:
        horizon = (result.get("run") or {}).get("task", {}).get("horizon")
        if result.get("name", "").startswith("copy/") and horizon == HORIZON and result.get("metrics"):
            own = found.setdefault((result["name"], variant_of(result)), [])
            own.append([line["train_loss"] for line in result["metrics"]])
    return dict(sorted(found.items(), key=lambda item: (rank_of(item[0][0]), item[0][1])))


def table(found: dict[Model, list[list[float]]]) -> str:
    """A row a model: the median over its seeds."""
    lines = ["| | seeds | " + " | ".join(map(str, EPOCHS)) + " |", "|---|" + "---|" * (len(EPOCHS) + 1)]
    for (name, own), seeds in found.items():
        means = [f"{statistics.median(curve[epoch - 1] for curve in seeds):.1e}" for epoch in EPOCHS]
        lines.append(f"| {title_of(name)}{own} | {len(seeds)} | {' | '.join(m.replace('e-0', 'e-') for m in means)} |")
    return "\n".join(lines) + "\n"


def draw(found: dict[Model, list[list[float]]], file: Path) -> None:
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for (name, own), seeds in found.items():
        look = look_of(name)
        for number, losses in enumerate(seeds):
            label = f"{look.title}{own}, {len(seeds)} seed{'s' * (len(seeds) > 1)}" if not number else None
            line = "s--" if own else "o-"
            axis.plot(range(1, len(losses) + 1), losses, line, color=look.colour, label=label, markersize=3)
    axis.set_yscale("log")
    axis.set(xlabel="epoch", ylabel="training loss, nats", title=f"Copy memory, T = {HORIZON}")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(file, dpi=130)


def main() -> None:
    found = curves()
    draw(found, ROOT / "docs" / "images" / "copy-epochs.png")
    before, rest = PAGE.read_text().split(MARKS[0])
    PAGE.write_text(before + MARKS[0] + table(found) + MARKS[1] + rest.split(MARKS[1])[1])


if __name__ == "__main__":
    main()
