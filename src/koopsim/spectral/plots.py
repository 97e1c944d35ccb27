"""Pictures: the spectrum as in the paper's Figure 2, and one page about a fitted EDMD.

J1 (eigenvalue 1) is red, J2 (-1) green, J3 (pairs on the circle) blue, the inside of the circle grey. Both
members of a conjugate pair look alike. matplotlib is imported when a picture is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .edmd import EDMD
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


def plot_edmd(model: EDMD, X: Any = None, inputs: Any = None, trust: float | None = None) -> Any:
    """Spectrum and residuals, leading modes, leading eigenfunctions, forecast against the trajectory X."""
    import matplotlib.pyplot as plt

    verdict = model.verdict(trust=trust)
    figure, axes = plt.subplots(2, 3, figsize=(15, 9), layout="constrained")
    _spectrum(axes[0, 0], verdict)
    _residuals(axes[0, 1], verdict)
    lead = _leading(model, 4)
    _modes(axes[0, 2], model, lead)
    if X is None:
        for ax in axes[1]:
            ax.set_axis_off()
        axes[1, 0].text(
            0, 0.9, "Give a trajectory to see eigenfunctions and a forecast.", transform=axes[1, 0].transAxes
        )
    else:
        Z = np.asarray(X, dtype=np.float64)
        _eigenfunctions(axes[1, 0], model, Z, inputs, lead)
        _forecast(axes[1, 1], model, Z, inputs)
        _forecast_error(axes[1, 2], model, Z, inputs)
    figure.suptitle(
        f"{verdict.case}  ({model.n_observables_} observables, "
        f"rank {model.rank_}, {model.n_samples_seen_} pairs, "
        f"fit residual {model.solution_.relative_residual:.1e})"
    )
    return figure


def _leading(model: EDMD, count: int) -> NDArray[np.intp]:
    """Eigenpairs to show: one of each conjugate pair, true ones (small residual) and slow ones first."""
    w, r = model.eigenvalues_, model.residuals_
    upper = np.flatnonzero(np.imag(w) >= -1e-12)
    cost = r[upper] + np.abs(1 - np.abs(w[upper])) + 1e3 * (r[upper] > 0.5)
    return upper[np.argsort(cost, kind="stable")[:count]]


def _name(w: complex) -> str:
    return f"$\\lambda$ = {w.real:.3f}" + (f" $\\pm$ {abs(w.imag):.3f}i" if abs(w.imag) > 1e-12 else "")


def _modes(ax: Any, model: EDMD, lead: NDArray[np.intp]) -> None:
    modes, d = np.abs(model.modes_[:, lead]), model.n_features_in_
    width = 0.8 / len(lead)
    for k, i in enumerate(lead):
        if d <= 20:
            ax.bar(
                np.arange(d) + (k - (len(lead) - 1) / 2) * width,
                modes[:, k],
                width,
                label=_name(complex(model.eigenvalues_[i])),
            )
        else:
            ax.plot(modes[:, k], label=_name(complex(model.eigenvalues_[i])))
    if d <= 20:
        ax.set_xticks(range(d), [f"$z_{{{j}}}$" for j in range(d)])
    ax.set(title="leading modes", ylabel="|mode|", ylim=(0, 1.45 * float(modes.max() or 1.0)))
    ax.legend(fontsize=8, loc="upper right")


def _eigenfunctions(ax: Any, model: EDMD, Z: NDArray, inputs: Any, lead: NDArray[np.intp]) -> None:
    g = model.eigenfunctions(Z, inputs)[:, lead]
    g = g / np.maximum(np.abs(g).max(axis=0), 1e-300)
    for k, i in enumerate(lead):
        ax.plot(g[:, k].real, lw=1.2, label=_name(complex(model.eigenvalues_[i])))
    ax.set(title="eigenfunctions along the trajectory", xlabel="step", ylabel="Re g, scaled", ylim=(-1.1, 1.9))
    ax.legend(fontsize=8, loc="upper right", ncols=2)


def _forecast(ax: Any, model: EDMD, Z: NDArray, inputs: Any) -> None:
    future = model.forecast(Z[0], len(Z) - 1, inputs=inputs)
    for j in range(min(4, Z.shape[1])):
        (line,) = ax.plot(Z[:, j], lw=3, alpha=0.35, label=f"$z_{{{j}}}$ truth")
        ax.plot(future[:, j], "--", lw=1.2, color=line.get_color(), label=f"$z_{{{j}}}$ forecast")
    low, high = float(Z.min()), float(Z.max())
    room = max(high - low, 1e-12)
    ax.set(title="forecast from the first state", xlabel="step", ylim=(low - 0.1 * room, high + 0.45 * room))
    ax.legend(fontsize=8, loc="upper right", ncols=2)


def _forecast_error(ax: Any, model: EDMD, Z: NDArray, inputs: Any) -> None:
    future = model.forecast(Z[0], len(Z) - 1, inputs=inputs)
    one = model.predict(Z[:-1], inputs)
    size = float(np.sqrt(np.mean(np.sum(Z**2, axis=1)))) or 1.0
    step = np.arange(1, len(Z))
    ax.semilogy(step, np.maximum(np.linalg.norm(future - Z, axis=1)[1:] / size, 1e-17), label="from the first state")
    ax.semilogy(step, np.maximum(np.linalg.norm(one - Z[1:], axis=1) / size, 1e-17), label="one step ahead")
    ax.set(title="forecast error, relative", xlabel="step")
    ax.legend(fontsize=8)
