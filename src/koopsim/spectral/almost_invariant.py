"""Almost invariant sets: parts of the state space that are left rarely.

    R = (P + Phat) / 2,   Phat_ij = pi_j P_ji / pi_i (time reversed)       Froyland & Dellnitz 2003; Froyland 2005

R is symmetric in the pi-weighted product, so its eigenvalues are real: as many close to 1 as there are sets that hold
their mass for long, and there the eigenvectors are nearly constant on each set. The sets are read off them by k-means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags_array
from scipy.sparse.linalg import eigsh
from sklearn.cluster import KMeans

from .markov import DENSE, Sparse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .invariant_density import InvariantDensity

Array = NDArray[Any]
MOST = 10  # sets that are looked for where no number is given


@dataclass(frozen=True)
class AlmostInvariantSets:
    """`labels` is one number a box seen, -1 where the invariant density is zero."""

    labels: NDArray[np.intp]
    masses: Array  # of each set, under the invariant density
    staying: Array  # of each set: the probability that a state of it is still in it a step later
    eigenvalues: Array  # of R, largest first
    _density: Any

    @property
    def count(self) -> int:
        return len(self.masses)

    def assign(self, points: Any) -> NDArray[np.intp]:
        """The set that each point is in, -1 where nothing was seen."""
        return self._density._at(points, self.labels[None].astype(np.float64), -1.0)[0].astype(np.intp)

    def plot(self) -> Figure:
        """The sets in colours, and the eigenvalues whose gap tells their number."""
        from .density_plots import plot_almost_invariant

        return plot_almost_invariant(self)


def almost_invariant_sets(density: InvariantDensity, count: int | None = None) -> AlmostInvariantSets:
    """`count` sets, or as many as there are eigenvalues of R before the widest gap."""
    pi = density.shares_ @ density.masses_
    pi = pi / pi.sum()
    held = np.flatnonzero(pi > 0)
    if count is not None and not 1 <= count <= len(held):
        raise ValueError(f"count={count}; there are {len(held)} boxes to make sets of")
    P = csr_matrix(csr_matrix(density.transitions_.matrix)[held][:, held])
    root = np.sqrt(pi[held])
    M = diags_array(root) @ P @ diags_array(1 / root)
    w, u = _leading(csr_matrix(0.5 * (M + M.T)), min(len(held), (count or MOST) + 1))
    if count is None:
        gaps = w[:-1] - w[1:]
        count = int(np.argmax(gaps)) + 1 if gaps.size else 1
    labels = np.full(len(pi), -1, dtype=np.intp)
    labels[held] = _split(u[:, :count] / root[:, None], pi[held], count)
    member = np.stack([labels == k for k in range(count)]).astype(float)
    masses = member @ pi
    moved = member @ (pi[:, None] * (density.transitions_.matrix @ member.T))
    return AlmostInvariantSets(labels, masses, np.diag(moved) / masses, w, density)


def _leading(R: Sparse, count: int) -> tuple[Array, Array]:
    n, _ = R.shape
    if n <= DENSE or count >= n:
        w, u = np.linalg.eigh(R.toarray())
    else:
        w, u = eigsh(R, count, which="LA", v0=np.random.default_rng(0).standard_normal(n))
    order = np.argsort(-w)[:count]
    return w[order], u[:, order]


def _split(vectors: Array, pi: Array, count: int) -> NDArray[np.intp]:
    """k-means on the eigenvectors, boxes weighed by their mass; sets in the order of their mass, largest first."""
    if count == 1:
        return np.zeros(len(pi), dtype=np.intp)
    label = KMeans(count, random_state=0).fit_predict(vectors, sample_weight=pi)
    mass = np.bincount(label, weights=pi, minlength=count)
    rank = np.empty(count, dtype=np.intp)
    rank[np.argsort(-mass)] = np.arange(count)
    return rank[label]
