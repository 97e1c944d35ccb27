"""What a warm start saves: solver steps from z_0, from the mean equilibrium and from a SIM, at equal tolerance.

    saved = 1 - steps from the SIM / steps from z_0

A mean state is the start that costs nothing to know; a SIM that saves no more than it has learnt no inputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from koopsim.bridge.hidden import Solvable, equilibrium_of
from koopsim.bridge.warm_start import WarmStart
from koopsim.implicit import MonDEQ, TransformerDEQ, UnconvergedWarning
from koopsim.nn import SIM

PATIENCE = 200


@torch.no_grad()
def count_steps(
    deq: Solvable, sim: SIM, x: Tensor, mean: Tensor, methods: Iterable[str], tolerances: Iterable[float]
) -> list[dict[str, Any]]:
    """A row for each method (solver, or splitting of a monDEQ) and tolerance; `mean` is the mean equilibrium."""
    inner: Any = deq.deq if isinstance(deq, TransformerDEQ) else deq
    name = "splitting" if isinstance(deq, MonDEQ) else "solver"
    before = getattr(inner, name), inner.tol, inner.max_steps
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)  # counted in the rows
        for method in methods:
            for tolerance in tolerances:
                setattr(inner, name, method)
                inner.tol, inner.max_steps = tolerance, PATIENCE
                if isinstance(deq, MonDEQ):
                    deq.tune_alpha(x[:64])
                rows.append({name: method, "tolerance": tolerance, **_row(deq, sim, x, mean)})
    setattr(inner, name, before[0])
    inner.tol, inner.max_steps = before[1:]
    return rows


def _row(deq: Solvable, sim: SIM, x: Tensor, mean: Tensor, batch: int = 32) -> dict[str, float]:
    """Mean steps, unconverged inputs, how far the answers are apart; few at a time, since the slowest sets the pace."""
    found: dict[str, list[Any]] = {"cold": [], "mean": [], "warm": []}
    for few in x.split(batch):
        starts = {"cold": None, "mean": mean.expand(len(few), *mean.shape), "warm": WarmStart(sim).start(deq, few)}
        for name, z0 in starts.items():
            found[name].append(equilibrium_of(deq, few, z0))
    row: dict[str, float] = {}
    states = {name: torch.cat([z for z, _ in parts]).flatten(1) for name, parts in found.items()}
    for name, parts in found.items():
        row[f"{name}_steps"] = float(torch.cat([info.steps for _, info in parts]).double().mean())
        row[f"{name}_unconverged"] = int(sum(int((~info.converged).sum()) for _, info in parts))
    apart = (states["warm"] - states["cold"]).norm(dim=1) / states["cold"].norm(dim=1)
    row["saved_by_the_sim"] = 1 - row["warm_steps"] / row["cold_steps"]
    row["saved_by_the_mean"] = 1 - row["mean_steps"] / row["cold_steps"]
    return row | {"apart_median": float(apart.median()), "apart_largest": float(apart.max())}
