"""A measure as one vector: its mean embedding in random Fourier features.

    m = E[psi(z)],     || m - m' ||  ->  MMD(mu, mu')  as the features grow       Gretton et al. 2012

It is what U' V' psi(mu(x)) of the two-tier model stands for (paper, eq. (10)), and what a long run's average of psi
converges to from almost every start (Birkhoff). The maximum mean discrepancy (MMD) of two measures is the distance of
their embeddings: 0 only for equal ones, at most sqrt(2). || m ||^2 = E k(z, z') is 1 for a single point and less the
more a measure spreads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from koopsim.files.masks import unmasked

if TYPE_CHECKING:
    from .dictionary import RandomFourier
    from .invariant_density import InvariantDensity

Array = NDArray[Any]


def median_distance(Z: Array, seed: int = 0, most: int = 1000) -> float:
    """The median distance of two samples: a bandwidth of the data's own; 1 where all are the same."""
    from scipy.spatial.distance import pdist

    rng = np.random.default_rng(seed)
    some = Z if len(Z) <= most else Z[rng.choice(len(Z), most, replace=False)]
    return float(np.median(pdist(some))) or 1.0 if len(some) > 1 else 1.0


def mean_embedding(states: Any, features: RandomFourier, burn: int = 0) -> Array:
    """(features,): the average of psi over the states of a run (m, d) or several, each without its first `burn`."""
    runs = [np.asarray(unmasked(z), dtype=np.float64) for z in (states if isinstance(states, list) else [states])]
    runs = [z[:, None] if z.ndim == 1 else z for z in runs]
    if not all(np.isfinite(z).all() for z in runs):
        raise ValueError("the states contain NaN, infinity or masked values; cut the runs before that")
    if any(len(z) <= burn for z in runs):
        raise ValueError(f"a run of {min(len(z) for z in runs)} states has none left after burn={burn}")
    psi = features if hasattr(features, "frequencies_") else features.fit(runs[0])
    return np.mean([psi.transform(z[burn:]).mean(axis=0) for z in runs], axis=0)


def embedding_of_density(density: InvariantDensity, features: RandomFourier) -> Array:
    """(components, features): E[psi] under each invariant density, exact for densities constant on boxes.

    The mean of exp(i w . z) over a box of sides h around c is exp(i w . c) prod_j sinc(w_j h_j / 2).
    """
    low, high = density.boxes_.bounds(density.transitions_.numbers)
    centre, side = (low + high) / 2, high - low
    psi = features if hasattr(features, "frequencies_") else features.fit(centre)
    W = psi.frequencies_  # (d, M / 2)
    damp = np.ones((len(centre), W.shape[1]))
    for j, w in enumerate(W):
        damp *= np.sinc(side[:, j : j + 1] * w / (2 * np.pi))
    return density.masses_ @ (psi.transform(centre) * np.hstack([damp, damp]))


def mmd(first: Array, second: Array) -> Array:
    """|| m - m' || along the last axis: the distance of two measures by their embeddings."""
    first, second = np.asarray(first), np.asarray(second)
    if first.shape[-1:] != second.shape[-1:]:
        raise ValueError(f"two embeddings have as many numbers each; got shapes {first.shape} and {second.shape}")
    return np.linalg.norm(first - second, axis=-1)
