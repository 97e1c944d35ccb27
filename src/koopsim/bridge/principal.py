"""A few directions that matter, out of thousands.

    P = leading eigenvectors of the covariance,   z -> (z - mean) P

A DEQ's state has a thousand numbers and moves in a handful of directions; a Koopman matrix is estimated there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from koopsim.errors import KoopsimError

Array = NDArray[Any]
NEGLIGIBLE = 1e-6  # directions that carry less than this share of the largest are none
LARGE = 1500  # from here on a whole eigendecomposition takes longer than a few dozen products


def principal(samples: Array, dims: int | None = None, centred: bool = True) -> tuple[Array, Array]:
    """(mean, P): at most `dims` principal directions of the samples (m, D), the largest first, as columns.

    Without `dims` P is the identity: the directions exist to make a state smaller.
    """
    D = samples.shape[1]
    if dims is None:
        return np.zeros(D), np.eye(D)
    if not len(samples) or not np.all(np.isfinite(samples)):
        raise KoopsimError("Principal directions need finite samples; every trajectory blew up at once.")
    mean = samples.mean(axis=0) if centred else np.zeros(D)
    z = samples - mean
    if min(z.shape) > max(LARGE, 4 * dims):  # by Lanczos: only the leading few are wanted
        make: Any = LinearOperator  # its base class hides the signature from type checkers
        gram = make((D, D), matvec=lambda v: z.T @ (z @ v), dtype=np.float64)
        w, P = eigsh(gram, k=dims, which="LA", v0=np.random.default_rng(0).standard_normal(D))
    elif len(z) >= D:
        w, P = np.linalg.eigh(z.T @ z)
    else:  # fewer samples than numbers in a state: the smaller of the two Gram matrices
        w, U = np.linalg.eigh(z @ z.T)
        P = (z.T @ U) / np.sqrt(np.maximum(w, np.finfo(float).tiny))
    order = np.argsort(-w)
    keep = max(1, min(dims, int(np.sum(w > NEGLIGIBLE**2 * w.max()))))
    return mean, P[:, order[:keep]]
