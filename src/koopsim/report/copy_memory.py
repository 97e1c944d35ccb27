"""Copy memory: Table 1, each published loss beside ours, and Figure 4.      paper, section 5.1"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from koopsim.config import CopyMemoryConfig
from koopsim.files.writing import write_png_and_svg
from koopsim.report.kinds import Result, is_of
from koopsim.report.names import look_of, machine_of, rank_of, title_of, variant_of
from koopsim.report.tables import Table, difference, spread
from koopsim.tasks.table1 import PUBLISHED


def copy_memory_table(results: Sequence[Result]) -> Table | None:
    """Table 1: test loss and parameters of the DEQ and the SIMs on copy memory, one table a horizon."""
    runs = [r for r in results if is_of(r, CopyMemoryConfig) and "digits_right" in r.get("test", {})]
    if not runs:
        return None
    groups: dict[tuple[str, str, int], list[Result]] = {}
    for run in runs:
        groups.setdefault((run["name"], variant_of(run), run["run"]["task"]["horizon"]), []).append(run)
    ordered = sorted(groups, key=lambda row: (rank_of(row[0]), *row))
    rows = [[title_of(name) + own, *_copy_memory_row(groups[name, own, t], name, t)] for name, own, t in ordered]
    horizons = {horizon for _, _, horizon in groups}
    head = ["model", "T", "params", "test loss", "paper", "diff", "digits", "batch", "ms/step", "time", "stuck"]
    floors = ", ".join(f"{10 * math.log(8) / (h + 20):.4f} at T = {h}" for h in sorted(horizons))
    note = (
        f"Test loss in nats, in float64; without memory it is {floors}. Diff: ours less the paper's. "
        "Digits: the last ten, right. Times: of the runs on the first one's kind of machine. "
        "Stuck: solves that ended above the tolerance, in all of training and at test."
    )
    return Table("Copy memory (Table 1)", head, rows, note)


def _copy_memory_row(group: list[Result], name: str, horizon: int) -> list[str]:
    published = PUBLISHED.get(name) if horizon == 500 else None
    losses = [r["test"]["loss"] for r in group]
    timed = [r for r in group if machine_of(r) == machine_of(group[0])]
    return [
        str(horizon),
        f"{group[0]['parameters']:,}",
        spread(losses, ".2e"),
        "-" if published is None else f"{published:.2e}",
        difference(losses, published, ".1e"),
        f"{statistics.mean(r['test']['digits_right'] for r in group):.1%}",
        "/".join(sorted({str(r["run"]["recipe"]["batch_size"]) for r in group})),
        f"{statistics.median(r['milliseconds_per_step'] for r in timed):.2f}",
        f"{statistics.median(r['train_seconds'] for r in timed):.0f} s",
        _stuck(group),
    ]


def _stuck(group: list[Result]) -> str:
    """Shares of solves that did not converge: in training over all epochs, forward, and at test."""
    trained = [line["unconverged"] for r in group for line in r["metrics"] if "unconverged" in line]
    tested = [r["test"]["unconverged"] for r in group if "unconverged" in r["test"]]
    shares = [f"{statistics.mean(found):.1%}" if found else "-" for found in (trained, tested)]
    return " / ".join(shares) if trained or tested else "-"


def figure4(results: Sequence[Result], folder: Path) -> list[Path]:
    """Figure 4: training loss of copy memory against run-time and against epochs, as PNG and SVG."""
    from matplotlib.figure import Figure

    runs, horizon = _of_the_figure(results)
    if not runs:
        return []
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for run in runs:
        look, lines = look_of(run["name"]), run["metrics"]
        losses = [max(line["train_loss"], 1e-12) for line in lines]
        style = {"color": look.colour, "label": look.title, "marker": "o", "markersize": 3, "linewidth": 1.5}
        left.plot([line["seconds"] for line in lines], losses, **style)
        right.plot([line["epoch"] for line in lines], losses, **style)
    floor = next((r["test"]["memoryless_loss"] for r in runs if "memoryless_loss" in r.get("test", {})), None)
    for axis, label in ((left, "(a) run-time in seconds"), (right, "(b) epochs")):
        axis.set_yscale("log")
        axis.set_xlabel(label)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if floor:
            axis.axhline(floor, color="black", linestyle=":", linewidth=1, label="without memory")
    right.xaxis.get_major_locator().set_params(integer=True)
    if _wide([run["metrics"][-1]["seconds"] for run in runs]):
        left.set_xscale("log")
    left.set_ylabel("training loss")
    handles, labels = right.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    right.legend(unique.values(), unique.keys(), frameon=False)
    figure.suptitle(f"Copy memory, T = {horizon}, on {machine_of(runs[0])}", fontsize=11)
    return write_png_and_svg(folder, "figure4", figure)


def _of_the_figure(results: Sequence[Result]) -> tuple[list[Result], int]:
    """(its runs, their horizon): the shortest, which is the paper's; longer ones are rows of Table 1."""
    runs = [r for r in results if is_of(r, CopyMemoryConfig) and r["metrics"]]
    horizon = min((r["run"]["task"]["horizon"] for r in runs), default=0)
    return [r for r in runs if r["run"]["task"]["horizon"] == horizon], horizon


def _wide(seconds: list[float]) -> bool:
    return max(seconds) > 8 * min(seconds)
