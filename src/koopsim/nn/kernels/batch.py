"""The rows of a step's batch in one Triton kernel, for CUDA.

    x[order[p, size position_p + i]],  y[the same]            for each member p and row i of its batch

Where a member stands in its epoch, which sample that is and the sample itself are five launches of tensor operations,
each of which waits for the one before. The readable twin is `engine.feeds.Resident.batch`;
tests/nn/kernels/test_batch_kernels.py compares the two, which give the same bits.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.nn.kernels.operators import operator

BLOCK = 1024  # entries of a sample that a program copies
KINDS = (torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)


@triton.jit
def _copy(x, y, order, positions, x_rows, y_rows, n, size, first, count, x_wide, y_wide, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    member, i = row // count, row % count
    at = tl.load(positions + member) * size + first + i
    at = tl.minimum(tl.maximum(at, 0), n - 1)  # memory of others' is not to be read whatever a position says
    sample = tl.load(order + member * n + at)
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_rows + row * x_wide + e, tl.load(x + sample * x_wide + e, mask=e < x_wide), mask=e < x_wide)
    tl.store(y_rows + row * y_wide + e, tl.load(y + sample * y_wide + e, mask=e < y_wide), mask=e < y_wide)


def copyable(x: Tensor, y: Tensor) -> bool:
    """Whether the kernel can copy these samples: without gaps, and of kinds that it knows."""
    return x.dtype in KINDS and y.dtype in KINDS and x.is_contiguous() and y.is_contiguous()


def _run(
    x: Tensor, y: Tensor, order: Tensor, positions: Tensor, size: int, first: int, count: int
) -> tuple[Tensor, Tensor]:
    x, y, order, positions = (t.contiguous() for t in (x, y, order, positions))
    members, n = order.shape
    found = _rows(x, members * count), _rows(y, members * count)
    wide = math.prod(x.shape[1:]), math.prod(y.shape[1:])
    with torch.cuda.device_of(x):
        grid = (members * count, triton.cdiv(max(1, *wide), BLOCK))
        _copy[grid](x, y, order, positions, *found, n, size, first, count, *wide, BLOCK=BLOCK)
    return found


def _rows(t: Tensor, rows: int) -> Tensor:
    return t.new_empty(rows, *t.shape[1:])


batch_rows = operator(
    "batch_rows(Tensor x, Tensor y, Tensor order, Tensor positions, int size, int first, int count) "
    "-> (Tensor, Tensor)",
    _run,
    fake=lambda x, y, order, positions, size, first, count: (
        _rows(x, len(order) * count),
        _rows(y, len(order) * count),
    ),
)  # x, y (samples, ...), order (P, n), positions (P,) -> rows (P count, ...) of each, from the first of a batch on
