"""One page about a fitted EDMD, for a paper: spectrum, rates, modes, reconstruction, forecast and how far it holds.

Modes are drawn as real and imaginary part: the modulus alone makes a travelling wave flat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .delays import Delays
from .horizon import forecast_errors
from .plots import _spectrum

if TYPE_CHECKING:
    from .continuous import ModeTable
    from .edmd import EDMD

Array = Any  # of numbers; NumPy's stubs lose .real of an NDArray[Any]
SHOWN = 3  # modes and states that are drawn
WEAK = 1e-3  # modes below this share of the largest amplitude are not
AHEAD = 0.25  # of the trajectory's length is forecast beyond its end
FEW = 20  # states up to which bars are drawn instead of lines


def plot_edmd(model: EDMD, X: Any = None, inputs: Any = None, trust: float | None = None, control: Any = None) -> Any:
    """The page; without a trajectory X its lower row says so."""
    import matplotlib.pyplot as plt

    verdict = model.verdict(trust=trust)
    Z = None if X is None else np.asarray(X)
    table = model.mode_table(Z, inputs)
    figure, axes = plt.subplots(2, 3, figsize=(15, 8.5), layout="constrained")
    _spectrum(axes[0, 0], verdict)
    _rates(figure, axes[0, 1], table)
    _modes(axes[0, 2], model, table)
    if Z is None:
        for ax in axes[1]:
            ax.set_axis_off()
        axes[1, 0].text(0, 0.9, "Give a trajectory to see it rebuilt and forecast.", transform=axes[1, 0].transAxes)
    else:
        Z = Z[:, None] if Z.ndim == 1 else Z
        _reconstruction(axes[1, 0], model, table, Z, inputs)
        _forecast(axes[1, 1], model, Z, inputs, control)
        _horizon(axes[1, 2], model, Z, inputs, control)
    figure.suptitle(
        f"{verdict.case}   ({model.n_observables_} observables, rank {model.rank_}, {model.n_samples_seen_} pairs, "
        f"misfit {model.solution_.relative_residual:.1e})"
    )
    return figure


def _name(table: ModeTable, i: int) -> str:
    return f"f = {table.frequency[i]:.4g}, growth {table.growth[i]:+.3g}"


def _rates(figure: Any, ax: Any, table: ModeTable) -> None:
    """Growth against frequency, the size of a point by amplitude, its colour by residual."""
    from matplotlib.colors import LogNorm

    finite = np.isfinite(table.growth)
    size = table.amplitude / (table.amplitude.max() or 1.0)
    points = ax.scatter(
        table.frequency[finite], table.growth[finite], s=25 + 300 * size[finite], alpha=0.8,
        c=np.clip(table.residual[finite], 1e-12, 1.0), cmap="viridis", norm=LogNorm(1e-12, 1.0), edgecolors="white",
    )  # fmt: skip
    ax.axhline(0, color="blue", lw=1, alpha=0.6)
    ax.set(xlabel="frequency (turns a unit of time)", ylabel="growth rate", title="growth and frequency")
    strong = finite & (size > 1e-3)
    if strong.any():
        low, high = min(0.0, float(table.growth[strong].min())), max(0.0, float(table.growth[strong].max()))
        room = 0.15 * max(high - low, 1e-9)
        ax.set_ylim(low - room, high + room)  # modes without an amplitude may be anywhere
    figure.colorbar(points, ax=ax, label="residual", fraction=0.05)


def _modes(ax: Any, model: EDMD, table: ModeTable) -> None:
    seen = int(np.sum(table.amplitude >= WEAK * table.amplitude.max(initial=0.0)))  # others are noise to the eye
    d, lead = model.n_features_in_, range(min(SHOWN, max(1, seen)))
    modes = model.modes_[:, table.index[: len(lead)]]
    peak = np.abs(modes).argmax(axis=0)
    turn = np.exp(-1j * np.angle(modes[peak, np.arange(len(lead))]))
    modes = modes * turn / np.maximum(np.abs(modes).max(axis=0), 1e-300)  # real and 1 where it is largest
    for k in lead:
        colour = f"C{k}"
        if d <= FEW:
            place = np.arange(d) + (k - (len(lead) - 1) / 2) * 0.8 / len(lead)
            ax.bar(place - 0.1 / len(lead), modes[:, k].real, 0.35 / len(lead), color=colour, label=_name(table, k))
            ax.bar(place + 0.25 / len(lead), modes[:, k].imag, 0.35 / len(lead), color=colour, alpha=0.35)
        else:
            ax.plot(modes[:, k].real, color=colour, lw=1.4, label=_name(table, k))
            ax.plot(modes[:, k].imag, color=colour, lw=1.0, ls="--", alpha=0.7)
    if d <= FEW:
        ax.set_xticks(range(d), [f"$z_{{{j}}}$" for j in range(d)])
    ax.axhline(0, color="black", lw=0.5)
    ax.set(title=f"leading modes: real ({'dark' if d <= FEW else 'solid'}), imaginary "
                 f"({'light' if d <= FEW else 'dashed'})", ylim=(-1.15, 1.75))  # fmt: skip
    ax.legend(fontsize=8, loc="upper right")


def _states(Z: Array) -> list[int]:
    """Those that vary most, a few."""
    return sorted(np.argsort(-Z.real.std(axis=0), kind="stable")[:SHOWN].tolist())


def _times(model: EDMD, count: int, first: int = 0) -> Array:
    return model.dt * np.arange(first, first + count)


def _reconstruction(ax: Any, model: EDMD, table: ModeTable, Z: Array, inputs: Any) -> None:
    """sum over the leading modes of g_i(z) modes_i along the trajectory."""
    chosen = table.index[: 2 * SHOWN]
    if not np.iscomplexobj(model.solution_.core):
        w = model.eigenvalues_
        mates = [int(np.argmin(np.abs(w - w[i].conj()))) for i in chosen]
        chosen = np.unique(np.r_[chosen, mates])
    rebuilt = np.real(model.eigenfunctions(Z, inputs)[:, chosen] @ model.modes_[:, chosen].T)
    past = len(Z) - len(rebuilt)
    for j in _states(Z):
        (line,) = ax.plot(_times(model, len(Z)), Z[:, j].real, lw=3, alpha=0.35)
        t, colour = _times(model, len(rebuilt), past), line.get_color()
        ax.plot(t, rebuilt[:, j], "--", lw=1.2, color=colour, label=f"$z_{{{j}}}$")
    off = np.linalg.norm(rebuilt - Z[past:].real) / (np.linalg.norm(Z[past:].real) or 1.0)
    ax.set(title=f"rebuilt from {len(chosen)} modes (dashed), off by {off:.1%}", xlabel="time")
    ax.legend(fontsize=8, loc="upper right")


def _forecast(ax: Any, model: EDMD, Z: Array, inputs: Any, control: Any) -> None:
    """Beyond the end of the trajectory, with twice the error that forecasts of this length had along it."""
    steps = max(2, int(AHEAD * len(Z)))
    start = Z if isinstance(model.dictionary_, Delays) else Z[-1]
    held = None if control is None else np.repeat(np.atleast_2d(np.asarray(control)[-1:]), steps, axis=0)
    fixed = None if inputs is None else np.asarray(inputs)[-1:] if np.ndim(inputs) > 1 else inputs
    future = np.real(model.forecast(start, steps, inputs=fixed if start.ndim == 1 else inputs, control=held))
    error = forecast_errors(model, Z, steps, inputs, control)
    error = np.where(np.isnan(error), np.nanmax(error, axis=0), error)
    t, behind = _times(model, steps + 1, len(Z) - 1), _times(model, len(Z))
    low, high = float(Z.real.min()), float(Z.real.max())
    room = max(high - low, 1e-12)
    for j in _states(Z):
        (line,) = ax.plot(behind[-3 * steps :], Z[-3 * steps :, j].real, lw=1.5)
        ax.plot(t, future[:, j], "--", lw=1.5, color=line.get_color(), label=f"$z_{{{j}}}$")
        band = np.clip([future[:, j] - 2 * error[:, j], future[:, j] + 2 * error[:, j]], low - room, high + room)
        ax.fill_between(t, *band, color=line.get_color(), alpha=0.2, lw=0)
    ax.axvline(t[0], color="black", lw=0.8)
    ax.set(title="forecast (dashed) $\\pm$ 2 errors", xlabel="time", ylim=(low - 0.2 * room, high + 0.4 * room))
    ax.legend(fontsize=8, loc="upper right")


def _horizon(ax: Any, model: EDMD, Z: Array, inputs: Any, control: Any) -> None:
    steps = max(2, min(len(Z) // 2, 500))
    size = float(np.linalg.norm(Z - Z.mean(axis=0)) / np.sqrt(len(Z))) or 1.0
    error = np.linalg.norm(forecast_errors(model, Z, steps, inputs, control), axis=1)[1:] / size
    still = [np.linalg.norm(Z[h:] - Z[:-h]) / np.sqrt(len(Z) - h) / size for h in range(1, steps + 1)]
    t = _times(model, steps, 1)
    ax.semilogy(t, np.maximum(error, 1e-17), label="EDMD")
    ax.semilogy(t, np.maximum(still, 1e-17), color="grey", lw=1, label="if nothing changed")
    ax.axhline(1, color="black", lw=0.5, ls=":")
    ax.set(title="error of forecasts along the trajectory, relative", xlabel="ahead by")
    ax.legend(fontsize=8)
