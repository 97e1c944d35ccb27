"""Pictures: the spectrum as in the paper's Figure 2 (a page about a fitted EDMD is in `summary.py`).

J1 (eigenvalue 1) is red, J2 (-1) green, J3 (pairs on the circle) blue, the inside of the circle grey. Both
members of a conjugate pair look alike. matplotlib is imported when a picture is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .verdict import Verdict

COLOURS = {
    "J1": "red",
    "J2": "green",
    "J3": "blue",
    "outside": "black",
    "unclear": "darkorange",
    "inside": "dimgrey",
}
LABELS = {
    "J1": "$J_1$: 1",
    "J2": "$J_2$: $-1$",
    "J3": "$J_3$: rotating",
    "outside": "outside, or defective",
    "unclear": "undecided",
    "inside": "inside",
}


def groups(verdict: Verdict) -> NDArray[np.str_]:
    """The name in COLOURS of each eigenvalue."""
    kind = np.where(np.abs(verdict.eigenvalues) > 1, "outside", "inside").astype("<U8")
    for p in verdict.projectors:
        name = {"unclear": "unclear", "defective": "outside", "outside": "outside"}.get(p.kind)
        if name:
            kind[list(p.indices)] = name
    kind[list(verdict.fixed)] = "J1"
    if verdict.constant is not None:
        kind[verdict.constant] = "J1"
    kind[list(verdict.flipping)] = "J2"
    for r in verdict.rotating:
        kind[list(r.indices)] = "J3"
    return kind


def plot_verdict(verdict: Verdict, ax: Any = None) -> Any:
    """Spectrum, a zoom of the circle's neighbourhood (log distance against angle), residuals."""
    import matplotlib.pyplot as plt

    if ax is not None:
        _spectrum(ax, verdict)
        return ax.figure
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 5), layout="constrained", width_ratios=[1.1, 1, 1])
    _spectrum(left, verdict)
    _zoom(middle, verdict)
    _residuals(right, verdict)
    figure.suptitle(f"{verdict.case}   ({verdict.eigenvalues.size} eigenvalues, noise {verdict.noise:.0e})")
    return figure


def _scatter(ax: Any, verdict: Verdict, x: NDArray, y: NDArray) -> None:
    kind = groups(verdict)
    for name in ("inside", "outside", "unclear", "J3", "J2", "J1"):
        chosen = kind == name
        if chosen.any():
            ax.scatter(
                x[chosen],
                y[chosen],
                s=36,
                c=COLOURS[name],
                label=f"{LABELS[name]} ({chosen.sum()})",
                alpha=0.85,
                linewidths=0.5,
                edgecolors="white",
                zorder=3,
            )


def _spectrum(ax: Any, verdict: Verdict) -> None:
    w = verdict.eigenvalues
    t = np.linspace(0, 2 * np.pi, 361)
    ax.fill(np.cos(t), np.sin(t), color="grey", alpha=0.1, zorder=0)
    ax.plot(np.cos(t), np.sin(t), color="blue", lw=1, alpha=0.6, zorder=1)
    ax.axhline(0, color="black", lw=0.5, zorder=1)
    ax.axvline(0, color="black", lw=0.5, zorder=1)
    _scatter(ax, verdict, np.real(w), np.imag(w))
    reach = 1.15 * max(1.0, float(np.abs(w).max()))
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="Re", ylabel="Im", title="spectrum")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize=8, ncols=3, frameon=False)


def _zoom(ax: Any, verdict: Verdict) -> None:
    """Distance to the circle on a scale that shows 1e-16 and 1e-1 alike, inside below and outside above."""
    w = verdict.eigenvalues
    floor = 1e-16
    gap = np.abs(w) - 1
    height = np.sign(gap) * np.maximum(0, np.log10(np.maximum(np.abs(gap), floor)) + 16)
    near = np.abs(gap) < 0.5
    shown = near if near.any() else np.ones(w.size, dtype=bool)
    ax.axhspan(-16.5, 0, color="grey", alpha=0.1)
    ax.axhline(0, color="blue", lw=1, alpha=0.6)
    _scatter(ax, verdict, np.where(shown, np.angle(w) / np.pi, np.nan), np.where(shown, height, np.nan))
    ticks = [-15, -12, -8, -4, 0, 4, 8, 12, 15]
    ax.set_yticks(ticks, [f"$1{'+' if t > 0 else '-'}10^{{{abs(t) - 16}}}$" if t else "1" for t in ticks])
    ax.set(
        xlim=(-1.08, 1.08),
        ylim=(-16.5, 16.5),
        xlabel="angle / $\\pi$",
        ylabel="modulus",
        title="near the circle",
    )


def _residuals(ax: Any, verdict: Verdict) -> None:
    if not verdict.residuals.size:
        ax.set_axis_off()
        return
    _scatter(ax, verdict, np.abs(verdict.eigenvalues), np.maximum(verdict.residuals, 2e-17))  # zero is shown too
    ax.axvline(1, color="blue", lw=1, alpha=0.6)
    ax.set(yscale="log", xlabel="modulus", ylabel="residual of the eigenpair", title="residuals")
    ax.set_ylim(min(1e-17, verdict.residuals.min() / 3 or 1e-17), max(1.0, verdict.residuals.max() * 3))
