"""Reflected resolvents of many small complex matrices at once, without asking the host.

    R = 2 V - I,   V = M^-1,   M = I + a (I - W),   Herm(I - W) >= m I > 0

which is the step of Peaceman-Rachford at each frequency of a monotone operator. Such an M needs no pivoting: it is
regular, and so are its leading blocks and what is left after eliminating them.

    kernel   Gauss-Jordan by tiles of 16 x 16, n / 16 + 1 launches (`kernels/inverse.py`): CUDA, float32
    blocks   [[P, Q], [R, S]] by halves: invert P, then the Schur complement S - R P^-1 Q. Only products, so a CUDA
             graph can hold it; many small ones, so it is for what the kernel does not take. On a CPU it takes two
             thirds of the time of
    lu       PyTorch's batched LU, which a CUDA graph cannot hold. Never checked for failure: there is none to find
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from koopsim.errors import KoopsimError, did_you_mean
from koopsim.implicit.info import capturing

METHODS = ("kernel", "blocks", "lu")
LARGEST = 128  # the kernel takes any size, but reads and writes all matrices n / 16 times; measured up to here
MANY = 16  # matrices from which a CPU inverts them by blocks
LEAF = 8  # blocks of this size are eliminated row by row


def reflected_resolvent(
    W: Tensor, a: Tensor | float, method: str | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """2 (I + a (I - W))^-1 - I: real and imaginary parts (F, 2, n, n) -> real form (F, 2n, 2n).

    The method is the fastest that will do, unless one is asked for; `dtype` is what the result is rounded to.
    """
    method = method or _fitting(W)
    if method == "kernel":
        from koopsim.implicit.kernels.inverse import reflected_resolvent as kernel

        return kernel(W, a, dtype or W.dtype)
    if method not in METHODS:
        raise KoopsimError(f"There is no inverse {method!r}." + did_you_mean(method, METHODS))
    unit = torch.eye(W.shape[3], dtype=W.dtype, device=W.device)
    M = (1 + a) * unit - a * torch.complex(W[:, 0], W[:, 1])
    V = lu(M) if method == "lu" else blocks(M)
    return real_form(2 * V - unit).to(dtype or W.dtype)


def _fitting(W: Tensor) -> str:
    if W.is_cuda and W.dtype == torch.float32 and W.shape[3] <= LARGEST and find_spec("triton") is not None:
        return "kernel"
    many = not W.is_cuda and W.shape[0] >= MANY
    return "blocks" if many or capturing() else "lu"


def real_form(symbol: Tensor) -> Tensor:
    """Complex (F, m, n) -> real (F, 2m, 2n), what multiplies a spectrum; the adjoint becomes the transpose."""
    real, imaginary = symbol.real, symbol.imag
    return torch.cat([torch.cat([real, -imaginary], dim=2), torch.cat([imaginary, real], dim=2)], dim=1)


def lu(M: Tensor) -> Tensor:
    return torch.linalg.inv_ex(M, check_errors=False).inverse


def blocks(M: Tensor) -> Tensor:
    *_, n = M.shape
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
    *_, n = M.shape
    unit = torch.eye(n, dtype=M.dtype, device=M.device)
    system = torch.cat([M, unit.expand_as(M)], dim=-1)
    for i in range(n):
        row = system[..., i : i + 1, :] / system[..., i : i + 1, i : i + 1]
        system = system + (unit[:, i : i + 1] - system[..., :, i : i + 1]) * row
    return system[..., n:]
