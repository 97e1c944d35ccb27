"""From steps to time: rates, frequencies and the generator, in the user's units.

    mu = log(lambda) / dt = growth + 2 pi i frequency,      L = log(A) / dt,      exp(L dt) = A

Sampling shows frequencies up to 1 / (2 dt) only; faster ones appear as slower ones, and a real negative eigenvalue sits
exactly there. What decays within a step (lambda = 0) has no rate: it is -inf, and the generator does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import logm

if TYPE_CHECKING:
    from .edmd import EDMD

Array = Any  # of numbers; NumPy's stubs lose .real of an NDArray[Any]
ROUNDING = 1e-13  # a decay a step that is none
GONE = 1e-12  # an eigenvalue this small relative to the largest has no logarithm worth having


def rates(eigenvalues: Array, dt: float) -> Array:
    """log(lambda) / dt on the principal branch."""
    w = np.asarray(eigenvalues, dtype=complex)
    with np.errstate(divide="ignore"):
        return np.log(np.abs(w)) / dt + 1j * (np.angle(w) / dt)  # apart: -inf stays one


def logarithm(core: Array, dt: float) -> Array:
    """log(core) / dt; real if core is and no eigenvalue is on the negative half-axis."""
    w = np.linalg.eigvals(core)
    if np.abs(w).min() <= GONE * np.abs(w).max():
        raise ValueError(
            f"the Koopman matrix has an eigenvalue of {np.abs(w).min():.1e}, which has no logarithm; "
            "use a smaller rank, or a larger rtol"
        )
    found = np.asarray(logm(core)) / dt
    if np.iscomplexobj(core):
        return found
    turned = np.any((np.real(w) < 0) & (np.imag(w) == 0))  # LAPACK's real eigenvalues of a real matrix are so exactly
    return found if turned else np.real(found)


@dataclass(frozen=True)
class ModeTable:
    """One row a mode (a conjugate pair is one), the largest amplitude first."""

    eigenvalue: Array
    frequency: Array  # turns a unit of time, >= 0 for real data
    growth: Array  # e-folds a unit of time
    lifetime: Array  # until it is e times smaller; inf for what does not decay
    amplitude: Array  # root mean square of its part of the state along the trajectory
    residual: Array
    index: Array  # into eigenvalues_

    def __len__(self) -> int:
        return self.eigenvalue.size

    def __str__(self) -> str:
        return "\n".join(self.lines(len(self)))

    def lines(self, most: int = 10) -> list[str]:
        """A heading and at most `most` rows."""
        found = ["  frequency      growth    lifetime   amplitude    residual"]
        columns = self.frequency, self.growth, self.lifetime, self.amplitude, self.residual
        for row in list(zip(*columns, strict=True))[:most]:
            found.append(" ".join(f"{value:11.4g}" for value in row))
        if len(self) > most:
            found.append(f"  ... and {len(self) - most} more")
        return found

    def to_dict(self) -> list[dict[str, float | None]]:
        """Rows for JSON; an infinite lifetime is None."""
        names = "frequency", "growth", "lifetime", "amplitude", "residual"
        rows = []
        for i, w in enumerate(self.eigenvalue):
            values = {name: float(getattr(self, name)[i]) for name in names}
            row: dict[str, float | None] = {k: v if np.isfinite(v) else None for k, v in values.items()}
            rows.append({"real": float(w.real), "imag": float(w.imag), **row})
        return rows


def mode_table(model: EDMD, X: Any = None, inputs: Any = None) -> ModeTable:
    """Of each mode: frequency, growth, lifetime, amplitude along X (without X: of the samples fitted) and residual."""
    w, modes = model.eigenvalues_, model.modes_
    largest = float(np.abs(modes).max(initial=0.0)) or 1.0  # squares of 1e-200 would vanish
    size = largest * np.linalg.norm(modes / largest, axis=0)
    if X is None:  # psi is orthonormal over the samples, so E|g_i|^2 = |v_i|^2 = 1
        part = size * np.linalg.norm(model._spectrum[1], axis=0)
    else:
        g = model.eigenfunctions(X, inputs)
        part = size * np.sqrt(np.mean(np.abs(g) ** 2, axis=0))
    mates = _mates(w) if not np.iscomplexobj(model.solution_.core) else np.arange(w.size)
    shown = np.flatnonzero(mates >= np.arange(w.size))
    paired = mates[shown] != shown
    amplitude = np.where(paired, 2.0, 1.0) * part[shown]  # the two of a pair add up to one real motion
    mu = rates(w[shown], model.dt)
    frequency = np.imag(mu) / (2 * np.pi)
    frequency = np.where(paired, np.abs(frequency), frequency)
    growth = np.real(mu)
    decays = growth * model.dt < -ROUNDING
    lifetime = np.where(decays, -1 / np.where(decays, growth, -1.0), np.inf)
    order = np.argsort(-amplitude, kind="stable")
    columns = w[shown], frequency, growth, lifetime, amplitude, model.residuals_[shown], shown
    return ModeTable(*(column[order] for column in columns))


def _mates(w: Array) -> Array:
    """For each eigenvalue the index of its conjugate (its own if it is real)."""
    mates = np.arange(w.size)
    upper, lower = np.flatnonzero(np.imag(w) > 0), np.flatnonzero(np.imag(w) < 0)
    for i in upper:
        if lower.size:
            j = lower[np.argmin(np.abs(w[lower] - w[i].conj()))]
            mates[i], mates[j] = max(i, j), min(i, j)
            lower = lower[lower != j]
    return mates
