"""Invariant densities: where a system spends its time.

    P p = p                                   paper, section 3.3: the eigenvalue 1 of the Perron-Frobenius operator

There are as many invariant densities as ergodic components; each is constant on boxes here (Ulam, `ulam.py`), found as
the stationary law of a sparse Markov chain (`markov.py`). The next eigenvalue is the mixing rate: how much of a density
that is not invariant is left after a step. Almost every start of a component has the time averages of its density
(Birkhoff), whether or not its states ever settle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from .boxes import Boxes, boxes_of
from .markov import MarkovChain, closed_classes, markov_chain, scaled_rows
from .ulam import Transitions, Weights, going_on, is_a_map, pairs_of, transitions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .almost_invariant import AlmostInvariantSets

Array = NDArray[Any]
UNSEEN = 3.0  # events a number of them may have of which none was seen, at 95%: -log 0.05
FEWEST = 10  # pairs that must be seen to stay in a set of boxes before it counts as one that is never left


@dataclass(frozen=True)
class InvariantDensity:
    """Densities, their number and how fast they are reached; `print` shows a summary."""

    transitions_: Transitions
    chain_: MarkovChain
    weights_: Weights  # how samples were weighed: by their cells, or counted

    @property
    def boxes_(self) -> Boxes:
        return self.transitions_.boxes

    @property
    def n_components_(self) -> int:
        """How many ergodic components there are."""
        return len(self.chain_.classes)

    @property
    def masses_(self) -> Array:
        """(components, boxes seen): the probability of each box; rows sum to 1."""
        return self.chain_.laws

    @cached_property
    def densities_(self) -> Array:
        """(components, boxes seen): the density in each box; `evaluate` gives it at points."""
        return self.masses_ / self.boxes_.volumes(self.transitions_.numbers)

    @cached_property
    def shares_(self) -> Array:
        """The share of the samples that lies in each component; what is left was on its way."""
        samples = self.transitions_.samples
        return np.array([samples[states].sum() for states in self.chain_.classes]) / samples.sum()

    @property
    def periods_(self) -> tuple[int, ...]:
        """How many sets each component's boxes are visited in turn in; 1 where there is no such cycle."""
        return self.chain_.periods

    @property
    def eigenvalues_(self) -> Array:
        """The leading eigenvalues of all components, the ones first."""
        w = self.chain_.spectra
        rest = np.concatenate([s[1:] for s in w])
        return np.concatenate([[s[0] for s in w], rest[np.argsort(-np.abs(rest), kind="stable")]])

    @property
    def mixing_rates_(self) -> Array:
        """Of each component: the modulus of its second eigenvalue."""
        return self.chain_.mixing_rates

    @property
    def mixing_rate_(self) -> float:
        """Of the slowest component: densities tend to theirs like this to the power l; 1 where one never does."""
        return float(self.mixing_rates_.max())

    @property
    def leak_(self) -> Array:
        """For each component the probability a step of leaving it that its samples cannot exclude at 95%: 3 / n."""
        samples = self.transitions_.samples
        return np.array([UNSEEN / max(UNSEEN, samples[states].sum()) for states in self.chain_.classes])

    def evaluate(self, points: Any) -> Array:
        """(components, points): each component's density at the points, zero where none was ever seen."""
        return self._at(points, self.densities_, 0.0)

    def basins(self, points: Any) -> Array:
        """(components, points): the probability of ending in each component; nan where nothing was ever seen."""
        return self._at(points, self.chain_.absorption(), np.nan)

    def average(self, observable: Callable[[Array], Any], depth: int = 3) -> Array:
        """(components, ...): long-time averages of a function of (m, d) states, by `depth` Gauss nodes along a box."""
        low, high = self.boxes_.bounds(self.transitions_.numbers)
        nodes, w = np.polynomial.legendre.leggauss(depth)
        d = low.shape[1]
        grid = np.stack([g.ravel() for g in np.meshgrid(*[nodes] * d, indexing="ij")], axis=1)
        weight = np.prod(np.stack([g.ravel() for g in np.meshgrid(*[w / 2] * d, indexing="ij")]), axis=0)
        total = 0.0
        for node, share in zip(grid, weight, strict=True):
            total = total + share * _values(observable, (low + high) / 2 + node * (high - low) / 2)
        return np.tensordot(self.masses_, total, axes=1)

    def _at(self, points: Any, values: Array, outside: float) -> Array:
        Z = np.asarray(points, dtype=np.float64)
        d = self.boxes_.dims
        Z = Z.reshape(-1, 1) if d == 1 and Z.ndim <= 1 else np.atleast_2d(Z)
        if Z.ndim != 2 or Z.shape[1] != d:
            raise ValueError(f"points must be (points, {d}); got shape {np.shape(points)}")
        number = self.boxes_.number(Z)
        place = np.minimum(np.searchsorted(self.transitions_.numbers, number), len(self.transitions_.numbers) - 1)
        return np.where(self.transitions_.numbers[place] == number, values[:, place], outside)

    def almost_invariant_sets(self, count: int | None = None) -> AlmostInvariantSets:
        """Sets that are left rarely, from the next eigenvectors; `count` None: up to the widest gap between them."""
        from .almost_invariant import almost_invariant_sets

        return almost_invariant_sets(self, count)

    def plot(self) -> Figure:
        """The densities, and the spectrum of the operator against the unit circle."""
        from .density_plots import plot_density

        return plot_density(self)

    def __str__(self) -> str:
        number = "1 ergodic component" if self.n_components_ == 1 else f"{self.n_components_} ergodic components"
        lines = [f"{number} on {len(self.transitions_.numbers):,} boxes, {self.transitions_.samples.sum():,} pairs"]
        for k, (share, rate, period) in enumerate(zip(self.shares_, self.mixing_rates_, self.periods_, strict=True)):
            cycle = f"a cycle of {period} sets" if period > 1 else f"second eigenvalue {rate:.4g} in modulus"
            lines.append(f"  component {k}: {share:.1%} of the samples, {cycle}")
        if self.transitions_.lost > 0:
            lines.append(f"  {self.transitions_.lost:.2%} of the pairs leave the boxes or end where nothing goes on")
        return "\n".join(lines)


