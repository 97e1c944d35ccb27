"""More observables than samples: everything happens in the space that the snapshots span.

    F (k, N) all lifted samples, k < N,    F^H = B S,   B (N, k) orthonormal,    xi = phi B        F = xi B^H exactly

The Koopman matrix of least norm acts within this space (Schmid 2010; Tu et al. 2014), so EDMD of the k coordinates xi
is EDMD of phi, in O(N k^2) instead of O(N^3), and A itself is only formed when it is asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

Array = NDArray[Any]
THRESHOLD = (0.56, -0.95, 1.82, 1.43)  # in medians: a polynomial of the aspect, Gavish & Donoho's (5)


def above_noise(singular_values: Array, aspect: float) -> int:
    """How many singular values are more than white noise of unknown size makes (Gavish & Donoho 2014); at least 1."""
    if singular_values.size < 2:
        return singular_values.size
    threshold = np.polyval(THRESHOLD, aspect) * np.median(singular_values)
    return max(1, int(np.sum(singular_values > threshold)))


def row_space(lifted: Array) -> Array:
    """B: an orthonormal basis of the rows, (N, k)."""
    basis: Any = qr(lifted.conj().T, mode="economic", check_finite=False)[0]
    return basis
