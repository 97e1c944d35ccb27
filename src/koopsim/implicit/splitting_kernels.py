"""What a splitting does between two affine maps, as one Triton kernel for CUDA.

    v = t + c,   z = P(v),   out = z or 2 z - t        and, where asked for, || z - z_before ||^2 and || z ||^2

with t and out in float32 or rounded to float16, c and the arithmetic in float32. A library would read and write the whole state four times for it. Each program sums over its rows and leaves its part,
so that the order of addition is fixed. The readable twin is in `splitting.py`; tests/implicit/test_monotone_kernels.py
holds them together, on a CPU through Triton's interpreter.
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
def _advance(
    t, before, c, keep, out, sums, D, B, keep_row, keep_column,
    RECTIFY: tl.constexpr, REFLECT: tl.constexpr, LOOK: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    part, parts = tl.program_id(0), tl.num_programs(0)
    start = part.to(tl.int64) * R  # the first row; what is counted from there is small
    row, column = tl.arange(0, R)[:, None], (tl.program_id(1) * S + tl.arange(0, S))[None, :]
    inside = (row < D - start) & (column < B)
    at = row * B + column
    t += start * B
    c += start * B
    out += start * B
    keep += start * keep_row
    offset = tl.load(c + at, mask=inside, other=0.0)
    step = tl.load(t + at, mask=inside, other=0.0).to(tl.float32)
    v = step + offset
    kept = tl.load(keep + row * keep_row + column * keep_column, mask=inside, other=0) != 0
    z = _projected(v, kept, RECTIFY)
    if REFLECT:
        tl.store(out + at, 2.0 * z - step, mask=inside)
    else:
        tl.store(out + at, z, mask=inside)
    if LOOK:
        before += start * B
        earlier = tl.load(before + at, mask=inside, other=0.0).to(tl.float32)
        old = _projected(earlier + offset, kept, RECTIFY)
        sample = tl.program_id(1) * S + tl.arange(0, S)
        tl.store(sums + part * B + sample, tl.sum((z - old) * (z - old), 0), mask=sample < B)
        tl.store(sums + (parts + part) * B + sample, tl.sum(z * z, 0), mask=sample < B)


def advance(
    t: Tensor, c: Tensor, keep: Tensor, rectify: bool, reflect: bool, dtype: torch.dtype, before: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The map above of states (D, B), its result rounded to dtype; with `before` also (2, B), two sums a sample."""
    t, c = t.contiguous(), c.contiguous()
    D, B = t.shape
    out, keep = torch.empty_like(t, dtype=dtype), keep.expand(D, B)
    samples = min(SAMPLES, max(16, triton.next_power_of_2(B)))
    grid = (triton.cdiv(D, ROWS), triton.cdiv(B, samples))
    sums = c.new_empty(2, grid[0], B) if before is not None else None
    _advance[grid](
        t, t if before is None else before.contiguous(), c, keep, out, c if sums is None else sums, D, B,
        keep.stride(0), keep.stride(1),
        RECTIFY=rectify, REFLECT=reflect, LOOK=before is not None, R=ROWS, S=samples, num_warps=8,
    )  # fmt: skip
    return out, None if sums is None else sums.sum(1)
