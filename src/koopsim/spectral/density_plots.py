"""Pictures of invariant densities: the densities themselves, and the operator's spectrum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .almost_invariant import AlmostInvariantSets
    from .invariant_density import InvariantDensity

COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")
SHOWN = 95.0  # percentile of the density at which the axis ends: a pole would hide everything else


def plot_density(density: InvariantDensity) -> Any:
    """Left: the densities (of the first two coordinates). Right: the spectrum against the unit circle."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.4, 1])
    draw_density(left, density)
    draw_spectrum(right, density)
    many = density.n_components_
    figure.suptitle(f"{many} ergodic component{'s' if many > 1 else ''}, mixing rate {density.mixing_rate_:.3g}")
    return figure


def draw_density(ax: Any, density: InvariantDensity) -> None:
    """One dimension: steps. More: the boxes in the first two coordinates, shaded by their mass."""
    low, high = density.boxes_.bounds(density.transitions_.numbers)
    for k, (mass, value) in enumerate(zip(density.masses_, density.densities_, strict=True)):
        colour = COLOURS[k % len(COLOURS)]
        name = f"component {k}"
        if density.boxes_.dims == 1:
            order = np.argsort(low[:, 0])
            edges = np.stack([low[order, 0], high[order, 0]], axis=1).ravel()
            held = mass[order] > 0
            ax.fill_between(edges, np.repeat(value[order], 2), where=np.repeat(held, 2), color=colour, alpha=0.15, lw=0)
            ax.plot(edges, np.where(np.repeat(held, 2), np.repeat(value[order], 2), np.nan), color=colour, label=name)
        else:
            _rectangles(ax, low[mass > 0], high[mass > 0], mass[mass > 0], colour, name)
    if density.boxes_.dims == 1:
        top = 1.25 * float(np.percentile(density.densities_.max(axis=0), SHOWN))
        ax.set(xlabel="$z$", ylabel="invariant density", ylim=(0, top))
    else:
        ax.set(xlabel="$z_0$", ylabel="$z_1$", title="invariant mass of each box")
        ax.autoscale_view()
    if density.n_components_ > 1:
        ax.legend(fontsize=8)


def _rectangles(ax: Any, low: Any, high: Any, mass: Any, colour: str, name: str) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    box = np.concatenate([low[:, :2], high[:, :2]], axis=1)
    corners, place = np.unique(box, axis=0, return_inverse=True)
    total = np.bincount(place.ravel(), weights=mass) / np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    shade = np.clip(total / np.percentile(total, SHOWN), 0.05, 1.0)
    a, b, c, d = corners.T
    squares = np.stack([[a, b], [c, b], [c, d], [a, d]]).transpose(2, 0, 1)
    ax.add_collection(PolyCollection(list(squares), facecolors=[(*to_rgb(colour), s) for s in shade], lw=0, label=name))


def draw_spectrum(ax: Any, density: InvariantDensity) -> None:
    """The leading eigenvalues, the circle of the mixing rate dashed."""
    t = np.linspace(0, 2 * np.pi, 361)
    ax.fill(np.cos(t), np.sin(t), color="grey", alpha=0.1, zorder=0)
    ax.plot(np.cos(t), np.sin(t), color="blue", lw=1, alpha=0.6, zorder=1)
    r = density.mixing_rate_
    ax.plot(r * np.cos(t), r * np.sin(t), "k--", lw=0.8, alpha=0.6, zorder=1)
    for k, w in enumerate(density.chain_.spectra):
        ax.scatter(np.real(w), np.imag(w), s=28, color=COLOURS[k % len(COLOURS)], zorder=3)
    ax.set(aspect="equal", xlabel="Re", ylabel="Im", title="spectrum; dashed: mixing rate")


def plot_almost_invariant(sets: AlmostInvariantSets) -> Any:
    """The sets in colours, and the eigenvalues whose gap tells their number."""
    from matplotlib.figure import Figure

    density = sets._density
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.4, 1])
    low, high = density.boxes_.bounds(density.transitions_.numbers)
    value = density.shares_ @ density.densities_
    for k in range(sets.count):
        held, colour = sets.labels == k, COLOURS[k % len(COLOURS)]
        name = f"set {k}: mass {sets.masses[k]:.2f}, stays with probability {sets.staying[k]:.4f}"
        if density.boxes_.dims == 1:
            left.bar(low[held, 0], value[held], (high - low)[held, 0], align="edge", color=colour, label=name)
        else:
            _rectangles(left, low[held], high[held], density.shares_ @ density.masses_[:, held], colour, name)
    left.autoscale_view()
    left.legend(fontsize=8)
    left.set(title="almost invariant sets", xlabel="$z_0$")
    right.plot(np.arange(1, len(sets.eigenvalues) + 1), sets.eigenvalues, "o-")
    right.axvline(sets.count + 0.5, color="k", ls="--", lw=0.8)
    right.set(xlabel="number", ylabel="eigenvalue of $R$", title="as many sets as eigenvalues before the gap")
    return figure
