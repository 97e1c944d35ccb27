"""A layer of very many rows with its ReLU, in one Triton kernel for CUDA.

    y = relu(x W^T + b)          x (M, R, K),  W (M, H, K) in bfloat16 or float16,  b (M, H) in float32

A library's product leaves bias and ReLU to a second pass over all of y, which takes half as long as the product. Here
128 rows and all H columns are a program's own, 64 of the K entries at a time by tensor cores.
The readable twin is `F.relu(x @ W.mT + b)`; tests/nn/kernels/test_pixels_kernels.py holds them together,
on a CPU through Triton's interpreter.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from koopsim.nn.transforms import has_room

ROWS = 128  # a program has
DEPTH = 64  # entries of K that are multiplied at a time
WIDEST = 256  # H: the sums of a program fill half of the registers there are
SHARED = 200 << 10  # bytes that four stages of the loop take with the widest layer
LAUNCH = {"num_warps": 8, "num_stages": 4}


@triton.jit
def _layer(x, W, b, y, rows, K: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    model = tl.program_id(1).to(tl.int64)
    r, h, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, H), tl.arange(0, DEPTH)
    x += (model * rows + r)[:, None] * K + k[None, :]
    W += model * H * K + h[None, :] * K + k[:, None]
    sums = tl.zeros((ROWS, H), tl.float32) + tl.load(b + model * H + h)[None, :]
    for _ in range(0, K, DEPTH):
        sums = tl.dot(tl.load(x), tl.load(W), sums)
        x += DEPTH
        W += DEPTH
    sums = tl.where(sums < 0, 0.0, sums)  # a nan stays one
    tl.store(y + (model * rows + r)[:, None] * H + h[None, :], sums.to(y.dtype.element_ty))


def divides(x: Tensor, H: int) -> bool:
    """Whether x and a layer to H columns divide as the kernel wants, on a GPU with room for it."""
    even = x.shape[1] % ROWS == 0 and x.shape[2] % DEPTH == 0 and 16 <= H <= WIDEST and H & (H - 1) == 0
    return even and x.dtype in (torch.bfloat16, torch.float16) and has_room(x.device, SHARED)


def relu_layer(x: Tensor, W: Tensor, b: Tensor) -> Tensor:
    """relu(x W^T + b) of contiguous tensors, in x's precision."""
    models, rows, K = x.shape
    H = W.shape[1]
    y = x.new_empty(models, rows, H)
    _layer[(rows // ROWS, models)](x, W, b, y, rows, K=K, H=H, ROWS=ROWS, DEPTH=DEPTH, **LAUNCH)
    return y
