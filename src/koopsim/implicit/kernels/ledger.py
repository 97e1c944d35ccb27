"""A solver's books on CUDA: three kernels a step instead of some fifteen, with nothing asked of the host.

    measure   g = f(z) - z, and of each block of a sample || g ||^2 and || f(z) ||^2     one program a block
    judge     residuals, the best so far, who goes on, steps                             one program a sample
    choose    the best point, and the next: proposed where a sample goes on              one program a block

A block lies within one part of the state (`Tolerance.sizes`); the sums of blocks are added in a fixed order. What is
kept of a sample is written where it lies: (B, 1) each, and (B, P) of its parts. The readable twin is `Ledger` in
../ledger.py; tests/implicit/test_solver_ledger.py holds them together, on a CPU through Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

import functools
import itertools

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.implicit.iteration import EPS, Tolerance
from koopsim.implicit.ledger import Ledger
from koopsim.nn.kernels.operators import without_gaps, writer

BLOCK = 2048
MOST_BLOCKS = 4096  # of a sample: their sums are one program's; larger states are left to the twin
MOST_PARTS = 16


def can_keep(z: Tensor, tol: Tolerance) -> bool:
    """Whether the kernels can keep the books of this solve."""
    B, D = z.shape
    small = 0 < B < 2**31 and 0 < D <= BLOCK * MOST_BLOCKS and len(tol.sizes) <= MOST_PARTS and 0 not in tol.sizes
    return small and z.dtype in (torch.float32, torch.float64) and isinstance(tol.kind, str)


@triton.jit
def _measure(z, fz, g, blocks, sums, D, count, WIDE: tl.constexpr, N: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start, end = tl.load(blocks + 3 * block), tl.load(blocks + 3 * block + 1)
    at = start + tl.arange(0, N)
    inside = at < end
    here = row * D + at
    image = tl.load(fz + here, mask=inside, other=0.0)
    step = image - tl.load(z + here, mask=inside, other=0.0)
    tl.store(g + here, step, mask=inside)
    if WIDE:
        image, step = image.to(tl.float64), step.to(tl.float64)
    tl.store(sums + 2 * (row * count + block), tl.sum(step * step))
    tl.store(sums + 2 * (row * count + block) + 1, tl.sum(image * image))


@triton.jit
def _residual(g2, f2, part, p, eps, ABSOLUTE: tl.constexpr):
    residual = tl.sqrt(tl.sum(tl.where(part == p, g2, 0.0)))
    if not ABSOLUTE:
        residual = residual / (tl.sqrt(tl.sum(tl.where(part == p, f2, 0.0))) + eps)
    return residual


@triton.jit
def _judge(
    sums, blocks, norm, better, worst, parts, active, steps, count, tol, eps,
    P: tl.constexpr, ABSOLUTE: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, C)
    there = block < count
    part = tl.load(blocks + 3 * block + 2, mask=there, other=-1)
    g2 = tl.load(sums + 2 * (row * count + block), mask=there, other=0.0)
    f2 = tl.load(sums + 2 * (row * count + block) + 1, mask=there, other=0.0)
    tl.store(norm + row, tl.sqrt(tl.sum(g2)))
    largest = _residual(g2, f2, part, 0, eps, ABSOLUTE)
    for p in tl.static_range(1, P):
        residual = _residual(g2, f2, part, p, eps, ABSOLUTE)
        largest = tl.where((residual > largest) | (residual != residual), residual, largest)  # a nan stays
    before, was = tl.load(worst + row), tl.load(active + row) != 0
    is_better = was & (largest < before)  # of a sample that is done nobody knows f(z): a map may leave it out
    goes = was & (largest >= tol) & (largest < float("inf"))
    tl.store(steps + row, tl.load(steps + row) + was.to(tl.int64))
    tl.store(better + row, is_better.to(tl.int8))
    tl.store(active + row, goes.to(tl.int8))
    tl.store(worst + row, tl.where(is_better, largest, before))
    for p in tl.static_range(P):
        tl.store(parts + row * P + p, _residual(g2, f2, part, p, eps, ABSOLUTE), mask=is_better)


@triton.jit
def _choose(z, best, better, active, proposed, out, D, NEXT: tl.constexpr, N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * N + tl.arange(0, N)
    inside, here = at < D, row * D + at
    kept = tl.load(best + here, mask=inside, other=0.0)
    if tl.load(better + row) != 0:
        kept = tl.load(z + here, mask=inside, other=0.0)
        tl.store(best + here, kept, mask=inside)
    if NEXT:
        if tl.load(active + row) != 0:
            kept = tl.load(proposed + here, mask=inside, other=0.0)
        tl.store(out + here, kept, mask=inside)


def _run_measure(z: Tensor, fz: Tensor, blocks: Tensor, g: Tensor, sums: Tensor) -> None:
    without_gaps("solver_measure", g, sums)
    (B, D), count = z.shape, len(blocks)
    with torch.cuda.device_of(z):
        _measure[(B, count)](
            z.contiguous(),
            fz.contiguous(),
            g,
            blocks,
            sums,
            D,
            count,
            WIDE=z.dtype == torch.float64,
            N=BLOCK,
            num_warps=8,
        )


def _run_judge(sums: Tensor, blocks: Tensor, books: list[Tensor], tol: float, absolute: bool) -> None:
    without_gaps("solver_judge", *books)
    norm, better, worst, parts, active, steps = books
    count = len(blocks)
    with torch.cuda.device_of(sums):
        _judge[(len(norm),)](
            sums, blocks, norm, better, worst, parts, active.view(torch.uint8), steps, count, tol, EPS,
            P=parts.shape[1], ABSOLUTE=absolute, C=triton.next_power_of_2(count), num_warps=1 if count <= 64 else 4,
        )  # fmt: skip


def _run_choose(
    z: Tensor, best: Tensor, better: Tensor, active: Tensor, proposed: Tensor | None, out: Tensor | None
) -> None:
    (B, D), out = z.shape, best if out is None else out
    without_gaps("solver_choose", best, out, better, active)
    with torch.cuda.device_of(z):
        _choose[(B, triton.cdiv(D, BLOCK))](
            z.contiguous(), best, better, active.view(torch.uint8), z if proposed is None else proposed.contiguous(),
            out, D, NEXT=proposed is not None, N=BLOCK, num_warps=8,
        )  # fmt: skip


measure = writer(
    "solver_measure(Tensor z, Tensor fz, Tensor blocks, Tensor(a!) g, Tensor(b!) sums) -> ()", _run_measure
)
judge = writer(
    "solver_judge(Tensor sums, Tensor blocks, Tensor(a!)[] books, float tol, bool absolute) -> ()", _run_judge
)
choose = writer(
    "solver_choose(Tensor z, Tensor(a!) best, Tensor better, Tensor active, Tensor? proposed, Tensor(b!)? out) -> ()",
    _run_choose,
)


@functools.cache  # for good: a captured CUDA graph must never find it gone
@torch.inference_mode(False)
def _blocks(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Where each block begins and ends, and which part it is of: (blocks, 3)."""
    ends = [0, *itertools.accumulate(sizes)]
    table = [
        (start, min(start + BLOCK, end), part)
        for part, (first, end) in enumerate(itertools.pairwise(ends))
        for start in range(first, end, BLOCK)
    ]
    return torch.tensor(table, dtype=torch.int32).to(device)


