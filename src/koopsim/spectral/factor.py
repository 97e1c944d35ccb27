"""R of a tall matrix at the price of matrix products, with the digits of a QR decomposition.

    F = [L | Q | Z | 1] = (orthonormal) R          L what is regressed on, Q its images, Z the states

`householder` is the QR decomposition itself. `by_products` makes the rows of R that belong to L, which is all that the
regression needs, from L^H L and L^H [Q Z 1]. A Gram matrix squares the condition number, so an ill-conditioned L is
straightened first, by the R0 of a few of its rows (as in CholeskyQR2: Yamamoto et al. 2015),

    L R0^-1 = (orthonormal) R1,       R = R1 R0,

and where that does not help (few rows, columns that depend on each other) Householder's QR is taken after all. This is
3 N^2 operations a row, 4 with straightening; QR has 8 at half the pace. What Q has outside of L is not in these rows:
a difference of squares could not tell 1e-15 from 1e-8. It is measured on the misfit itself (`regression.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs, get_lapack_funcs, solve_triangular

Array = NDArray[Any]  # float64 or complex128

WELL = 1e-6  # reciprocal condition of a Gram matrix in units of its diagonal that leaves ten digits
SINGULAR = 1e-12  # reciprocal condition of R0 below which columns depend on each other
SAMPLE = 32  # rows for each column of L before a few rows can stand for the rest
OUTSIDE = 1e-5  # a relative distance to a span that a difference of squares does not tell
EACH = 4  # rows for each column that are the few
BLOCK = 64  # columns that LAPACK's QR works on at a time
NARROW = 32  # columns up to which a Gram matrix costs less than asking a few rows whether it will do
SMALL = 2**19  # multiplications of a product that BLAS does as it is; larger ones it packs first, at twice the price


@dataclass(frozen=True)
class Columns:
    """Rows of data. `lead` is regressed on, `image` is what it becomes, `state` (and 1) want coefficients in it."""

    lead: Any  # (m, L), NumPy or torch
    image: Any  # (m, N)
    state: Any  # (m, d)

    @property
    def rows(self) -> int:
        return len(self.lead)

    def on(self, device: str | None) -> Columns:
        if device is None:
            return self
        import torch

        return Columns(*(torch.as_tensor(part, device=device) for part in (self.lead, self.image, self.state)))


def leading_rows(columns: Columns, device: str | None = None) -> Array:
    """The rows of R that belong to L, and one more with the size of 1 outside of L."""
    found = by_products(columns.on(device))
    if found is not None:
        return found
    a, R = columns.lead.shape[1], householder(columns, device)
    outside = np.zeros((1, R.shape[1]), dtype=R.dtype)
    outside[0, -1] = np.linalg.norm(R[a:, -1])
    return np.vstack([R[:a], outside])


def householder(columns: Columns, device: str | None = None) -> Array:
    """R of [L | Q | Z | 1]."""
    stacked = np.hstack([columns.lead, columns.image, columns.state, np.ones((columns.rows, 1))])
    return qr_rows(stacked, device)


def qr_rows(stacked: Array, device: str | None = None) -> Array:
    """R of a QR decomposition, at most as many rows as columns."""
    if device is not None:
        import torch

        return torch.linalg.qr(torch.as_tensor(stacked, device=device), mode="r")[1].cpu().numpy()
    stacked = np.asfortranarray(stacked)
    (geqrf,) = get_lapack_funcs(("geqrf",), (stacked,))
    factored = geqrf(stacked, overwrite_a=True, lwork=BLOCK * stacked.shape[1])[0]
    return np.triu(factored[: min(factored.shape)])


def by_products(columns: Columns) -> Array | None:
    """`leading_rows` from Gram matrices; None where these cannot be trusted."""
    lead, a, m = columns.lead, columns.lead.shape[1], columns.rows
    if m < 2 * a:
        return None
    head = cholesky(gram_matrix(lead)) if a <= NARROW else None
    R0 = _few(columns) if head is None else None
    lead = lead if R0 is None else _straight(lead, R0)
    if R0 is not None or a > NARROW:
        head = cholesky(gram_matrix(lead))
    if head is None:
        return None
    parts = [part for part in (columns.image, columns.state) if part.shape[1]]
    across = np.hstack([product(lead, part) for part in (*parts, _like(np.ones((m, 1)), lead))])
    top = solve_triangular(head, across, trans=2, check_finite=False)
    outside = np.sqrt(max(0.0, m - float(np.sum(np.abs(top[:, -1]) ** 2))))
    if outside <= OUTSIDE * np.sqrt(m):
        weights = solve_triangular(head, top[:, -1:], check_finite=False)
        outside = float(np.linalg.norm(_host(lead @ _like(weights, lead)) - 1))
    out = np.zeros((a + 1, a + top.shape[1]), dtype=top.dtype)
    out[:a, :a], out[:a, a:], out[a, -1] = head if R0 is None else head @ R0, top, outside
    return out


def _few(columns: Columns) -> Array | None:
    """R0 of a few random rows of L and its largest ones, where L has enough rows, needs it and bears it."""
    wide = columns.lead.shape[1]
    if columns.rows < SAMPLE * wide:
        return None
    some = np.unique(np.random.default_rng(0).integers(columns.rows, size=EACH * wide))
    R0 = qr_rows(_host(columns.lead[some]))
    if _rcond(R0) < np.sqrt(WELL):  # a few outliers may be what matters: rows that the others say are unlikely
        size = np.linalg.norm(R0, axis=0)
        large = abs(columns.lead)
        far = _host(large @ _like(1 / np.where(size > 0, size, 1.0), large))
        R0 = qr_rows(np.vstack([R0, _host(columns.lead[np.argpartition(far, -EACH * wide)[-EACH * wide :]])]))
    return R0 if SINGULAR < _rcond(R0) < np.sqrt(WELL) else None


def _rcond(R: Array) -> float:
    size = np.linalg.norm(R, axis=0)
    (trcon,) = get_lapack_funcs(("trcon",), (R,))
    return float(trcon(R / size)[0]) if np.all(size > 0) else 0.0


def _straight(lead: Any, R0: Array) -> Any:
    """L R0^-1; the inverse is triangular, which is half the work."""
    inverse = np.linalg.inv(R0)
    if not isinstance(lead, np.ndarray):
        return lead @ _like(inverse, lead)
    (trmm,) = get_blas_funcs(("trmm",), (inverse, lead))
    if lead.flags.f_contiguous:
        return trmm(1.0, inverse, lead, side=1)
    return trmm(1.0, inverse, lead.T, trans_a=True).T


def gram_matrix(a: Any) -> Array:
    return product(a, a)


def product(a: Any, b: Any) -> Array:
    """a^H b of tall matrices."""
    if max(a.shape[1], b.shape[1]) > NARROW or not (_plain(a) and _plain(b)):
        return _host(_h(a) @ b)
    rows = SMALL // (a.shape[1] * b.shape[1])
    (gemm,) = get_blas_funcs(("gemm",), (a, b))
    total = np.zeros((a.shape[1], b.shape[1]), order="F")
    for i in range(0, len(a), rows):
        total = gemm(1.0, a[i : i + rows].T, b[i : i + rows].T, 1.0, total, trans_b=True)
    return total


def _plain(a: Any) -> bool:
    return isinstance(a, np.ndarray) and a.dtype == np.float64 and a.flags.c_contiguous


def cholesky(G: Array) -> Array | None:
    """Upper triangular R with R^H R = G; None where G, in units of its diagonal, is too close to singular."""
    size = np.sqrt(np.real(np.diag(G)))
    if not np.all(size > 0) or not np.all(np.isfinite(size)):
        return None
    scaled = G / size / size[:, None]
    potrf, pocon = get_lapack_funcs(("potrf", "pocon"), (scaled,))
    R, info = potrf(scaled, lower=0, clean=1)
    if info or pocon(R, np.abs(scaled).sum(axis=0).max(), uplo="U")[0] < WELL:
        return None
    return R * size


def root(S: Array) -> Array:
    """T with T^H T = S, S positive semi-definite but for rounding."""
    size = np.sqrt(np.maximum(np.real(np.diag(S)), 0.0))
    size[size == 0] = 1.0
    w, V = np.linalg.eigh(S / size / size[:, None])
    return (np.sqrt(np.maximum(w, 0.0))[:, None] * V.conj().T) * size


def _h(a: Any) -> Any:
    return a.conj().T


def _host(a: Any) -> Array:
    return a if isinstance(a, np.ndarray) else a.cpu().numpy()


def _like(a: Array, b: Any) -> Any:
    if isinstance(b, np.ndarray):
        return a
    import torch

    return torch.as_tensor(np.ascontiguousarray(a), dtype=b.dtype, device=b.device)
