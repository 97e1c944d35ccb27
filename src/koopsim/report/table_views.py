"""Runs that learnt tables: error curves, what was confused or how far answers were off, and what each column is worth.

All of it is in a run's result (tasks/table_look.py); the table itself is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from koopsim.files.writing import figure_text, write_png_and_svg
from koopsim.report.bars import Bar, Bars
from koopsim.report.charts import Axis, Chart, PointSeries, short
from koopsim.report.kinds import Result, is_of
from koopsim.report.names import look_of, place_of, seed_of, title_of
from koopsim.report.page import Piece
from koopsim.report.tables import Table
from koopsim.tasks.table import TableConfig

MOST_RUNS = 6  # that are drawn
MOST_BARS = 12
MOST_CLASSES = 20  # whose confusions are shown as a table
NUMBERS = (int, float)


def looked_at(results: Sequence[Result]) -> list[tuple[Result, dict[str, Any]]]:
    """Runs of tables with a whole look at them, at most so many. A result is anyone's: others are left out."""
    found = [(r, r["look"]) for r in results if is_of(r, TableConfig) and _whole(r.get("look"))]
    return found[:MOST_RUNS]


def _whole(look: Any) -> bool:
    if not isinstance(look, dict) or not isinstance(look.get("importances"), list) or not look["importances"]:
        return False
    return all(map(_is_importance, look["importances"])) and (_confused if "confusion" in look else _paired)(look)


def _is_importance(row: Any) -> bool:
    named = isinstance(row, dict) and isinstance(row.get("column"), str)
    return named and all(isinstance(row.get(key), NUMBERS) for key in ("mean", "std"))


def _confused(look: dict[str, Any]) -> bool:
    """Counts (classes, classes)."""
    names, counts = look.get("classes"), look["confusion"]
    if not isinstance(names, list) or not isinstance(counts, list) or len(counts) != len(names):
        return False
    return all(isinstance(row, list) and len(row) == len(names) for row in counts)


def _paired(look: dict[str, Any]) -> bool:
    """An answer for each truth."""
    pair = [values for values in (look.get("truth"), look.get("answers")) if isinstance(values, list)]
    return len(pair) == 2 and len(pair[0]) == len(pair[1]) > 0


def table_pieces(results: Sequence[Result]) -> list[Piece]:
    """For the page."""
    pieces = []
    for result, look in looked_at(results):
        name = f"{place_of(result)}: {title_of(result['name'])}, seed {seed_of(result)}"
        pieces.append(Piece("words", f"{name}. Score {look.get('score', 0.0):.4g} on {look.get('rows')} rows."))
        if "confusion" in look and len(look["classes"]) <= MOST_CLASSES:
            pieces.append(Piece("table", _confusion(look, name)))
        elif "truth" in look:
            pieces.append(Piece("charts", [_residuals(result, look, name)]))
        pieces.append(Piece("bars", _importances(look, look_of(result["name"]).slot)))
    return pieces


def _confusion(look: dict[str, Any], name: str) -> Table:
    head = ["true \\ named", *map(str, look["classes"])]
    rows = [[str(c), *(str(n) for n in row)] for c, row in zip(look["classes"], look["confusion"], strict=True)]
    return Table(f"Confusions, {name}", head, rows, "Confusions: a row a true class, counts of the test rows.")


def _residuals(result: Result, look: dict[str, Any], name: str) -> Chart:
    off = [[short(t), short(a - t)] for t, a in zip(look["truth"], look["answers"], strict=True)]
    columns = (f"true {look.get('target', 'value')}", "answer less truth")
    dots = PointSeries(title_of(result["name"]), look_of(result["name"]).slot, off)
    return Chart(f"Residuals, {name}", columns, (Axis(0),), Axis(1), "dots", [dots], rule=(0.0, "no error"))


def _importances(look: dict[str, Any], slot: int) -> Bars:
    rows = look["importances"][:MOST_BARS]
    top = max(max(row["mean"] for row in rows), 1e-9)
    bars = [
        Bar(row["column"], max(row["mean"], 1e-3 * top), f"{row['mean']:.3g}", f"± {row['std']:.2g}", slot)
        for row in rows
    ]
    return Bars("Permutation importances: how much the score falls when a column is dealt out anew", bars)


def table_figure(results: Sequence[Result], folder: Path) -> list[Path]:
    """tables.png and tables.svg: a row a run, of curves, confusions or residuals, and importances."""
    from matplotlib.figure import Figure

    found = looked_at(results)
    if not found:
        return []
    figure = Figure(figsize=(13, 3.6 * len(found)), layout="constrained")
    for axes, (result, look) in zip(figure.subplots(len(found), 3, squeeze=False), found, strict=True):
        colour = look_of(result["name"]).colour
        _draw_curves(axes[0], result, colour)
        if "confusion" in look:
            _draw_confusions(axes[1], look)
        else:
            _draw_residuals(axes[1], look, colour)
        _draw_importances(axes[2], look, colour)
    return write_png_and_svg(folder, "tables", figure)


def _draw_curves(axis: Any, result: Result, colour: str) -> None:
    for key, style in (("train_loss", "-"), ("valid_loss", "--")):
        points = [(line["epoch"], line[key]) for line in result["metrics"] if key in line]
        if points:
            axis.plot(*zip(*points, strict=True), style, color=colour, linewidth=1.4, label=key.replace("_", " "))
    axis.set(xlabel="epochs", ylabel="loss", yscale="log")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_title(figure_text(f"{place_of(result)}, {title_of(result['name'])}"), fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_confusions(axis: Any, look: dict[str, Any]) -> None:
    counts = np.array(look["confusion"], float)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axis.imshow(share, cmap="Blues", vmin=0, vmax=1)
    names = [figure_text(str(name), 16) for name in look["classes"]]
    if len(names) <= MOST_CLASSES:
        for (i, j), n in np.ndenumerate(counts):
            axis.text(j, i, f"{n:.0f}", ha="center", va="center", color="white" if share[i, j] > 0.5 else "black")
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
        axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set(xlabel="named", ylabel="true")
    axis.set_title("confusions", fontsize=10)


def _draw_residuals(axis: Any, look: dict[str, Any], colour: str) -> None:
    truth, answers = np.array(look["truth"]), np.array(look["answers"])
    axis.axhline(0, color="black", linewidth=0.8)
    axis.scatter(answers, answers - truth, s=10, color=colour, alpha=0.6, linewidths=0)
    axis.set(xlabel=figure_text(f"answered {look.get('target', '')}"), ylabel="answer less truth")
    axis.set_title("residuals", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_importances(axis: Any, look: dict[str, Any], colour: str) -> None:
    rows = look["importances"][:MOST_BARS][::-1]
    names = [figure_text(row["column"], 24) for row in rows]
    means, stds = ([row[key] for row in rows] for key in ("mean", "std"))
    axis.barh(range(len(rows)), means, xerr=stds, color=colour, alpha=0.85, error_kw={"linewidth": 0.8})
    axis.set_yticks(range(len(rows)), names, fontsize=8)
    axis.set_xlabel("fall of the score")
    axis.set_title("when a column is dealt out anew", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
