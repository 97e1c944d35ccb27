"""R of a tall matrix at the price of matrix products, with the digits of a QR decomposition.

    F = [L | Q | Z | 1] = (orthonormal) R          L what is regressed on, Q its images, Z the states

A Gram matrix squares the condition number, so it is used where that costs nothing, and mended where it would:

    L ill-conditioned     L R0^-1 and Q R0^-1 instead, R0 from the QR of a few rows (CholeskyQR2: Yamamoto et al. 2015)
    Q predicted closely   Q^H Q - C^H C cancels; in these directions V the misfit E = (Q - L K) V is formed and measured
    neither helps         Householder's QR: few rows, or columns that depend on each other

Each step measures whether it was enough. Products take 3 to 4 N^2 operations a row where nothing needs mending, QR 8 at
half the pace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs, solve_triangular

Array = NDArray[Any]  # float64 or complex128

WELL = 1e-7  # reciprocal condition of a Gram matrix in units of its diagonal that leaves nine digits
PLAIN = 1e-3  # the same, leaving so many that coefficients need no refining
BENT = 1e-6  # the same, so few that L is straightened where it can be
SINGULAR = 1e-12  # reciprocal condition of R0 below which columns depend on each other
CLOSE = 1e-9  # share of a variance below which a difference of variances is no measurement
SAMPLE = 32  # rows for each column of L before a few rows can stand for the rest


@dataclass(frozen=True)
class Columns:
    """Rows of data. `lead` is regressed on, `image` is what it becomes, `state` (and 1) want coefficients in it."""

    lead: Any  # (m, L), NumPy or torch
    image: Any  # (m, N)
    state: Any  # (m, d)
    shifted: bool = False  # image[:-1] is lead[1:], as along one trajectory

    @property
    def rows(self) -> int:
        return self.lead.shape[0]

    def on(self, device: str) -> Columns:
        import torch

        lead, image, state = (torch.as_tensor(p, device=device) for p in (self.lead, self.image, self.state))
        return Columns(lead, image, state, self.shifted)


def triangle(columns: Columns, device: str | None = None) -> Array:
    """R of [L | Q | Z | 1]: triangular in [L | Q], coefficients of Z and 1 in L, the size of 1 outside of it."""
    if columns.rows < 2 * (columns.lead.shape[1] + columns.image.shape[1]):
        return householder(columns)
    found = by_products(columns if device is None else columns.on(device))
    return householder(columns) if found is None else found


def householder(columns: Columns) -> Array:
    """The QR decomposition itself, R only."""
    one = np.ones((columns.rows, 1))
    return qr_rows(np.hstack([columns.lead, columns.image, columns.state, one]))


def qr_rows(stacked: Array) -> Array:
    """R of a QR decomposition, at most as many rows as columns."""
    stacked = np.asfortranarray(stacked)
    (geqrf,) = get_lapack_funcs(("geqrf",), (stacked,))
    factored = geqrf(stacked, overwrite_a=1, lwork=64 * max(1, stacked.shape[1]))[0]
    return np.triu(factored[: min(factored.shape)])


def by_products(columns: Columns) -> Array | None:
    """`triangle` from Gram matrices; None where these cannot be trusted."""
    lead, image = columns.lead, columns.image
    a, b = lead.shape[1], lead.shape[1] + image.shape[1]
    R0, worth = _few(columns)
    if not worth:
        return None
    if R0 is not None:
        lead = _solve_right(lead, R0)
        image = _solve_right(image, R0[2 * a - b :, 2 * a - b :])
    G = _gram(lead)
    head, rcond = _cholesky(G)
    if head is None:
        return None
    own = _own(Columns(lead, image, columns.state, columns.shifted), G)
    C, rest = _misfit(lead, image, _Products(head, rcond, _forward(head, _host(_h(lead) @ image)), own))
    R = np.zeros((b, b), dtype=C.dtype)
    if R0 is None:
        R[:a, :a], R[:a, a:], R[a:, a:] = head, C, rest
    else:
        back = R0[2 * a - b :, 2 * a - b :]
        R[:a, :a], R[:a, a:], R[a:, a:] = head @ R0, C @ back, rest @ back
    return _with_tail(R, head, Columns(lead, image, columns.state))


@dataclass(frozen=True)
class _Products:
    head: Array  # L = (orthonormal) head
    rcond: float
    C: Array  # Q along that basis
    own: Array  # Q^H Q


def _misfit(lead: Any, image: Any, known: _Products) -> tuple[Array, Array]:
    """C, and T with T^H T = Q^H Q - C^H C, where Q is predicted closely from the misfit itself."""
    C, size = known.C, np.sqrt(np.real(np.diag(known.own)))
    size[size == 0] = 1.0
    S = known.own - C.conj().T @ C
    root, _ = _cholesky(S, size)
    if root is not None:
        return C, root
    w, V = np.linalg.eigh(S / size / size[:, None])  # in units of Q; the directions V do not mix in the misfit
    close = w < CLOSE
    if 2 * close.sum() > size.size:
        close[:], onto, back = True, np.eye(size.size), np.eye(size.size)
        E = image
    else:
        onto, back = V[:, close] / size[:, None], V[:, close].conj().T * size
        E = image @ _like(onto, image)
    E = E - lead @ _like(solve_triangular(known.head, C @ onto, check_finite=False), lead)
    S = _gram(E)
    if known.rcond < PLAIN:  # one step of refinement
        change = _forward(known.head, _host(_h(lead) @ E))
        C, S = C + change @ back, S - change.conj().T @ change
    measured = _root(S) @ back
    clear = np.sqrt(np.maximum(w[~close], 0.0))[:, None] * (V[:, ~close].conj().T * size)
    return C, qr_rows(np.vstack([clear, measured]))


def _few(columns: Columns) -> tuple[Array | None, bool]:
    """R0 of evenly spread rows of L, where there are enough of them and they say that L needs it and bears it."""
    wide = columns.lead.shape[1]
    if columns.rows < SAMPLE * wide:
        return None, True
    R0 = qr_rows(_host(columns.lead[:: columns.rows // (4 * wide)]))
    size = np.linalg.norm(R0, axis=0)
    (trcon,) = get_lapack_funcs(("trcon",), (R0,))
    rcond = trcon(R0 / size)[0] if np.all(size > 0) else 0.0
    return (R0 if rcond**2 < BENT else None), rcond > SINGULAR


def _gram(a: Any) -> Array:
    return _host(_h(a) @ a)


def _own(columns: Columns, G: Array) -> Array:
    """Q^H Q; along one trajectory it is G = L^H L but for the two ends, where these do not dominate."""
    if columns.shifted:
        first, last = _host(columns.lead[0]), _host(columns.image[-1])
        if np.all(np.maximum(np.abs(first), np.abs(last)) ** 2 <= 0.1 * np.real(np.diag(G))):
            return G - np.outer(first.conj(), first) + np.outer(last.conj(), last)
    return _gram(columns.image)


def _cholesky(G: Array, size: Array | None = None) -> tuple[Any, float]:
    """Upper triangular R with R^H R = G and the reciprocal condition of G in units of `size`; None below WELL."""
    size = np.sqrt(np.real(np.diag(G))) if size is None else size
    if not np.all(size > 0) or not np.all(np.isfinite(size)):
        return None, 0.0
    scaled = G / size / size[:, None]
    potrf, pocon = get_lapack_funcs(("potrf", "pocon"), (scaled,))
    R, info = potrf(scaled, lower=0, clean=1)
    rcond = 0.0 if info else float(pocon(R, np.abs(scaled).sum(axis=0).max(), uplo="U")[0])
    return (R * size if rcond >= WELL else None), rcond


def _with_tail(R: Array, head: Array, columns: Columns) -> Array:
    """R with the columns of Z and 1 beside it. `head` is the factor of L alone; what Z has outside of L is not kept."""
    lead, m = columns.lead, columns.rows
    a, b, d = lead.shape[1], R.shape[1], columns.state.shape[1]
    cross = _host(_h(lead) @ _ones(lead))[:, None]
    top = _forward(head, np.hstack([_host(_h(lead) @ columns.state), cross]) if d else cross)
    outside = np.sqrt(max(0.0, m - float(np.sum(np.abs(top[:, -1]) ** 2))))
    if outside <= np.sqrt(m * CLOSE):
        weights = _like(solve_triangular(head, top[:, -1:], check_finite=False), lead)
        outside = float(np.linalg.norm(_host(lead @ weights) - 1))
    out = np.zeros((b + 1, b + d + 1), dtype=R.dtype)
    out[:b, :b], out[:a, b:], out[b, -1] = R, top, outside
    return out


def _root(S: Array) -> Array:
    """T with T^H T = S, S positive semi-definite but for rounding."""
    size = np.sqrt(np.maximum(np.real(np.diag(S)), 0.0))
    size[size == 0] = 1.0
    w, V = np.linalg.eigh(S / size / size[:, None])
    return (np.sqrt(np.maximum(w, 0.0))[:, None] * V.conj().T) * size


def _forward(head: Array, right: Array) -> Array:
    """head^-H right."""
    return solve_triangular(head, right, trans=2, check_finite=False)


def _solve_right(lead: Any, R0: Array) -> Any:
    """lead R0^-1."""
    if isinstance(lead, np.ndarray):
        return solve_triangular(R0, lead.T, trans=1, check_finite=False).T
    import torch

    return torch.linalg.solve_triangular(_like(R0, lead), lead, upper=True, left=False)


def _h(a: Any) -> Any:
    return a.conj().T


def _ones(a: Any) -> Any:
    return _like(np.ones(a.shape[0]), a)


def _host(a: Any) -> Array:
    return a if isinstance(a, np.ndarray) else a.cpu().numpy()


def _like(a: Array, b: Any) -> Any:
    if isinstance(b, np.ndarray):
        return a
    import torch

    return torch.as_tensor(np.ascontiguousarray(a), dtype=b.dtype, device=b.device)
