"""Gauss-Jordan in registers, in Triton kernels for CUDA: one program inverts the matrix of one frequency.

    M_ij <- M_ij - M_ik M_kj / M_kk,   M_kj <- M_kj / M_kk,   M_ik <- -M_ik / M_kk,   M_kk <- 1 / M_kk       k = 1 .. n

turns M into its inverse in place. It is one subtraction for all entries, once row and column k are taken out of M:
M <- M - c r, with r = (row k) / M_kk but 1 / M_kk in place k, and c = column k but -1 in place k. A library would read
and write all matrices n times. Up to 64 rows a matrix is one tile; beyond, four, so that 81 rows are padded to 96 and
not to 128. The readable twin is `inverse.lu`; tests/implicit/test_monotone_kernels.py holds them together, on a CPU
through Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64
SMALLEST = 16


@triton.jit
def _matrix(
    W, a, n, row, column, w_frequency, w_half, w_row, w_column, I: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """I x J entries of (1 + a) I - a W from (row, column) on; beyond n the unit matrix, scaled."""
    i = row + tl.arange(0, I)[:, None]
    j = column + tl.arange(0, J)[None, :]
    at = W + tl.program_id(0).to(tl.int64) * w_frequency + i * w_row + j * w_column
    inside = (i < n) & (j < n)
    re = tl.where(i == j, 1.0 + a, 0.0) - a * tl.load(at, mask=inside, other=0.0)
    im = -a * tl.load(at + w_half, mask=inside, other=0.0)
    return re, im


@triton.jit
def _row(re, im, k, I: tl.constexpr):
    here = (tl.arange(0, I) == k)[:, None]
    return tl.sum(tl.where(here, re, 0.0), 0), tl.sum(tl.where(here, im, 0.0), 0)


@triton.jit
def _column(re, im, k, J: tl.constexpr):
    here = (tl.arange(0, J) == k)[None, :]
    return tl.sum(tl.where(here, re, 0.0), 1), tl.sum(tl.where(here, im, 0.0), 1)


@triton.jit
def _reciprocal(re, im, k, J: tl.constexpr):
    """1 / row[k]"""
    here = tl.arange(0, J) == k
    p = tl.sum(tl.where(here, re, 0.0), 0)
    q = tl.sum(tl.where(here, im, 0.0), 0)
    size = p * p + q * q
    return p / size, -q / size


@triton.jit
def _scaled(re, im, d_re, d_im, k, J: tl.constexpr):
    """The row times d, with d itself in place k; k = -1: the place is not in this tile."""
    here = tl.arange(0, J) == k
    re = tl.where(here, 1.0, re)
    im = tl.where(here, 0.0, im)
    return d_re * re - d_im * im, d_re * im + d_im * re


@triton.jit
def _marked(re, im, k, I: tl.constexpr):
    """The column, with -1 in place k."""
    here = tl.arange(0, I) == k
    return tl.where(here, -1.0, re), tl.where(here, 0.0, im)


@triton.jit
def _less(re, im, c_re, c_im, r_re, r_im, k_row, k_column, I: tl.constexpr, J: tl.constexpr):
    """The tile without row and column k, less c r."""
    stays = (tl.arange(0, I) != k_row)[:, None] & (tl.arange(0, J) != k_column)[None, :]
    re = tl.where(stays, re, 0.0) - (c_re[:, None] * r_re[None, :] - c_im[:, None] * r_im[None, :])
    im = tl.where(stays, im, 0.0) - (c_re[:, None] * r_im[None, :] + c_im[:, None] * r_re[None, :])
    return re, im


@triton.jit
def _store(out, re, im, n, row, column, frequency, stride, I: tl.constexpr, J: tl.constexpr):
    """2 V - I in its real form, [[Re, -Im], [Im, Re]]."""
    i = row + tl.arange(0, I)[:, None]
    j = column + tl.arange(0, J)[None, :]
    inside = (i < n) & (j < n)
    re = 2.0 * re - tl.where(i == j, 1.0, 0.0)
    im = 2.0 * im
    to = out + tl.program_id(0).to(tl.int64) * frequency + i * stride + j
    tl.store(to, re, mask=inside)
    tl.store(to + n, -im, mask=inside)
    tl.store(to + n * stride, im, mask=inside)
    tl.store(to + n * stride + n, re, mask=inside)


@triton.jit
def _one_tile(W, alpha, out, n, w_frequency, w_half, w_row, w_column, frequency, stride, I: tl.constexpr):
    a = tl.load(alpha)
    re, im = _matrix(W, a, n, 0, 0, w_frequency, w_half, w_row, w_column, I, I)
    for k in range(n):
        r_re, r_im = _row(re, im, k, I)
        c_re, c_im = _column(re, im, k, I)
        d_re, d_im = _reciprocal(r_re, r_im, k, I)
        r_re, r_im = _scaled(r_re, r_im, d_re, d_im, k, I)
        c_re, c_im = _marked(c_re, c_im, k, I)
        re, im = _less(re, im, c_re, c_im, r_re, r_im, k, k, I, I)
    _store(out, re, im, n, 0, 0, frequency, stride, I, I)


@triton.jit
def _four_tiles(
    W, alpha, out, n, w_frequency, w_half, w_row, w_column, frequency, stride, I: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """[[P, Q], [R, S]] with P full: I x I, and S of n - I rows padded to J. First the pivots of P, then those of S."""
    a = tl.load(alpha)
    P_re, P_im = _matrix(W, a, n, 0, 0, w_frequency, w_half, w_row, w_column, I, I)
    Q_re, Q_im = _matrix(W, a, n, 0, I, w_frequency, w_half, w_row, w_column, I, J)
    R_re, R_im = _matrix(W, a, n, I, 0, w_frequency, w_half, w_row, w_column, J, I)
    S_re, S_im = _matrix(W, a, n, I, I, w_frequency, w_half, w_row, w_column, J, J)
    for k in range(I):
        r_re, r_im = _row(P_re, P_im, k, I)
        s_re, s_im = _row(Q_re, Q_im, k, I)
        b_re, b_im = _column(P_re, P_im, k, I)
        c_re, c_im = _column(R_re, R_im, k, I)
        d_re, d_im = _reciprocal(r_re, r_im, k, I)
        r_re, r_im = _scaled(r_re, r_im, d_re, d_im, k, I)
        s_re, s_im = _scaled(s_re, s_im, d_re, d_im, -1, J)
        b_re, b_im = _marked(b_re, b_im, k, I)
        P_re, P_im = _less(P_re, P_im, b_re, b_im, r_re, r_im, k, k, I, I)
        Q_re, Q_im = _less(Q_re, Q_im, b_re, b_im, s_re, s_im, k, -1, I, J)
        R_re, R_im = _less(R_re, R_im, c_re, c_im, r_re, r_im, -1, k, J, I)
        S_re, S_im = _less(S_re, S_im, c_re, c_im, s_re, s_im, -1, -1, J, J)
    for k in range(n - I):
        r_re, r_im = _row(R_re, R_im, k, J)
        s_re, s_im = _row(S_re, S_im, k, J)
        b_re, b_im = _column(Q_re, Q_im, k, J)
        c_re, c_im = _column(S_re, S_im, k, J)
        d_re, d_im = _reciprocal(s_re, s_im, k, J)
        r_re, r_im = _scaled(r_re, r_im, d_re, d_im, -1, I)
        s_re, s_im = _scaled(s_re, s_im, d_re, d_im, k, J)
        c_re, c_im = _marked(c_re, c_im, k, J)
        P_re, P_im = _less(P_re, P_im, b_re, b_im, r_re, r_im, -1, -1, I, I)
        Q_re, Q_im = _less(Q_re, Q_im, b_re, b_im, s_re, s_im, -1, k, I, J)
        R_re, R_im = _less(R_re, R_im, c_re, c_im, r_re, r_im, k, -1, J, I)
        S_re, S_im = _less(S_re, S_im, c_re, c_im, s_re, s_im, k, k, J, J)
    _store(out, P_re, P_im, n, 0, 0, frequency, stride, I, I)
    _store(out, Q_re, Q_im, n, 0, I, frequency, stride, I, J)
    _store(out, R_re, R_im, n, I, 0, frequency, stride, J, I)
    _store(out, S_re, S_im, n, I, I, frequency, stride, J, J)


def reflected_resolvent(W: Tensor, a: Tensor | float, dtype: torch.dtype = torch.float32) -> Tensor:
    """2 (I + a (I - W))^-1 - I: real and imaginary parts (F, 2, n, n), float32 -> real form (F, 2n, 2n) of dtype.

    W may be a strided view. The rows of the result are padded in memory to 8 entries, which matrix products like.
    """
    F, _, n, _ = W.shape
    alpha = a if isinstance(a, Tensor) else torch.full((), a, device=W.device)
    stride = 8 * triton.cdiv(2 * n, 8)
    out = W.new_empty(F, 2 * n, stride, dtype=dtype)
    w_frequency, w_half, w_row, w_column = W.stride()
    strides = (w_frequency, w_half, w_row, w_column, 2 * n * stride, stride)
    if n <= TILE:
        tile = max(SMALLEST, triton.next_power_of_2(n))
        _one_tile[(F,)](W, alpha, out, n, *strides, I=tile, num_warps=8 if tile == TILE else 4)
    else:
        rest = max(SMALLEST, triton.next_power_of_2(n - TILE))
        _four_tiles[(F,)](W, alpha, out, n, *strides, I=TILE, J=rest, num_warps=16)
    return out[:, :, : 2 * n]
