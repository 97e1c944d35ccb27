"""The set an iteration ends in, seen from several starts: points, a cycle, or a density.

    z_l -> S,  f(S, x) = S         paper, section 3.2, cases (ii) and (iii); its density: section 3.3

The late half of each run is what is looked at. Where every run stands still the set is the points they stand at, one
for each branch. Elsewhere it has an invariant density, in the two directions that carry most of the motion: as many
ergodic components as there are sets that no run leaves, each with its mixing rate, and its period where it is a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koopsim.bridge.principal import principal
from koopsim.errors import KoopsimError
from koopsim.spectral import InvariantDensity, invariant_density

Array = NDArray[Any]
STILL = 1e-5  # a run that moves by less than this share of its size stands still
SAME = 1e-2  # points closer than this share of the states' size are one
DIMS = 2


@dataclass(frozen=True)
class InvariantSet:
    """What one input's runs end in. `states` are the late ones, a run each, in at most two directions."""

    kind: str  # "point", "points", "cycle", "moving" or "none"
    components: int  # points, or ergodic components
    period: int  # 1 where there is none, or none that the boxes tell
    mixing_rate: float | None
    states: list[Array]
    density: InvariantDensity | None

    def __str__(self) -> str:
        if self.kind == "none":
            return "none: every run blew up"
        if self.density is None:
            return "a point" if self.components == 1 else f"{self.components} points: the start decides which"
        what = f"a cycle of {self.period}" if self.period > 1 else "a moving set"
        many = "" if self.components == 1 else f", {self.components} of them: the start decides which"
        rate = "does not mix" if self.period > 1 else f"second eigenvalue {self.mixing_rate:.3f}"
        return f"{what}{many} ({rate}, {len(self.density.transitions_.numbers)} boxes)"

    def to_dict(self) -> dict[str, Any]:
        values = {"components": self.components, "period": self.period, "mixing_rate": self.mixing_rate}
        return {"kind": self.kind, **values}


def set_of(states: Array, boxes: int | None = None) -> InvariantSet:
    """The set from the runs (starts, steps + 1, D) of one input."""
    if states.ndim != 3 or states.shape[1] < 8:
        raise KoopsimError(f"Runs are (starts, steps, state size) with 8 steps or more; got {states.shape}.")
    fine = [z for z in states if np.all(np.isfinite(z)) and np.abs(z).max() < 1e30]
    late = [z[len(z) // 2 :] for z in fine]
    if not late:
        return InvariantSet("none", 0, 1, None, [], None)
    size = max(float(np.abs(z).max()) for z in late) or 1.0
    mean, P = principal(np.concatenate(late), DIMS)
    flat = [(z - mean) @ P for z in late]
    if all(float(np.ptp(z, axis=0).max()) <= STILL * size for z in late):
        ends: list[Array] = []
        for z in late:
            if all(np.abs(z[-1] - e).max() > SAME * size for e in ends):
                ends.append(z[-1])
        return InvariantSet("point" if len(ends) == 1 else "points", len(ends), 1, None, flat, None)
    density = _density(flat, boxes)
    period = max(density.periods_)
    rate = density.mixing_rate_
    return InvariantSet("cycle" if period > 1 else "moving", density.n_components_, period, rate, flat, density)


def _density(flat: list[Array], boxes: int | None) -> InvariantDensity:
    """Fewer and fewer boxes, until the runs come back to them."""
    count = sum(len(z) for z in flat)
    sides = boxes or max(4, round(2 * count ** (1 / (flat[0].shape[1] + 2))))
    while True:
        try:
            return invariant_density(flat, boxes=sides, weights="counts")
        except ValueError:
            if sides <= 2:
                raise
            sides = max(2, sides // 2)


def plot_sets(sets: list[InvariantSet], titles: list[str]) -> Any:
    """A panel an input, six at most: the density in one dimension, the late states in two."""
    from matplotlib.figure import Figure

    from koopsim.spectral.density_plots import COLOURS, draw_density

    shown = list(zip(sets, titles, strict=True))[:6]
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained")
    for ax, (found, title) in zip(figure.subplots(rows, columns, squeeze=False).ravel(), shown, strict=False):
        if found.density is not None and found.density.boxes_.dims == 1:
            draw_density(ax, found.density)
        else:
            for k, z in enumerate(found.states):
                ax.plot(z[:, 0], z[:, -1] * (z.shape[1] > 1), ".", ms=3, color=COLOURS[k % len(COLOURS)])
            ax.set(xlabel="first direction", ylabel="second direction")
        ax.set_title(f"{title}: {str(found).split(' (')[0]}", fontsize=9)
    return figure
