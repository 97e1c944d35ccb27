"""The end of a training step in two Triton kernels, for CUDA.

    1   sums_i = |g_i|^2 of part i of g;    losses[position] <- loss;    scalars <- table[step];    both counters + 1
    2   g <- min(1, clip / |g|) g;    mean, square, parameters and their average, as in `adam`

A small network's update is no work at all, but as tensor operations it is thirty launches. Only one program of the
first kernel touches the counters, and the second reads the scalars it left behind: no program can see a counter that
another has moved. A population is the same with a member to each row of the grid. The readable twins are
`Adam.advance` on a CPU and `Population.update`; tests/nn/kernels/test_adam_kernels.py holds them together.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

PARTS = 128  # programs that share the sum of squares; each leaves its part, so that the order of addition is fixed
BLOCK = 512  # entries a program looks at together
SCALARS = 8  # a row of the schedule's table, and whether there is a step to take; the rest is for round numbers


class Updated(Protocol):
    """What an update is made of, of one model or of many: rows of `mean`, `square` and `averaged` are members."""

    mean: Tensor
    square: Tensor
    averaged: Tensor | None
    decayed: Tensor | None  # (n,): 1 where an entry decays
    eps: float
    clip_norm: float | None
    average: float


class Alone(Updated, Protocol):
    flat: Tensor


class Course(Protocol):
    """How far one model has come."""

    @property
    def table(self) -> Tensor: ...
    @property
    def counters(self) -> Tensor: ...
    @property
    def losses(self) -> Tensor: ...


class Stack(Protocol):
    flat: Tensor


class Members(Updated, Protocol):
    """How far many have come."""

    schedules: Tensor  # (P, horizon, 4)
    horizon: int
    steps: Tensor
    active: Tensor
    losses: Tensor

    @property
    def stack(self) -> Stack: ...


@triton.jit
def _part_of_norm(g, sums, n, rounds, BLOCK: tl.constexpr):
    """sums[member, part] = the sum of squares of every `parts`th block of g[member]."""
    part, parts, member = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    g += member.to(tl.int64) * n
    squares = tl.zeros((BLOCK,), tl.float32)
    for turn in range(0, rounds):
        at = (turn * parts + part) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(g + at, mask=at < n, other=0.0)
        squares += v * v
    tl.store(sums + member * parts + part, tl.sum(squares, 0))


@triton.jit
def _measure(
    g, sums, n, rounds, table, scalars, steps, counters, loss, losses, positions,
    CLIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of one model: a step it has no scalars for is taken all the same, and leaves nothing that is a number."""
    if CLIP:
        _part_of_norm(g, sums, n, rounds, BLOCK)
    if tl.program_id(0) == 0:
        step = tl.load(counters)
        position = tl.load(counters + 1)
        which = tl.arange(0, 4)
        row = tl.load(table + tl.minimum(step, steps - 1) * 4 + which)
        tl.store(scalars + which, tl.where(step < steps, row, float("nan")))
        tl.store(scalars + 4, 1.0)
        tl.store(losses + position, tl.load(loss).to(losses.dtype.element_ty), mask=position < positions)
        tl.store(counters, step + 1)
        tl.store(counters + 1, position + 1)


@triton.jit
def _measure_members(
    g, sums, n, rounds, table, scalars, horizon, steps, active, loss, losses,
    CLIP: tl.constexpr, BLOCK: tl.constexpr, SCALARS: tl.constexpr,
):  # fmt: skip
    """Of many: a member that was stopped or is at its end takes no step."""
    if CLIP:
        _part_of_norm(g, sums, n, rounds, BLOCK)
    if tl.program_id(0) == 0:
        member = tl.program_id(1)
        step = tl.load(steps + member)
        goes = (step < horizon) & (tl.load(active + member) > 0)
        at = member * horizon + tl.minimum(step, horizon - 1)
        which = tl.arange(0, 4)
        tl.store(scalars + member * SCALARS + which, tl.load(table + at * 4 + which))
        tl.store(scalars + member * SCALARS + 4, tl.where(goes, 1.0, 0.0))
        tl.store(losses + at, tl.load(loss + member).to(losses.dtype.element_ty), mask=goes)
        tl.store(steps + member, step + 1, mask=goes)


