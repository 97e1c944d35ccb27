"""What a splitting does between two affine maps, as one Triton kernel for CUDA.

    v = t + c,   z = P(v),   w = z or 2 z - t        and, where asked for, || z - z_before ||^2 and || z ||^2

with t and w in float32 or rounded to float16, as pixels or paired (`circular.py`); c, z and the arithmetic in float32.
A library would read and write the whole state four times for it. A program takes some rows, or if paired as many of the
upper half and those below them in the lower; it sums over its rows and leaves its part, so that the order of addition
is fixed. The readable twin is in `splitting.py`; tests/implicit/test_monotone_kernels.py holds them together, on a CPU
through Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32
SAMPLES = 128


@triton.jit
def _projected(v, kept, RECTIFY: tl.constexpr):
    if RECTIFY:
        v = tl.where(v < 0, 0.0, v)  # as in PyTorch a nan stays one, which a maximum would not
    return tl.where(kept, v, 0.0)


@triton.jit
def _stored(t, at, half, inside, PAIRED: tl.constexpr):
    """What is stored there, as pixels of the upper and of the lower half (the same twice where there is no other)."""
    upper = tl.load(t + at, mask=inside, other=0.0).to(tl.float32)
    lower = upper
    if PAIRED:
        lower = tl.load(t + half + at, mask=inside, other=0.0).to(tl.float32)
        upper, lower = (upper + lower) * 0.7071067811865476, (upper - lower) * 0.7071067811865476
    return upper, lower


@triton.jit
def _pixels(t, before, c, keep, at, keep_at, inside, RECTIFY: tl.constexpr, REFLECT: tl.constexpr, LOOK: tl.constexpr):
    """z, w, and where asked for how far z moved."""
    offset = tl.load(c + at, mask=inside, other=0.0)
    kept = tl.load(keep + keep_at, mask=inside, other=0) != 0
    z = _projected(t + offset, kept, RECTIFY)
    w = z
    if REFLECT:
        w = 2.0 * z - t
    change = z
    if LOOK:
        change = z - _projected(before + offset, kept, RECTIFY)
    return z, w, change


@triton.jit
def _advance(
    t, before, c, keep, out, sums, D, B, half, keep_row, keep_column, keep_half,
    RECTIFY: tl.constexpr, REFLECT: tl.constexpr, END: tl.constexpr, LOOK: tl.constexpr, PAIRED: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """D: the rows of a state, or if paired of its upper half; `half`, `keep_half`: from there to the lower one."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    start = part.to(tl.int64) * R  # the first row; what is counted from there is small
    row, column = tl.arange(0, R)[:, None], (tl.program_id(1) * S + tl.arange(0, S))[None, :]
    inside = (row < D - start) & (column < B)
    at, keep_at = row * B + column, row * keep_row + column * keep_column
    c += start * B
    keep += start * keep_row
    out += start * B
    upper, lower = _stored(t + start * B, at, half, inside, PAIRED)
    old_upper, old_lower = upper, lower
    if LOOK:
        old_upper, old_lower = _stored(before + start * B, at, half, inside, PAIRED)
    z, w, change = _pixels(upper, old_upper, c, keep, at, keep_at, inside, RECTIFY, REFLECT, LOOK)
    changes, sizes = change * change, z * z
    if PAIRED:
        z_low, w_low, change = _pixels(
            lower, old_lower, c + half, keep + keep_half, at, keep_at, inside, RECTIFY, REFLECT, LOOK
        )  # fmt: skip
        changes += change * change
        sizes += z_low * z_low
        if END:
            tl.store(out + half + at, z_low, mask=inside)
        else:
            tl.store(out + half + at, (w - w_low) * 0.7071067811865476, mask=inside)
            w = (w + w_low) * 0.7071067811865476
    if END:
        w = z
    tl.store(out + at, w, mask=inside)
    if LOOK:
        sample = tl.program_id(1) * S + tl.arange(0, S)
        tl.store(sums + part * B + sample, tl.sum(changes, 0), mask=sample < B)
        tl.store(sums + (parts + part) * B + sample, tl.sum(sizes, 0), mask=sample < B)


def advance(
    t: Tensor,
    c: Tensor,
    keep: Tensor,
    dtype: torch.dtype,
    paired: bool,
    rectify: bool,
    reflect: bool,
    end: bool,
    before: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """t -> w as stored, or at the `end` -> z, float32: (D, B); with `before` also (2, B), the two sums of a sample."""
    t, c = t.contiguous(), c.contiguous()
    D, B = t.shape
    out, keep = torch.empty_like(t, dtype=c.dtype if end else dtype), keep.expand(D, B)
    samples = min(SAMPLES, max(16, triton.next_power_of_2(B)))
    upper, rows = (D // 2, ROWS // 2) if paired else (D, ROWS)
    grid = (triton.cdiv(upper, rows), triton.cdiv(B, samples))
    sums = c.new_empty(2, grid[0], B) if before is not None else None
    _advance[grid](
        t, t if before is None else before.contiguous(), c, keep, out, c if sums is None else sums, upper, B,
        upper * B, keep.stride(0), keep.stride(1), upper * keep.stride(0),
        RECTIFY=rectify, REFLECT=reflect, END=end, LOOK=before is not None, PAIRED=paired,
        R=rows, S=samples, num_warps=8,
    )  # fmt: skip
    return out, None if sums is None else sums.sum(1)
