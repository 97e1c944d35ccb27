"""The picture of an observed DEQ: its spectra against the unit circle, and what the iteration did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from koopsim.bridge.jacobian import Linearisation
from koopsim.bridge.observe import Observation

COLOURS = {True: "tab:green", False: "tab:red"}


def plot_observation(seen: Observation, local: Sequence[Linearisation] = ()) -> Any:
    """Left: eigenvalues input by input, by EDMD and of df/dz. Right: the residual of the plain iteration."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.3])
    t = np.linspace(0, 2 * np.pi, 361)
    left.fill(np.cos(t), np.sin(t), color="grey", alpha=0.1, zorder=0)
    left.plot(np.cos(t), np.sin(t), color="blue", lw=1, alpha=0.6, zorder=1)
    named: set[str] = set()
    for i, (verdict, settled) in enumerate(zip(seen.verdicts, seen.settled, strict=True)):
        colour = COLOURS[bool(settled)]
        w = verdict.eigenvalues
        name = f"increments, {'settled' if settled else 'not settled'}"
        left.scatter(np.real(w), np.imag(w), s=26, c=colour, alpha=0.7, lw=0, zorder=3, label=_once(name, named))
        if i < len(local) and local[i].found:
            w = local[i].eigenvalues
            label = _once("df/dz at z*", named)
            left.scatter(np.real(w), np.imag(w), s=30, c="black", marker="x", lw=0.8, alpha=0.6, zorder=4, label=label)
    left.set(aspect="equal", xlabel="Re", ylabel="Im", title="eigenvalues, input by input")
    left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        g = np.linalg.norm(np.diff(seen.states[:, 0], axis=1), axis=2)
        size = np.linalg.norm(seen.states[:, 0, 1:], axis=2)
        residual = np.where(size > 0, g / size, np.nan)
    for line, settled in zip(residual, seen.settled, strict=True):
        right.semilogy(np.arange(len(line)), np.maximum(line, 1e-17), color=COLOURS[bool(settled)], lw=0.9, alpha=0.7)
    right.set(xlabel="step", ylabel="|| f(z) - z || / || f(z) ||", title="the plain iteration from $z_0$")
    share = seen.agreement
    cases = ", ".join(f"{case} on {n}" for case, n in seen.counts.items())
    figure.suptitle(f"{cases};  agreement {share['agree']:.0%}, undecided {share['undecided']:.0%}")
    return figure


def _once(name: str, named: set[str]) -> str | None:
    """A label for the first of its kind."""
    if name in named:
        return None
    named.add(name)
    return name
