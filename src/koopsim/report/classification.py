"""Image classification: Table 2, each published accuracy beside ours, and the learning curves.   paper, section 5.2"""

import statistics
from collections.abc import Collection, Sequence
from pathlib import Path

from koopsim.config import ClassificationConfig, resolve_precision
from koopsim.files.writing import figure_text, write_png_and_svg
from koopsim.presets import PRESETS, run_of
from koopsim.report.collect import Result, seconds_an_epoch
from koopsim.report.kinds import is_of
from koopsim.report.names import data_rank, kind_of, look_of, rank_of, variant_of
from koopsim.report.tables import Table, difference, spread
from koopsim.tasks.classification import data_title
from koopsim.tasks.table2 import PUBLISHED

Row = tuple[str, str, str, int]  # data set, model, what of it is our own, epochs


def _rows(results: Sequence[Result]) -> dict[Row, list[Result]]:
    """The runs of each data set, model and length, in the order of the paper's table."""
    groups: dict[Row, list[Result]] = {}
    for result in results:
        if is_of(result, ClassificationConfig) and "test" in result:
            run = result["run"]
            row = (run["task"]["dataset"], kind_of(result["name"]), variant_of(result), run["recipe"]["epochs"])
            groups.setdefault(row, []).append(result)
    return {row: groups[row] for row in sorted(groups, key=lambda row: (data_rank(row[0]), rank_of(row[1]), row[2:]))}


def _title(row: Row, rows: Collection[Row]) -> str:
    """The model, and its length where the same was trained for the preset's, too."""
    data, model, own, epochs = row
    several = sum(other[:3] == row[:3] for other in rows) > 1
    preset = f"{data}/{model}"
    usual = preset.partition(":")[0] in PRESETS and run_of(preset).recipe.epochs == epochs
    return f"{look_of(model).title}{own}{f', {epochs} epochs' if several and not usual else ''}"


def classification_table(results: Sequence[Result]) -> Table | None:
    """Table 2: test accuracy, parameters and pace of monDEQs and SIMs."""
    groups = _rows(results)
    if not groups:
        return None
    head = ["data", "model", "params", "accuracy %", "paper", "diff", "in", "epochs", "s/epoch", "steps", "stuck"]
    rows = [[data_title(row[0]), _title(row, groups), *_row(group, row)] for row, group in groups.items()]
    note = (
        "Mean and standard deviation over n seeds, trained on train+valid after the choice on valid. "
        "Diff: ours less the paper's, which is in float32. In: the precision of products in training. "
        "Best: a recipe of our own for the same model. "
        "Seconds: of the fastest seed, for others may have shared the device. "
        "Steps: of the forward solver in training. Stuck: test images whose solve did not converge."
    )
    return Table("Image classification (Table 2)", head, rows, note, words=2)


def _row(group: list[Result], row: Row) -> list[str]:
    whole = all(r["run"]["task"].get("train") is None for r in group)
    steps = [line["solver_steps"] for r in group for line in r["metrics"] if "solver_steps" in line]
    unconverged = [r["test"]["unconverged"] for r in group if "unconverged" in r["test"]]
    accuracies = [100 * r["test"]["accuracy"] for r in group]
    published = PUBLISHED.get(f"{row[0]}/{row[1]}", "-") if whole and not row[2] else "-"
    return [
        f"{group[0]['parameters']:,}",
        spread(accuracies, ".2f"),
        published,
        difference(accuracies, published, ".2f"),
        "/".join(sorted({precision_of(r) for r in group})),
        str(row[3]),
        f"{seconds_an_epoch(group):.2f}",
        f"{statistics.mean(steps):.1f}" if steps else "-",
        f"{statistics.mean(unconverged):.1%}" if unconverged else "-",
    ]


def precision_of(result: Result) -> str:
    """What the run was really trained in; before that was written down, what it asked for on its kind of device."""
    asked, device = str(result["run"].get("precision", "float32")), str(result.get("device", "cpu"))
    return str(result.get("precision") or resolve_precision(asked, device.partition(":")[0]))


def learning_curves(results: Sequence[Result], folder: Path) -> list[Path]:
    """Training loss against run-time and epochs, a row of panels a data set; valid accuracy where it was kept."""
    from matplotlib.figure import Figure

    groups = {row: group for row, group in _rows(results).items() if any(r["metrics"] for r in group)}
    sets = list(dict.fromkeys(row[0] for row in groups))
    if not sets:
        return []
    figure = Figure(figsize=(10, 3.2 * len(sets)), layout="constrained")
    axes = figure.subplots(len(sets), 2, squeeze=False)
    for row, group in groups.items():
        panels = axes[sets.index(row[0])]
        for i, run in enumerate(group):
            lines = run["metrics"]
            style = {"color": look_of(row[1]).colour, "linewidth": 1.3, "alpha": 0.9 if i == 0 else 0.4}
            label = _title(row, groups) if i == 0 else None
            losses = [line["train_loss"] for line in lines]
            panels[0].plot([line["seconds"] for line in lines], losses, label=label, **style)
            panels[1].plot([line["epoch"] for line in lines], losses, **style)
    for data, row in zip(sets, axes, strict=True):
        row[0].set_ylabel(f"{figure_text(data_title(data))}\ntraining loss")
        for axis, text in zip(row, ("run-time in seconds", "epochs"), strict=True):
            axis.set_yscale("log")
            axis.set_xlabel(text)
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
        row[0].set_xscale("log")
        row[0].legend(frameon=False, fontsize=8)
    return write_png_and_svg(folder, "classification", figure)
