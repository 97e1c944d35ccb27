"""The picture of a distilled cell: one input's late states beside what a solver says, and all held-out inputs.

Left, where the iteration is (its states, and the SIM's E[z] or z); right, the long-time mean of z^2 of the first
coordinate by the SIM, by the closed form and at the solver's point, against what a long run really gives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from koopsim.bridge.closed_measure import ClosedMeasure
from koopsim.bridge.distill import DistillReport
from koopsim.bridge.hidden import Implicit, hidden_map, in_float64, orbit_of
from koopsim.bridge.measures import embedding, late_states, reader
from koopsim.bridge.settling import settling
from koopsim.nn import SIM


@torch.no_grad()
def plot_distilled(
    deq: Implicit, x: Tensor, sim: SIM, report: DistillReport, closed: ClosedMeasure | None = None
) -> Any:
    """`x` are inputs that nobody was fitted to; the first is drawn by itself."""
    from matplotlib.figure import Figure

    exact = in_float64(deq)
    runs = torch.as_tensor(orbit_of(*hidden_map(exact, x.double()), 1600)[:, 400:])
    points = settling(deq, x, starts=1, tried=1).equilibria.flatten(1)
    state = sim.state(x.to(next(sim.parameters()))).double().flatten(1)
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.2, 1])
    _one_input(left, runs[0].numpy(), points[0].numpy(), state[0].numpy(), report.target)
    truth = runs[:, :, 0].square().mean(dim=1)
    ways = {"solver's point": (points[:, 0].square(), "x", "tab:red")}
    if report.target == "equilibrium":
        ways["SIM"] = (state[:, 0].square(), "o", "tab:blue")
    else:
        read = reader(in_float64(sim), late_states(deq, x).flatten(2), torch.square)
        ways["two-tier SIM"] = ((embedding(sim, x.to(next(sim.parameters()))).double() @ read)[:, 0], "o", "tab:blue")
    if closed is not None:
        ways["closed form"] = (closed.average(torch.square)(x)[:, 0], "+", "tab:green")
    low, high = float(truth.min()), float(truth.max())
    right.plot([low, high], [low, high], color="black", lw=0.7)
    for name, (value, marker, colour) in ways.items():
        right.scatter(truth, value, s=16, marker=marker, color=colour, lw=0.9, alpha=0.7, label=name)
    right.set(xlabel="mean of $z_0^2$ along the iteration", ylabel="as learnt or solved", title="held-out inputs")
    right.legend(fontsize=8)
    return figure


def _one_input(ax: Any, z: Any, point: Any, state: Any, target: str) -> None:
    """Two coordinates: the orbit. One: how often the iteration is where, and its first steps are left out."""
    name = "SIM: E[z]" if target == "invariant-set" else "SIM: z"
    if z.shape[1] > 1:
        ax.plot(z[:, 0], z[:, 1], ".", ms=3, color="grey", label="iteration")
        ax.plot(*point[:2], "x", color="tab:red", ms=9, mew=2, label="solver's point")
        ax.plot(*state[:2], "o", color="tab:blue", label=name)
        ax.set(aspect="equal", xlabel="$z_0$", ylabel="$z_1$")
    else:
        low, high = float(min(z.min(), point[0])), float(max(z.max(), point[0]))
        room = 0.1 * (high - low) or 1.0
        ax.hist(z[:, 0], bins=np.linspace(low - room, high + room, 80), color="grey", density=True, label="iteration")
        ax.axvline(float(point[0]), color="tab:red", ls="--", label="solver's point")
        ax.axvline(float(state[0]), color="tab:blue", label=name)
        ax.set(xlabel="$z_0$", ylabel="share of time")
    ax.set_title("one input")
    ax.legend(fontsize=7, loc="upper right" if z.shape[1] > 1 else "best")  # the middle of an orbit is to be seen