class KernelLedger(Ledger):
    """As `Ledger`; the best point is chosen together with the next one, or when it is asked for."""

    in_place = True

    def __init__(self, z: Tensor, tol: Tolerance) -> None:
        super().__init__(z.clone(memory_format=torch.contiguous_format), tol)
        self.better = torch.zeros(z.shape[0], 1, dtype=torch.uint8, device=z.device)
        self.blocks = _blocks(tol.sizes or (z.shape[1],), z.device)
        self.seen: Tensor | None = None  # judged, and not yet chosen from

    @property
    def best(self) -> Tensor:
        if self.seen is not None:
            choose(self.seen, self._best, self.better, self.active, None, None)
            self.seen = None
        return self._best

    @best.setter
    def best(self, point: Tensor) -> None:
        self._best, self.seen = point, None

    def judge(self, z: Tensor, fz: Tensor) -> tuple[Tensor, Tensor]:
        _ = self.best
        g, norm = torch.empty_like(z, memory_format=torch.contiguous_format), z.new_empty(z.shape[0], 1)
        sums = z.new_empty(z.shape[0], len(self.blocks), 2)
        measure(z, fz, self.blocks, g, sums)
        books = [norm, self.better, self.worst, self.parts, self.active, self.steps]
        judge(sums, self.blocks, books, self.tol.value, self.tol.kind == "absolute")
        self.seen = z
        return g, norm

    def next(self, proposed: Tensor, fz: Tensor) -> Tensor:
        assert self.seen is not None
        out = torch.empty_like(self._best)
        choose(self.seen, self._best, self.better, self.active, proposed, out)
        self.seen = None
        return out
