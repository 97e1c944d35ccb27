"""A look at a trained model of a table: what it confuses, where it errs, which columns it lives from.

    importance of a column = score - mean score with that column's entries dealt out anew among the rows    Breiman 2001

Kept in a run's result, so that the report can show it when the table is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from koopsim.datasets.table_inputs import TableInputs

MOST_ROWS = 2000  # that are looked at
MOST_COLUMNS = 200
MOST_POINTS = 500  # of truth and answer, kept
REPEATS = 5
Ask = Callable[[Tensor], Tensor]  # rows (n, width) -> answers (n, outputs), float64
Judge = Callable[[Tensor, Tensor], float]  # (answers, truth) -> score


def look_at(ask: Ask, judge: Judge, x: Tensor, y: Tensor, inputs: TableInputs) -> dict[str, Any]:
    """Of rows x (n, width) and their truth y, at most so many of them: plain values for JSON."""
    generator = torch.Generator().manual_seed(0)
    some = torch.randperm(len(x), generator=generator)[:MOST_ROWS].to(x.device)
    x, y = x[some], y[some]
    answers = ask(x)
    found: dict[str, Any] = {"rows": len(x), "missing": inputs.missing()}
    classes = inputs.targets[0].classes
    if classes is not None:
        counts = torch.bincount(y * len(classes) + answers.argmax(1), minlength=len(classes) ** 2)
        found |= {"classes": list(classes), "confusion": counts.view(len(classes), -1).tolist()}
    else:
        target = inputs.targets[0]
        pairs = torch.stack([y[:MOST_POINTS, 0].double(), answers[:MOST_POINTS, 0]]) * target.deviation + target.mean
        found |= {"truth": pairs[0].tolist(), "answers": pairs[1].tolist(), "target": target.name}
    whole = judge(answers, y)
    rows = []
    for name, place in list(inputs.blocks.items())[:MOST_COLUMNS]:
        falls = []
        for _ in range(REPEATS):
            dealt = x.clone()
            dealt[:, place] = x[torch.randperm(len(x), generator=generator).to(x.device)][:, place]
            falls.append(whole - judge(ask(dealt), y))
        falls = torch.tensor(falls, dtype=torch.float64)
        rows.append({"column": name, "mean": float(falls.mean()), "std": float(falls.std())})
    return found | {"score": whole, "importances": sorted(rows, key=lambda row: -row["mean"])}