def invariant_density(
    trajectories: Any, boxes: int | Sequence[Any] | None = None, domain: Any = None, weights: Weights | None = None,
    count: int = 10,
) -> InvariantDensity:  # fmt: skip
    """The invariant densities of the system that made `trajectories`.

    trajectories  one (steps, dims), a list of them, or pairs: a tuple (Z, Z'), wherever the Z come from
    boxes         how many a coordinate, with edges at the quantiles of the states; or the edges themselves; None:
                  samples^0.6 in one dimension where the samples tell a map, else 3 samples^(1 / (dims + 2)) or less
    domain        (low, high): what leaves it is lost; None: as far as the states go
    weights       "cells" (one dimension) or "counts", see `ulam.py`; None: cells where the samples tell a map
    count         eigenvalues a component
    """
    Z, after = pairs_of(trajectories)
    if weights not in (None, "cells", "counts") or (weights == "cells" and Z.shape[1] != 1):
        raise ValueError(f"weights={weights!r}, {Z.shape[1]} coordinates: use 'counts', or 'cells' in one dimension")
    if count < 1:
        raise ValueError(f"count={count}; at least the eigenvalue 1 is needed")
    deterministic = (boxes is None or weights is None) and is_a_map(Z, after)
    sides = default_sides(len(Z), Z.shape[1], deterministic) if boxes is None else boxes
    weights = weights or ("cells" if deterministic else "counts")
    found = transitions(Z, after, boxes_of(np.concatenate([Z, after]), sides, domain), weights)
    found = without_accidents(found)
    return InvariantDensity(found, markov_chain(found.matrix, count), weights)


def without_accidents(found: Transitions) -> Transitions:
    """Closed sets of boxes that too few pairs were seen in are taken for leaks, not for components."""
    while small := [c for c in closed_classes(csr_matrix(found.matrix)) if found.samples[c].sum() < FEWEST]:
        kept = np.setdiff1d(np.arange(len(found.numbers)), np.concatenate(small))
        flow = csr_matrix(csr_matrix(found.matrix)[kept][:, kept])
        among, flow = going_on(flow)
        kept = kept[among]
        share = found.samples[kept].sum() / found.samples.sum()
        found = replace(
            found, numbers=found.numbers[kept], matrix=scaled_rows(flow), samples=found.samples[kept],
            lost=1 - (1 - found.lost) * share,
        )  # fmt: skip
    return found


def _values(observable: Callable[[Array], Any], states: Array) -> Array:
    """g of the states, a row each; a single number is the same for all."""
    if not callable(observable):
        raise ValueError(f"average takes a function of states (m, {states.shape[1]}); got {observable!r:.60}")
    found = np.asarray(observable(states))
    if found.dtype.kind not in "fiub" or (found.ndim and len(found) != len(states)):
        given = f"shape {found.shape} of {found.dtype}"
        raise ValueError(f"average needs real numbers, a row for each of {len(states)} states; g gave {given}")
    return found.astype(np.float64) if found.ndim else np.full(len(states), float(found))


def default_sides(m: int, d: int, deterministic: bool) -> int:
    """Boxes a coordinate: noise sqrt(boxes / m) against steps of height 1 / boxes, and ten samples a box or more."""
    if deterministic:
        return max(2, round(m**0.6))
    return max(2, round(min(3 * m ** (1 / (d + 2)), (m / 10) ** (1 / d))))
