"""Gauss-Jordan by tiles, in Triton kernels for CUDA: a step for each pivot tile, all tiles of all frequencies at once.

    M_ij <- M_ij - M_ik D M_kj,   M_kj <- D M_kj,   M_ik <- -M_ik D,   M_kk <- D = M_kk^-1              k = 1 .. n / 16

turns M into its inverse. It is one rule, M <- M + c D r, once tile row and column k are taken out of M: r = row k but I
in place k, c = -(column k) but I in place k. With one warp a program a tile of 16 x 16 is inverted by the same rule,
entry by entry, and no warp waits for another; the products go to the tensor cores, in three TF32 parts that together
are float32. The program that finishes the next pivot tile inverts it at once, so a step is one launch: n / 16 + 1 in
all. The readable twin is `inverse.lu`; tests/implicit/kernels/test_monotone_kernels.py holds them together,
on a CPU through Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.nn.kernels.operators import operator

TILE = 16
WARPS = 1  # with more, each pivot of a tile waits for barriers
REGISTERS = 128  # a thread: 16 warps fit a multiprocessor; the compiler would take 160 to 210, which 9 to 12 warps do
CROWD = 4000  # programs that keep a GPU busy: up to so many each gets one tile, else a row of them, and c D but once
PRECISION = "tf32x3"  # of the products; "ieee" does without tensor cores and takes more instructions


@triton.jit
def _load(source, a, n, row, column, s_half, s_row, s_column, wanted, FIRST: tl.constexpr, I: tl.constexpr):
    """I x I entries of M from (row, column) on; 0 beyond n, or all 0 unless wanted.

    First M is (1 + a) I - a W. Then it is the scratch, whose rows are padded with zeros so that loads are wide.
    """
    i = row + tl.arange(0, I)[:, None]
    j = column + tl.arange(0, I)[None, :]
    at = source + i * s_row + j * s_column
    inside = (i < n) & (j < (n if FIRST else column + I)) & wanted
    re = tl.load(at, mask=inside, other=0.0)
    im = tl.load(at + s_half, mask=inside, other=0.0)
    if FIRST:
        re = tl.where((i == j) & inside, 1.0 + a, 0.0) - a * re
        im = -a * im
    return re, im


@triton.jit
def _store(target, re, im, n, row, column, t_half, t_row, LAST: tl.constexpr, I: tl.constexpr):
    """To the scratch; at last 2 V - I in its real form, [[Re, -Im], [Im, Re]]."""
    i = row + tl.arange(0, I)[:, None]
    j = column + tl.arange(0, I)[None, :]
    to = target + i * t_row + j
    if LAST:
        inside = (i < n) & (j < n)
        re = 2.0 * re - tl.where(i == j, 1.0, 0.0)
        im = 2.0 * im
        tl.store(to, re, mask=inside)
        tl.store(to + n, -im, mask=inside)
        tl.store(to + n * t_row, im, mask=inside)
        tl.store(to + n * t_row + n, re, mask=inside)
    else:
        inside = (i < n) & (j < column + I)  # all columns: those beyond n are zero, and later loaded
        tl.store(to, re, mask=inside)
        tl.store(to + t_half, im, mask=inside)


@triton.jit
def _inverted(re, im, n, I: tl.constexpr):
    """The leading n x n entries of a tile inverted: M <- M + c d r, pivot by pivot."""
    i = tl.arange(0, I)
    for k in range(n):
        row, column = (i == k)[:, None], (i == k)[None, :]
        r_re = tl.sum(tl.where(row, re, 0.0), 0)
        r_im = tl.sum(tl.where(row, im, 0.0), 0)
        c_re = tl.where(i == k, 1.0, -tl.sum(tl.where(column, re, 0.0), 1))
        c_im = tl.where(i == k, 0.0, -tl.sum(tl.where(column, im, 0.0), 1))
        p = tl.sum(tl.where(i == k, r_re, 0.0), 0)
        q = tl.sum(tl.where(i == k, r_im, 0.0), 0)
        size = p * p + q * q
        d_re, d_im = p / size, -q / size
        r_re = tl.where(i == k, 1.0, r_re)
        r_im = tl.where(i == k, 0.0, r_im)
        r_re, r_im = d_re * r_re - d_im * r_im, d_re * r_im + d_im * r_re
        re = tl.where(row | column, 0.0, re) + c_re[:, None] * r_re[None, :] - c_im[:, None] * r_im[None, :]
        im = tl.where(row | column, 0.0, im) + c_re[:, None] * r_im[None, :] + c_im[:, None] * r_re[None, :]
    return re, im


@triton.jit
def _plus(re, im, c_re, c_im, r_re, r_im, PRODUCT: tl.constexpr):
    """M + c r"""
    re = tl.dot(c_re, r_re, re, input_precision=PRODUCT) - tl.dot(c_im, r_im, input_precision=PRODUCT)
    im = tl.dot(c_re, r_im, im, input_precision=PRODUCT) + tl.dot(c_im, r_re, input_precision=PRODUCT)
    return re, im


@triton.jit
def _square(I: tl.constexpr):
    """The places of I x I entries kept one row after the other."""
    return tl.arange(0, I)[:, None] * I + tl.arange(0, I)[None, :]


@triton.jit
def _first(W, alpha, D, n, s_frequency, s_half, s_row, s_column, I: tl.constexpr):
    """The first pivot tile, inverted."""
    f = tl.program_id(0).to(tl.int64)
    re, im = _load(W + f * s_frequency, tl.load(alpha), n, 0, 0, s_half, s_row, s_column, True, True, I)
    re, im = _inverted(re, im, tl.minimum(n, I), I)
    tl.store(D + f * 2 * I * I + _square(I), re)
    tl.store(D + f * 2 * I * I + I * I + _square(I), im)


@triton.jit(do_not_specialize=["k", "parts"])
def _step(
    source, alpha, D, target, following, n, k, F, tiles, parts,
    s_frequency, s_half, s_row, s_column, t_frequency, t_half, t_row,
    FIRST: tl.constexpr, LAST: tl.constexpr, I: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """Pivot tile k, whose inverse is D: source -> target, and the inverse of the next pivot tile to `following`.

    A program has one row of tiles, every parts-th of it. Those that end with the next pivot tile start first.
    """
    a = tl.load(alpha)
    f = (tl.program_id(0) % F).to(tl.int64)
    place = tl.program_id(0) // F
    i = (k + 1 + place // parts) % tiles
    part = parts - 1 - place % parts
    source += f * s_frequency
    target += f * t_frequency
    D += f * 2 * I * I + _square(I)
    unit = tl.where(tl.arange(0, I)[:, None] == tl.arange(0, I)[None, :], 1.0, 0.0)
    D_re, D_im = tl.load(D), tl.load(D + I * I)
    c_re, c_im = _load(source, a, n, i * I, k * I, s_half, s_row, s_column, i != k, FIRST, I)
    re, im = tl.zeros((I, I), tl.float32), tl.zeros((I, I), tl.float32)
    c_re, c_im = _plus(re, im, tl.where(i == k, unit, -c_re), -c_im, D_re, D_im, PRODUCT)
    for s in range(part, tiles, parts):
        j = (k + 2 + s) % tiles
        r_re, r_im = _load(source, a, n, k * I, j * I, s_half, s_row, s_column, j != k, FIRST, I)
        re, im = _load(source, a, n, i * I, j * I, s_half, s_row, s_column, (i != k) & (j != k), FIRST, I)
        r_re = tl.where(j == k, unit, r_re)
        re, im = _plus(re, im, c_re, c_im, r_re, r_im, PRODUCT)
        _store(target, re, im, n, i * I, j * I, t_half, t_row, LAST, I)
    if (i == k + 1) & (part == parts - 1):
        re, im = _inverted(re, im, tl.minimum(n - i * I, I), I)
        to = following + f * 2 * I * I + _square(I)
        tl.store(to, re)
        tl.store(to + I * I, im)


def reflected_resolvent(W: Tensor, a: Tensor | float, dtype: torch.dtype = torch.float32) -> Tensor:
    """2 (I + a (I - W))^-1 - I: real and imaginary parts (F, 2, n, n), float32 -> real form (F, 2n, 2n) of dtype.

    W may be a strided view. The rows of the result are padded in memory to 8 entries, which matrix products like.
    """
    return resolvent(W, a if isinstance(a, Tensor) else torch.full((), a, device=W.device), dtype)


def _result(W: Tensor, dtype: torch.dtype) -> Tensor:
    F, _, n, _ = W.shape
    return W.new_empty(F, 2 * n, 8 * -(-2 * n // 8), dtype=dtype)


def _run(W: Tensor, alpha: Tensor, dtype: torch.dtype) -> Tensor:
    F, _, n, _ = W.shape
    tiles = triton.cdiv(n, TILE)
    parts = tiles if F * tiles**2 <= CROWD else 1
    out = _result(W, dtype)
    stride = out.shape[2]
    scratch = W.new_empty(min(2, tiles - 1), F, 2, n, tiles * TILE)
    pivots = W.new_empty(2, F, 2, TILE, TILE)
    with torch.cuda.device_of(W):
        _first[(F,)](W, alpha, pivots[0], n, *W.stride(), I=TILE, num_warps=WARPS)
        source = W
        for k in range(tiles):
            last = k == tiles - 1
            target = out if last else scratch[k % 2]
            t_strides = (2 * n * stride, 0, stride) if last else target.stride()[:3]
            _step[(F * tiles * parts,)](
                source, alpha, pivots[k % 2], target, pivots[1 - k % 2], n, k, F, tiles, parts,
                *source.stride(), *t_strides, FIRST=k == 0, LAST=last, I=TILE, PRODUCT=PRECISION,
                num_warps=WARPS, num_stages=1, maxnreg=REGISTERS,
            )  # fmt: skip
            source = target
    return out[:, :, : 2 * n]


resolvent = operator(
    "resolvent(Tensor W, Tensor a, ScalarType dtype) -> Tensor",
    _run,
    fake=lambda W, a, dtype: _result(W, dtype)[:, :, : 2 * W.shape[2]],
)
