"""What a splitting does between two affine maps, as one Triton kernel for CUDA; and what moves rows between tiers.

    v = t + c,   z = P(v),   w = z or 2 z - t        and, where asked for, || z - z_before ||^2 and || z ||^2

with t and w in float32 or rounded to float16, as pixels or paired (`circular.py`), each row in its place (`stored.py`);
c, z and the arithmetic in float32. A library would read and write the whole state four times for it. A program takes
some rows of one tier, or if paired as many of the upper half and those below them in the lower; it sums over its rows
and leaves its part, so that the order of addition is fixed. Rows past the last are read as zero, and so w is zero where
its places go on. The readable twins are in `splitting.py` and `stored.py`;
tests/implicit/kernels/test_monotone_kernels.py holds them together, on a CPU through Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

import functools
import itertools

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.implicit.splitting import Places, Projection, Storage, Units
from koopsim.nn.kernels.operators import operator, without_gaps, writer

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
def _pixels(
    t, before, c, unit, keep, at, keep_at, inside, RECTIFY: tl.constexpr, REFLECT: tl.constexpr, LOOK: tl.constexpr
):  # fmt: skip
    """z, w, and where asked for how far z moved."""
    offset = tl.load(c + at, mask=inside, other=0.0) * unit
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
def _placed(places, start, end, R: tl.constexpr):
    """The places of R rows. Read before they are spread over columns, or each thread would read them many times."""
    row = tl.arange(0, R)
    return tl.load(places + start + row, mask=row < end - start, other=0).to(tl.int64)


@triton.jit
def _advance(
    t, before, c, keep, out, t_places, out_places, blocks, sums, c_units, z_units, D, written, B, parts,
    half, t_half, out_half, keep_row, keep_column, keep_half,
    RECTIFY: tl.constexpr, REFLECT: tl.constexpr, END: tl.constexpr, LOOK: tl.constexpr, PAIRED: tl.constexpr,
    T_PLACED: tl.constexpr, OUT_PLACED: tl.constexpr, TIERED: tl.constexpr, UNITS: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """D: the rows of a state, or if paired of its upper half; `half` etc.: from there to the lower one."""
    part = tl.program_id(0)
    start = part.to(tl.int64) * R  # the first row; what is counted from there is small
    if TIERED:
        start = tl.load(blocks + 3 * part).to(tl.int64)
        end = tl.load(blocks + 3 * part + 1)  # of this tier
        D, written = tl.minimum(D, end), tl.minimum(written, end)
        part = tl.load(blocks + 3 * part + 2)
    row, column = tl.arange(0, R)[:, None], (tl.program_id(1) * S + tl.arange(0, S))[None, :]
    inside = (row < D - start) & (column < B)
    at, keep_at = row * B + column, row * keep_row + column * keep_column
    c += start * B
    keep += start * keep_row
    if T_PLACED:
        t_at = _placed(t_places, start, D, R)[:, None] * B + column
    else:
        t_at = start * B + at
    if OUT_PLACED:
        out_at = _placed(out_places, start, written, R)[:, None] * B + column
    else:
        out_at = start * B + at
    c_unit, z_unit = 1.0, 1.0
    if UNITS:
        c_unit = tl.load(c_units + column, mask=column < B, other=0.0)
        z_unit = tl.load(z_units + column, mask=column < B, other=0.0)
    upper, lower = _stored(t, t_at, t_half, inside, PAIRED)
    old_upper, old_lower = upper, lower
    if LOOK:
        old_upper, old_lower = _stored(before, t_at, t_half, inside, PAIRED)
    z, w, change = _pixels(upper, old_upper, c, c_unit, keep, at, keep_at, inside, RECTIFY, REFLECT, LOOK)
    changes, sizes = change * change, z * z
    to = (row < written - start) & (column < B)
    if PAIRED:
        z_low, w_low, change = _pixels(
            lower, old_lower, c + half, c_unit, keep + keep_half, at, keep_at, inside, RECTIFY, REFLECT, LOOK
        )  # fmt: skip
        changes += change * change
        sizes += z_low * z_low
        if END:
            tl.store(out + out_half + out_at, z_low * z_unit, mask=to)
        else:
            tl.store(out + out_half + out_at, (w - w_low) * 0.7071067811865476, mask=to)
            w = (w + w_low) * 0.7071067811865476
    if END:
        w = z * z_unit
    tl.store(out + out_at, w, mask=to)
    if LOOK:
        sample = tl.program_id(1) * S + tl.arange(0, S)
        tl.store(sums + part * B + sample, tl.sum(changes, 0), mask=sample < B)
        tl.store(sums + (parts + part) * B + sample, tl.sum(sizes, 0), mask=sample < B)


def advance(
    t: Tensor,
    c: Tensor,
    P: Projection,
    storage: Storage,
    reflect: bool,
    end: bool,
    before: Tensor | None = None,
    units: Units | None = None,
) -> tuple[Tensor, Tensor | None]:
    """t -> w as stored, or at the `end` -> z, float32: (D, B); with `before` also the sums of each tier and sample."""
    places = None if end else storage.w
    out, sums = split_step(
        t, c, P.keep, before, *((units.c, units.z) if units else (None, None)),
        storage.t.index if storage.t else None, places.index if places else None,
        list(storage.tiers), places.rows if places else len(c), c.dtype if end else storage.dtype,
        [P.rectify, reflect, end, storage.paired, _scattered(storage.t), _scattered(places)],
    )  # fmt: skip
    return out, None if before is None else sums


def _run(
    t: Tensor, c: Tensor, keep: Tensor, before: Tensor | None, c_units: Tensor | None, z_units: Tensor | None,
    t_index: Tensor | None, w_index: Tensor | None, sizes: list[int], rows: int, dtype: torch.dtype, flags: list[bool],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    rectify, reflect, end, paired, t_placed, w_placed = flags
    t, c = t.contiguous(), c.contiguous()
    (D, B), halves = c.shape, 1 + paired
    keep, out = keep.expand(D, B), c.new_empty(rows, B, dtype=dtype)
    samples, each = _samples(B), ROWS // halves
    upper = D // halves
    written, tiers = upper if w_index is None else len(w_index), max(1, len(sizes))
    blocks = _blocks(tuple(sizes), written, each, c.device) if tiers > 1 else t
    programs = len(blocks) if tiers > 1 else triton.cdiv(written, each)
    grid, parts = (programs, triton.cdiv(B, samples)), tiers * programs  # room for all of them in each tier
    look = before is not None
    sums = (c.new_zeros if tiers > 1 else c.new_empty)(2, parts, B) if look else c.new_empty(2, 0, B)
    with torch.cuda.device_of(c):
        _advance[grid](
            t, before.contiguous() if look else t, c, keep, out,
            t if t_index is None else t_index, t if w_index is None else w_index, blocks, sums if look else c,
            c if c_units is None else c_units.contiguous(), c if z_units is None else z_units.contiguous(),
            upper, written, B, parts, upper * B, t.numel() // halves, out.numel() // halves,
            keep.stride(0), keep.stride(1), upper * keep.stride(0),
            RECTIFY=rectify, REFLECT=reflect, END=end, LOOK=look, PAIRED=paired,
            T_PLACED=t_placed, OUT_PLACED=w_placed, TIERED=tiers > 1, UNITS=c_units is not None,
            R=each, S=samples, num_warps=8,
        )  # fmt: skip
    return out, sums.unflatten(1, (tiers, -1)).sum(2) if look else c.new_empty(0)


def _fake(t, c, keep, before, c_units, z_units, t_index, w_index, sizes, rows, dtype, flags):
    sums = (0,) if before is None else (2, max(1, len(sizes)), c.shape[1])
    return c.new_empty(rows, c.shape[1], dtype=dtype), c.new_empty(sums)


split_step = operator(
    "split_step(Tensor t, Tensor c, Tensor keep, Tensor? before, Tensor? c_units, Tensor? z_units, Tensor? t_index, "
    "Tensor? w_index, int[] sizes, SymInt rows, ScalarType dtype, bool[] flags) -> (Tensor, Tensor)",
    _run,
    fake=_fake,
)


@functools.cache  # for good: a captured CUDA graph must never find it gone
@torch.inference_mode(False)
def _blocks(tiers: tuple[int, ...], written: int, rows: int, device: torch.device) -> Tensor:
    """A program's first row, where its tier ends, and its place among the sums: (programs, 3).

    The rows that are only written, as zeros, are counted to the last tier.
    """
    ends = [*itertools.accumulate(tiers)]
    ends[-1] = max(written, ends[-1])
    found = [
        (start, end, tier)
        for tier, (first, end) in enumerate(itertools.pairwise([0, *ends]))
        for start in range(first, end, rows)
    ]
    programs = len(found)
    table = [(start, end, tier * programs + i) for i, (start, end, tier) in enumerate(found)]
    return torch.tensor(table, dtype=torch.int32).to(device)


@triton.jit
def _move(source, rows, target, places, count, B, R: tl.constexpr, S: tl.constexpr):
    start, column = tl.program_id(0) * R, (tl.program_id(1) * S + tl.arange(0, S))[None, :]
    inside = (tl.arange(0, R)[:, None] < count - start) & (column < B)
    moved = tl.load(source + _placed(rows, start, count, R)[:, None] * B + column, mask=inside)
    tl.store(target + _placed(places, start, count, R)[:, None] * B + column, moved, mask=inside)


def _run_move(source: Tensor, rows: Tensor, target: Tensor, places: Tensor) -> None:
    without_gaps("move", target)
    source, rows, places = source.contiguous(), rows.contiguous(), places.contiguous()
    count, B = len(rows), source.shape[1]
    samples = _samples(B)
    grid = (triton.cdiv(count, ROWS), triton.cdiv(B, samples))
    with torch.cuda.device_of(source):
        _move[grid](source, rows, target, places, count, B, R=ROWS, S=samples, num_warps=8)


move = writer("move(Tensor source, Tensor rows, Tensor(a!) target, Tensor places) -> ()", _run_move)
# target[places] = source[rows], of two (., B)


def _scattered(places: Places | None) -> bool:
    return places is not None and not places.in_order


def _samples(B: int) -> int:
    """As many as a program takes."""
    return next((size for size in (16, 32, 64) if size >= B), SAMPLES)