@triton.jit
def _update(
    g, flat, mean, square, decayed, averaged, sums, scalars, n, eps, clip, weight,
    SQUARE_DECAY: tl.constexpr, CLIP: tl.constexpr, DECAY: tl.constexpr, AVERAGE: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, SCALARS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1)
    scalars += member * SCALARS
    sums += member * PARTS
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < tl.where(tl.load(scalars + 4) > 0, n, 0)  # who stands still reads and writes nothing
    at = member.to(tl.int64) * n + entry
    v = tl.load(g + at, mask=inside, other=0.0)
    m = tl.load(mean + at, mask=inside, other=0.0)
    s = tl.load(square + at, mask=inside, other=0.0)
    p = tl.load(flat + at, mask=inside, other=0.0)
    if CLIP:
        ratio = clip / (tl.sqrt(tl.sum(tl.load(sums + tl.arange(0, PARTS)), 0)) + 1e-6)
        v = v * tl.where(ratio >= 1.0, 1.0, ratio)  # a norm that is not a number spoils all, as in the twin
    m += (v - m) * tl.load(scalars + 2)
    s = s * SQUARE_DECAY + v * v * (1.0 - SQUARE_DECAY)
    if DECAY:
        p -= tl.load(scalars + 3) * tl.load(decayed + entry, mask=inside, other=0.0) * p
    p -= tl.load(scalars) * m / (tl.sqrt(s) / tl.load(scalars + 1) + eps)
    tl.store(mean + at, m, mask=inside)
    tl.store(square + at, s, mask=inside)
    tl.store(flat + at, p, mask=inside)
    if AVERAGE:
        a = tl.load(averaged + at, mask=inside, other=0.0)
        tl.store(averaged + at, a + weight * (p - a), mask=inside)


@torch.no_grad()
def advance(adam: Alone, g: Tensor, loss: Tensor, course: Course, square_decay: float) -> None:
    """`Adam.advance`: clip, update, average, write the loss down, count."""
    clips, decays, averages = adam.clip_norm is not None, adam.decayed is not None, adam.averaged is not None
    n, steps, positions = len(g), len(course.table), len(course.losses)
    sums, scalars = g.new_empty(PARTS), g.new_empty(SCALARS)
    with torch.cuda.device_of(g):
        _measure[(PARTS if clips else 1, 1)](
            g, sums, n, triton.cdiv(n, PARTS * BLOCK), course.table, scalars, steps, course.counters, loss,
            course.losses, positions, CLIP=clips, BLOCK=BLOCK,
        )  # fmt: skip
        _update[(triton.cdiv(n, BLOCK), 1)](
            g, adam.flat, adam.mean, adam.square,
            adam.flat if adam.decayed is None else adam.decayed,
            adam.flat if adam.averaged is None else adam.averaged,
            sums, scalars, n, adam.eps, adam.clip_norm or 0.0, 1 - adam.average,
            SQUARE_DECAY=square_decay, CLIP=clips, DECAY=decays, AVERAGE=averages,
            PARTS=PARTS, BLOCK=BLOCK, SCALARS=SCALARS,
        )  # fmt: skip


@torch.no_grad()
def advance_members(population: Members, g: Tensor, losses: Tensor, square_decay: float) -> None:
    """`Population.update`: clip, update, average, write the losses down, count, for each member that goes on."""
    flat, clips, decays = population.stack.flat, population.clip_norm is not None, population.decayed is not None
    averages = population.averaged is not None
    members, n = g.shape
    sums, scalars = g.new_empty(members, PARTS), g.new_empty(members, SCALARS)
    with torch.cuda.device_of(g):
        _measure_members[(PARTS if clips else 1, members)](
            g, sums, n, triton.cdiv(n, PARTS * BLOCK), population.schedules, scalars, population.horizon,
            population.steps, population.active.view(torch.uint8), losses.contiguous(), population.losses,
            CLIP=clips, BLOCK=BLOCK, SCALARS=SCALARS,
        )  # fmt: skip
        _update[(triton.cdiv(n, BLOCK), members)](
            g, flat, population.mean, population.square, flat if population.decayed is None else population.decayed,
            flat if population.averaged is None else population.averaged,
            sums, scalars, n, population.eps, population.clip_norm or 0.0, 1 - population.average,
            SQUARE_DECAY=square_decay, CLIP=clips, DECAY=decays, AVERAGE=averages,
            PARTS=PARTS, BLOCK=BLOCK, SCALARS=SCALARS,
        )  # fmt: skip
