"""The end of a training step in two Triton kernels, for CUDA.

    1   sums_i = |g_i|^2 of part i of g;    losses[position] <- loss;    scalars <- schedule[step];    both counters + 1
    2   g <- min(1, clip / |g|) g;    mean, square, parameters and their average

A small network's update is no work at all, but as tensor operations it is thirty launches. Only one program of the
first kernel touches a member's counters, and the second reads the scalars it left behind: no program can see a counter
that another has moved. The readable twin is engine/update.py; tests/nn/kernels/test_adam_kernels.py compares the two.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.nn.kernels.operators import without_gaps, writer

PARTS = 128  # programs that share the sum of squares; each leaves its part, so that the order of addition is fixed
BLOCK = 512  # entries a program looks at together
SCALARS = 8  # a row of the schedule's table, and whether there is a step to take; the rest is for round numbers


class Updated(Protocol):
    """What an update is made of: engine/members.py says what each is."""

    flat: Tensor
    mean: Tensor
    square: Tensor
    averaged: dict[str, Tensor]
    decayed: Tensor | None
    schedules: Tensor
    steps: Tensor
    positions: Tensor
    active: Tensor
    losses: Tensor
    rule: Any


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
    g, sums, n, rounds, table, scalars, horizon, steps, positions, active, loss, losses, epoch_steps,
    CLIP: tl.constexpr, BLOCK: tl.constexpr, SCALARS: tl.constexpr,
):  # fmt: skip
    """A member that was stopped or is at its end takes no step."""
    if CLIP:
        _part_of_norm(g, sums, n, rounds, BLOCK)
    if tl.program_id(0) == 0:
        member = tl.program_id(1)
        step = tl.load(steps + member)
        position = tl.load(positions + member)
        goes = (step < horizon) & (tl.load(active + member) > 0)
        row = member.to(tl.int64) * horizon + tl.minimum(step, horizon - 1)
        which = tl.arange(0, 4)
        tl.store(scalars + member * SCALARS + which, tl.load(table + row * 4 + which))
        tl.store(scalars + member * SCALARS + 4, tl.where(goes, 1.0, 0.0))
        at = member.to(tl.int64) * epoch_steps + tl.minimum(position, epoch_steps - 1)
        tl.store(losses + at, tl.load(loss + member).to(losses.dtype.element_ty), mask=goes)
        tl.store(steps + member, step + 1, mask=goes)
        tl.store(positions + member, position + 1, mask=goes)


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


def _run(
    g: Tensor, losses: Tensor, flat: Tensor, mean: Tensor, square: Tensor, averaged: Tensor | None,
    decayed: Tensor | None, schedules: Tensor, steps: Tensor, positions: Tensor, active: Tensor, record: Tensor,
    eps: float, clip: float | None, weight: float, square_decay: float,
) -> None:  # fmt: skip
    without_gaps("adam", flat, mean, square, steps, positions, record, *([] if averaged is None else [averaged]))
    g, losses, schedules, active = (t.contiguous() for t in (g, losses, schedules, active))
    decayed = decayed if decayed is None else decayed.contiguous()
    size, n = g.shape
    sums, scalars = g.new_empty(size, PARTS), g.new_empty(size, SCALARS)
    with torch.cuda.device_of(g):
        _measure[(1 if clip is None else PARTS, size)](
            g, sums, n, triton.cdiv(n, PARTS * BLOCK), schedules, scalars, schedules.shape[1], steps,
            positions, active.view(torch.uint8), losses, record, record.shape[1],
            CLIP=clip is not None, BLOCK=BLOCK, SCALARS=SCALARS,
        )  # fmt: skip
        _update[(triton.cdiv(n, BLOCK), size)](
            g, flat, mean, square, flat if decayed is None else decayed, flat if averaged is None else averaged,
            sums, scalars, n, eps, clip or 0.0, weight, SQUARE_DECAY=square_decay, CLIP=clip is not None,
            DECAY=decayed is not None, AVERAGE=averaged is not None, PARTS=PARTS, BLOCK=BLOCK, SCALARS=SCALARS,
        )  # fmt: skip


adam = writer(
    "adam(Tensor g, Tensor losses, Tensor(a!) flat, Tensor(b!) mean, Tensor(c!) square, Tensor(d!)? averaged, "
    "Tensor? decayed, Tensor schedules, Tensor(e!) steps, Tensor(f!) positions, Tensor active, Tensor(h!) record, "
    "float eps, float? clip, float weight, float square_decay) -> ()",
    _run,
)


@torch.no_grad()
def update(members: Updated, g: Tensor, losses: Tensor, square_decay: float) -> None:
    """Clip, update, average, write the losses down, count, for each member that goes on."""
    m, rule = members, members.rule
    clip = None if rule.clip_norm is None else rule.scale * rule.clip_norm
    adam(
        g, losses, m.flat, m.mean, m.square, m.averaged.get("parameters"), m.decayed, m.schedules, m.steps,
        m.positions, m.active, m.losses, rule.scale * rule.eps, clip, 1.0 - rule.average, square_decay,
    )  # fmt: skip
