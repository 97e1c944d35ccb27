"""The samples of a fit, through its dictionary: lifted in blocks and folded into one triangle.

    z_l, z_{l+1}  ->  phi(z_l), phi(z_{l+1})  ->  R of their QR factorisation  ->  Koopman's matrix (`regression.py`)

A fit keeps its samples as they were given, so that R need hold no more than phi(X): what phi(Y) leaves over is measured
on the samples when it is asked for. A stream keeps all of R, and no sample. Where there are fewer samples than
observables, only the directions which the samples span are fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone

from .dictionary import Identity, Monomials
from .factor import Columns, gram_matrix, root
from .regression import ColumnLayout, Settings, Solution, Triangle, solve
from .snapshots import row_space
from .trajectories import LiftedPairs, Stretch, lifted_pairs, lifted_runs

Array = NDArray[Any]  # float64, or complex128 for complex states
ENTRIES = 2**23  # numbers in a block of lifted samples: 64 MB
TALL = 8  # such a block has at least so many times more rows than columns
CHANGED = 1e-3  # psi is orthonormal over the samples to this, unless they were changed


def unfitted(dictionary: Any) -> Any:
    """An unfitted copy, as scikit-learn does; things it cannot clone are used as they are."""
    return clone(dictionary) if isinstance(dictionary, BaseEstimator) else dictionary


class Lifted:
    """Samples through a dictionary, which is fitted to the first of them.

    states   how many numbers a state has     chunk    samples lifted at a time; None: as many as make 64 MB
    device   where torch does the products    basis    (N, n) the directions that are fitted, where these are not all
    """

    def __init__(self, dictionary: Any, X: list[Stretch], Y: list[Stretch], chunk: int | None, device: str | None):
        self.dictionary, self.states, self.device = dictionary, X[0].states.shape[1], device
        _fit(dictionary, X, Y)
        self.basis: Array | None = None
        self.samples: tuple[list[Stretch], list[Stretch]] | None = None  # as given, not copied
        self.triangle = Triangle(device)
        self.observables = self.lift(X[0].seen[:1]).shape[1]
        self.rows = chunk or max(ENTRIES // self.observables, TALL * self.observables)

    def take(self, X: list[Stretch], Y: list[Stretch]) -> None:
        """All samples of a fit: Y's are the second sides of pairs, or none."""
        self.triangle, self.samples = Triangle(self.device, leading=True), (X, Y)
        if sum(len(run.states) for run in X) < self.observables:
            self.basis = row_space(np.concatenate([self.lift(run.seen) for run in (*X, *Y)]))
        self._fold(X, Y)

    def add(self, X: list[Stretch], Y: list[Stretch]) -> None:
        """More samples of a stream."""
        if self.samples is not None:  # after a fit, room for more: all of R, of all observables
            self.triangle, self.basis = Triangle(self.device), None
            self._fold(*self.samples)
            self.samples = None
        self._fold(X, Y)

    def _fold(self, X: list[Stretch], Y: list[Stretch]) -> None:
        for block in self.blocks(X, Y, self._coordinates, self.rows):
            lead = block.now if block.control is None else np.hstack([block.control, block.now])
            states = block.states if self.state_columns is None else np.empty((len(lead), 0))
            self.triangle.add(Columns(lead, block.after, states))

    @staticmethod
    def blocks(X: list[Stretch], Y: list[Stretch], lift: Any, rows: int) -> Iterator[LiftedPairs]:
        return lifted_pairs(X[0], Y[0].seen, lift, rows) if Y else lifted_runs(X, lift, rows)

    def lift(self, seen: Array) -> Array:
        """phi of what the dictionary sees."""
        if isinstance(self.dictionary, Identity):
            return np.asarray(seen, dtype=np.complex128 if np.iscomplexobj(seen) else np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            out = np.asarray(self.dictionary.transform(seen))
            out = out.astype(np.complex128 if np.iscomplexobj(out) else np.float64, copy=False)
            flat = out.ravel(order="K")
            if not np.isfinite(np.vdot(flat, flat)):  # one pass finds NaN, infinity, and what a fit cannot square
                raise ValueError(
                    "the dictionary gave NaN or infinity, or numbers too large to be squared; scale the states, or "
                    "lower its degree"
                )
        return out

    def _coordinates(self, seen: Array) -> Array:
        phi = self.lift(seen)
        return phi if self.basis is None else phi @ self.basis

    @property
    def state_columns(self) -> Array | None:
        """Where among the observables the states are, if they are known to be."""
        columns = getattr(self.dictionary, "state_columns_", None)
        return None if columns is None else columns[: self.states]

    def solved(self, ridge: float, rank: Any, rtol: float | None, controls: int) -> Solution:
        """Koopman's matrix in terms of all observables, whichever directions were fitted."""
        B, columns = self.basis, self.state_columns
        inside = columns if B is None or columns is None else np.empty(0, dtype=int)
        scaled = B is None and not isinstance(self.dictionary, Identity)
        where = ColumnLayout(controls, self.observables if B is None else B.shape[1], inside)
        settings = Settings(ridge, rank, rtol, scaled, self.observables)

        def misfit(down: Array, core: Array, control: Array) -> Array:
            return self._misfit(down, core, control, whitened=not controls and found.spectrum is None)

        found = solve(self.triangle, where, settings, misfit if self.triangle.leading else None)
        if B is not None:
            found = replace(found, up=found.up @ B.conj().T, down=B @ found.down)
            found = found if columns is None else replace(found, decode=found.up[:, columns])
        return found

    def _misfit(self, down: Array, core: Array, control: Array, whitened: bool) -> Array:
        """T with T^H T = E^H E / m, E = psi(Y) - psi(X) core - u control, on the samples that were fitted."""
        if self.samples is None:
            raise ValueError("residuals need the samples, or a model that was fed by partial_fit alone; fit again")
        G, size = np.zeros((len(core),) * 2, dtype=core.dtype), 0.0
        for block in self.blocks(*self.samples, self._coordinates, self.rows):
            psi = block.now @ down
            E = block.after @ down - psi @ core
            if block.control is not None:
                E -= block.control @ control
            G, size = G + gram_matrix(E), size + float(np.vdot(psi, psi).real)
        m, r = self.triangle.rows, len(core)
        if whitened and abs(size / m - r) > CHANGED * r:
            raise ValueError("the data were changed after fit(), which keeps no copy of them; fit again")
        return root(G) / np.sqrt(m)


def _fit(dictionary: Any, X: list[Stretch], Y: list[Stretch]) -> None:
    if hasattr(dictionary, "fit_pairs"):
        now, after = (X[0].seen, Y[0].seen) if Y else [
            np.concatenate([run.seen[cut] for run in X]) for cut in (slice(-1), slice(1, None))
        ]  # fmt: skip
        dictionary.fit_pairs(now, after)
        return
    both = [run.seen for run in (*X, *Y)]
    enough = len(both) == 1 or isinstance(dictionary, (Identity, Monomials))  # these look at the width alone
    dictionary.fit(both[0] if enough else np.concatenate(both))
