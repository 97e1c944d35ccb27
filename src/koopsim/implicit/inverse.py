"""The inverse of many small complex matrices at once, without asking the host.

    M X = I,   Herm(M) = (M + M*) / 2 >= delta I > 0

which is what I + a (I - W) is at each frequency of a monotone operator. Such an M needs no pivoting: it is regular,
and so are its leading blocks and what is left after eliminating them.

    lu              PyTorch's batched LU. Never checked for failure: there is none to find
    blocks          [[P, Q], [R, S]] by halves: invert P, then the Schur complement S - R P^-1 Q. Only products
    newton-schulz   X <- X (2 I - M X) from M* / (|M|_1 |M|_inf): the error squares each time. Only products, but how
                    many depends on the condition of M; NEWTON_STEPS serves up to about 500
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from koopsim.errors import KoopsimError, did_you_mean

INVERSE = "lu"  # what `inverse` uses when not told: a key of INVERSES
NEWTON_STEPS = 24
LEAF = 8  # blocks of this size are eliminated row by row


def inverse(M: Tensor, method: str | None = None) -> Tensor:
    """M^-1, (..., n, n) -> (..., n, n), for M whose Hermitian part is positive definite."""
    method = method or INVERSE
    if method not in INVERSES:
        raise KoopsimError(f"There is no inverse {method!r}." + did_you_mean(method, INVERSES))
    return INVERSES[method](M)


def lu(M: Tensor) -> Tensor:
    return torch.linalg.inv_ex(M, check_errors=False).inverse


def newton_schulz(M: Tensor) -> Tensor:
    size = M.abs()
    X = M.mH / (size.sum(-1).amax(-1) * size.sum(-2).amax(-1))[..., None, None]
    for _ in range(NEWTON_STEPS):
        X = 2 * X - X @ (M @ X)
    return X


def blocks(M: Tensor) -> Tensor:
    n = M.shape[-1]
    if n <= LEAF:
        return _eliminated(M)
    half = n // 2
    P, Q, R, S = M[..., :half, :half], M[..., :half, half:], M[..., half:, :half], M[..., half:, half:]
    P = blocks(P)
    PQ, RP = P @ Q, R @ P
    S = blocks(S - R @ PQ)
    corner, below = PQ @ S, S @ RP
    return torch.cat([torch.cat([P + corner @ RP, -corner], dim=-1), torch.cat([-below, S], dim=-1)], dim=-2)


def _eliminated(M: Tensor) -> Tensor:
    """Gauss-Jordan without pivoting: M | I -> I | M^-1."""
    n = M.shape[-1]
    unit = torch.eye(n, dtype=M.dtype, device=M.device)
    system = torch.cat([M, unit.expand_as(M)], dim=-1)
    for i in range(n):
        row = system[..., i : i + 1, :] / system[..., i : i + 1, i : i + 1]
        system = system + (unit[:, i : i + 1] - system[..., :, i : i + 1]) * row
    return system[..., n:]


INVERSES: dict[str, Callable[[Tensor], Tensor]] = {"lu": lu, "blocks": blocks, "newton-schulz": newton_schulz}
