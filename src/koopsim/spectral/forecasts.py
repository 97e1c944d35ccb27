"""A trajectory beyond its end, with what forecasts of the same length were off by.

z(h) +- 2 e(h),     e(h) the root mean square error h steps ahead, on samples that were held back (`horizon.py`)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone

from .edmd import EDMD
from .observations import Observations
from .optimised_dmd import OptimisedDMD

Array = Any  # of numbers; NumPy's stubs lose .real of an NDArray[Any]
MOST_MODES = 12
BAGS = 40
LINES = 6  # that are shown of a forecast in words
STATES = 4  # that are shown of them
WAVES = 4  # states that get two exponentials each,
SAMPLES = 4  # if there are so many samples for each
BAND = 2  # standard errors on either side


@dataclass(frozen=True)
class Forecast:
    """`values` at `times`, `errors` one standard error each; `past` is what went before, `origin` which that was."""

    times: Array
    values: Array
    errors: Array
    past_times: Array
    past: Array
    names: tuple[str, ...]
    said: tuple[str, ...]
    origin: dict[str, Any] = field(default_factory=dict)

    def rows(self) -> list[list[Any]]:
        """A heading, and a line a time: the value of each state, and how far below and above it may be."""
        head = ["time"] + [part for name in self.names for part in (name, f"{name}_low", f"{name}_high")]
        low, high = self.values - BAND * self.errors, self.values + BAND * self.errors
        body = np.stack([self.values, low, high], axis=2).reshape(len(self.times), -1)
        return [head, *np.column_stack([self.times, body]).tolist()]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: an error that is not known is None."""
        errors = [[float(e) if np.isfinite(e) else None for e in row] for row in self.errors]
        return {
            "times": self.times.tolist(), "names": list(self.names), "values": self.values.tolist(),
            "errors": errors, "said": list(self.said), "from": self.origin,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """A few of them, in words."""
        shown = np.unique(np.linspace(0, len(self.times) - 1, min(LINES, len(self.times))).astype(int))
        few = list(range(min(STATES, len(self.names))))
        found = ["        time " + "".join(f"{self.names[j][:20]:>24}" for j in few)]
        for i in shown:
            cells = [f"{self.values[i, j]:.5g} +- {BAND * self.errors[i, j]:.2g}" for j in few]
            found.append(f"{self.times[i]:12.6g} " + "".join(f"{cell:>24}" for cell in cells))
        more = [f"... and {len(self.names) - STATES} more states"] if len(self.names) > STATES else []
        return [*found, *more, *self.said]

    def plot(self) -> Any:
        """The past, the forecast and its band, a panel a state."""
        import matplotlib.pyplot as plt

        shown = np.sort(np.argsort(-self.past.std(axis=0), kind="stable")[:4])
        size = (10, 2.2 * len(shown) + 0.8)
        figure, axes = plt.subplots(len(shown), 1, figsize=size, layout="constrained", squeeze=False)
        for ax, j in zip(axes[:, 0], shown, strict=True):
            low, high = float(self.past[:, j].min()), float(self.past[:, j].max())
            room = max(high - low, 1e-12)
            ax.plot(self.past_times, self.past[:, j], color="C0", lw=1.2)
            ax.plot(self.times, self.values[:, j], color="C1", lw=1.5)
            bounds = self.values[:, j] - BAND * self.errors[:, j], self.values[:, j] + BAND * self.errors[:, j]
            ax.fill_between(self.times, *np.clip(bounds, low - 2 * room, high + 2 * room), color="C1", alpha=0.25, lw=0)
            ax.axvline(self.past_times[-1], color="black", lw=0.8)
            ax.set_ylabel(self.names[j])
        axes[-1, 0].set_xlabel("time")
        figure.suptitle("; ".join(self.said), fontsize=9)
        return figure


def forecast_by_edmd(seen: Observations, steps: int, model: EDMD, held_back: float) -> Forecast:
    """`model` was fitted to everything; a copy of it, fitted without the last share, measures the errors."""
    i = seen.latest
    Z, u = seen.pieces[i], None if seen.control is None else seen.control[i]
    future = None if u is None else np.repeat(u[-1:], steps, axis=0)
    past = getattr(model.dictionary_, "history", 0)
    if len(Z) <= past:
        raise ValueError(
            f"the last piece has {len(Z)} samples, after a gap; {past} delays look at {past + 1}: with --delays "
            f"{len(Z) - 1} the forecast can go on from it"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        values = model.forecast(Z if past else Z[-1], steps, control=future)[1:]
    errors, said = _errors(seen, steps, model, held_back)
    if u is not None:
        said += ("the control keeps its last value",)
    return _made(seen, values, errors, said)


def _errors(seen: Observations, steps: int, model: EDMD, held_back: float) -> tuple[Array, tuple[str, ...]]:
    i, past = seen.longest, getattr(model.dictionary_, "history", 0)
    Z, control = seen.pieces[i], seen.control
    cut = int((1 - held_back) * len(Z))
    back = cut - past  # below zero nothing can be fitted
    try:
        long = [k for k, piece in enumerate(seen.pieces) if len(piece) > past + 1]
        steering = control and [control[k][:cut] if k == i else control[k] for k in long]
        apart: Any = clone(model)
        apart.fit([seen.pieces[k][:cut] if k == i else seen.pieces[k] for k in long], control=steering)
        found = apart.forecast_errors(Z[back:], steps, control=control and control[i][back:])[1:]
        of_which = " of the longest piece" if len(seen.pieces) > 1 else ""
        said = f"errors as on the last {len(Z) - cut} samples{of_which}, held back"
        if not np.isfinite(found[0]).all():
            raise ValueError("none measured")
    except ValueError:  # too short to hold anything back
        found = model.forecast_errors(Z, steps, control=control and control[i])[1:]
        said = "errors as along the samples that were fitted: too few to hold any back"
    measured = int(np.isfinite(found).all(axis=1).sum())
    if measured < steps:  # no forecast of that length had a known end: at least as far off as the longest that had
        found[measured:] = np.nanmax(found, axis=0)
        said += f"; beyond {measured} steps they are at least so large"
    return found, (said,)


def forecast_by_exponentials(seen: Observations, steps: int, modes: int | None) -> Forecast:
    """Optimised DMD of all pieces of the latest trajectory; errors are the spread over the bags and what the fit left
    over. Gaps are no trouble to exponentials."""
    of, last = seen.trajectories, seen.latest
    own = [k for k in range(len(of)) if of[k] == of[last]]
    Z = np.concatenate([seen.pieces[k] for k in own])
    t = np.concatenate([seen.starts[k] + seen.dt * np.arange(len(seen.pieces[k])) for k in own])
    count = min(MOST_MODES, 2 * min(Z.shape[1], WAVES), max(1, len(Z) // SAMPLES)) if modes is None else modes
    model = OptimisedDMD(count, bags=BAGS).fit(Z, times=t)
    with np.errstate(over="ignore", invalid="ignore"):
        values, spread = model.forecast(t[-1] + seen.dt * np.arange(1, steps + 1))
    left = np.sqrt(np.mean(np.abs(Z - model.predict(t)) ** 2, axis=0))
    both = zip(model.rates_, model.rates_std_, strict=True)
    rates = ", ".join(f"{mu.real:+.4g} {mu.imag:+.4g}i (+- {s:.1g})" for mu, s in both)
    return _made(seen, values, np.hypot(spread, left), (f"optimised DMD, rates {rates}",))


def _made(seen: Observations, values: Array, errors: Array, said: tuple[str, ...]) -> Forecast:
    i, past, names = seen.latest, seen.pieces[seen.latest], seen.names
    lost = ~np.isfinite(values).all(axis=1)
    if lost.any():
        first = int(lost.argmax())
        raise ValueError(
            f"the forecast grows beyond every number from step {first + 1} of {len(values)} on; ask for fewer --steps"
        )
    if np.iscomplexobj(past):
        past, values, errors = (_parts(rows) for rows in (past, values, errors + 1j * errors))
        names = tuple(part for name in names for part in (f"{name}.re", f"{name}.im"))
    t = seen.starts[i] + seen.dt * np.arange(len(past) + len(values))
    origin, words = _origin(seen)
    return Forecast(t[len(past) :], np.real(values), errors, t[: len(past)], past, names, (*words, *said), origin)


def _parts(rows: Array) -> Array:
    """(n, 2 d): real and imaginary parts side by side."""
    return np.stack([rows.real, rows.imag], axis=2).reshape(len(rows), -1)


def _origin(seen: Observations) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Which samples the forecast goes on from; in words where there is a choice."""
    i, of = seen.latest, seen.trajectories
    n, count = len(seen.pieces[i]), len(set(of))
    end = seen.starts[i] + seen.dt * (n - 1)
    origin = {"trajectory": of[i] + 1, "trajectories": count, "samples": n, "time": end}
    if len(of) == 1:
        return origin, ()
    which = f"trajectory {of[i] + 1} of {count}" if count > 1 else "the last piece"
    return origin, (f"goes on from {which}: {n} samples up to time {end:.6g}",)
