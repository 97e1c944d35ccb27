"""More observables than samples: everything happens in the space that the snapshots span.

    F (k, N) all lifted samples, k < N,    F^H = B S,   B (N, k) orthonormal,    xi = phi B        F = xi B^H exactly

The Koopman matrix of least norm acts within this space (Schmid 2010; Tu et al. 2014), so EDMD of the k coordinates xi
is EDMD of phi, in O(N k^2) instead of O(N^3), and A itself is only formed when it is asked for.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from scipy.linalg import qr

Array = NDArray[Any]


def row_space(lifted: Array) -> Array:
    """B: an orthonormal basis of the rows, (N, k)."""
    basis: Any = qr(lifted.conj().T, mode="economic", check_finite=False)[0]
    return basis
