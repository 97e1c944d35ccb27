"""The Perron-Frobenius operator in any dictionary: the adjoint of Koopman's matrix.

    <P p, g> = <p, K g>        under the measure mu the samples are drawn from       paper, section 2.2
    K = G^-1 C,   P = G^-1 C^T        G = <Psi, Psi>,   C = <Psi, Psi o f>            Klus, Koltai & Schuette 2016

Here p is a density *relative to mu*: p mu is the distribution. Samples drawn evenly give p itself; samples from a long
run give p = 1, since the run is already distributed as it will stay. Both matrices have the same eigenvalues. At 1 the
eigenfunctions of K are constant on each ergodic component (which one a start belongs to) and those of P are the
invariant densities; with chi_i one on component i and zero on the others, the densities are the dual basis,

    <p_i, chi_j> = 1 if i = j else 0,        lim (1/L) sum K^l g = sum_i <p_i, g> chi_i      (the projector P_1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .edmd import EDMD

Array = NDArray[Any]
CUT = 1e-8  # of the largest singular value: eigenvectors that span more than there are were cut off from their mates
NEAR = 1e-2  # eigenvalues this close to 1 are taken for 1, where no number of components is given


@dataclass(frozen=True)
class PerronFrobenius:
    """What `perron_frobenius(EDMD(dictionary).fit(...))` returns; densities are relative to the samples' own."""

    matrix_: Array  # (N, N): takes the coefficients c of p = phi . c to those of P p
    eigenvalues_: Array  # largest modulus first
    n_components_: int
    _model: Any
    _densities: Array  # (N, components): coefficients of p_i
    _indicators: Array  # (N, components): coefficients of chi_i

    @property
    def mixing_rate_(self) -> float:
        """The largest modulus of the eigenvalues that are not counted as 1."""
        nearest = np.argsort(np.abs(self.eigenvalues_ - 1), kind="stable")[self.n_components_ :]
        return float(np.abs(self.eigenvalues_[nearest]).max()) if nearest.size else 0.0

    def evaluate(self, points: Any) -> Array:
        """(components, points): each invariant density, relative to the density of the samples."""
        return (self._model.transform(_rows(points, self._model)) @ self._densities).T

    def memberships(self, points: Any) -> Array:
        """(components, points): 1 where a start belongs to the component, 0 where it belongs to another."""
        return (self._model.transform(_rows(points, self._model)) @ self._indicators).T


def perron_frobenius(model: EDMD, components: int | None = None, samples: Any = None) -> PerronFrobenius:
    """The adjoint of a fitted Koopman matrix.

    components  how many eigenvalues belong to 1; None: those within 0.01 of it
    samples     states at which components are told apart, where there is more than one
    """
    s = model.solution_
    core = s.core
    w, v = np.linalg.eig(core)
    order = np.argsort(np.abs(w - 1), kind="stable")
    if s.constant is None:
        raise ValueError("no combination of the observables is constant, so mass is not conserved; add a constant")
    count = int(np.sum(np.abs(w - 1) <= NEAR)) if components is None else components
    if not 1 <= count <= len(w):
        raise ValueError(f"components={count}; the dictionary has {len(w)} independent observables")
    if count > 1 and samples is None:
        raise ValueError(f"{count} eigenvalues are close to 1: give samples=, states to tell the components apart at")
    right = _real_span(v[:, order[:count]], count)
    if count == 1:
        chi = np.real(s.constant)[:, None]
    else:
        chi = right @ _vertices(model.transform(_rows(samples, model)) @ (s.down @ right))
    wl, vl = np.linalg.eig(core.T)
    left = _real_span(vl[:, np.argsort(np.abs(wl - 1), kind="stable")[:count]], count)
    p = left @ np.linalg.inv(chi.T @ left)  # chi^T p = I: the dual basis
    sizes = np.argsort(-np.abs(w), kind="stable")
    return PerronFrobenius(s.down @ core.conj().T @ s.up, w[sizes], count, model, s.down @ p, s.down @ chi)


def _real_span(vectors: Array, count: int) -> Array:
    """An orthonormal real basis of what the eigenvectors span."""
    U, sigma, _ = np.linalg.svd(np.hstack([np.real(vectors), np.imag(vectors)]), full_matrices=False)
    if sigma.size > count and sigma[count] > CUT * sigma[0]:
        raise ValueError(f"a complex pair of eigenvalues is cut in two by components={count}; take one more or less")
    return U[:, :count]


def _vertices(values: Array) -> Array:
    """T such that values @ T has rows near the corners of the simplex: the inner simplex algorithm (Weber & Galliat).

    On k components k eigenfunctions take k values, the corners; the samples furthest apart are taken for them.
    """
    rows, corners = values - values[np.argmax(np.linalg.norm(values, axis=1))], []
    corners.append(int(np.argmax(np.linalg.norm(values, axis=1))))
    for _ in range(values.shape[1] - 1):
        far = int(np.argmax(np.linalg.norm(rows, axis=1)))
        corners.append(far)
        direction = rows[far] / np.linalg.norm(rows[far])
        rows = rows - np.outer(rows @ direction, direction)
    return np.linalg.inv(values[corners])


def _rows(points: Any, model: EDMD) -> Array:
    Z = np.asarray(points, dtype=np.float64)
    return Z.reshape(-1, 1) if model.n_features_in_ == 1 and Z.ndim <= 1 else np.atleast_2d(Z)
