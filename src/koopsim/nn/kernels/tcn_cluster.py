"""All layers of a TCN in one CUDA kernel, forward and backward: `tcn.cu`, for GPUs with thread block clusters.

Where a sequence and all weights fit into shared memory (up to some 2,000 steps at ten channels) and clusters exist
(Hopper and later); elsewhere `tcn` goes layer by layer. The twin of both is `lift.TemporalBlock`.
"""

import functools
import os
from pathlib import Path

import torch
from torch import Tensor

from koopsim.nn.kernels.cuda import Kernel, kernel
from koopsim.nn.transforms import has_room

SOURCE = Path(__file__).with_name("tcn.cu")
CLUSTER = 8  # blocks of a sequence: the most that every GPU with clusters has; with 16 it is slower
MANY = 64  # sequences: they fill the chip by themselves, and half as many blocks a sequence wait less for each other
SHARED = 227 * 1024  # bytes a block can have, on Hopper
THREADS = 256  # of a block, or as many more as spare it a second round for a few
MOST = 320
SPLITS = 2  # threads that share an output's taps, at most: where a block has threads to spare
OUTS = 8  # channels a thread has, at most


def fits(x: Tensor, W: Tensor) -> bool:
    """Whether the kernels can be used: x (M, B, T, I), W (M, L, C, K, C)."""
    if not x.is_cuda or x.numel() == 0 or os.environ.get("KOOPSIM_CLUSTERS") == "0":
        return False
    even = W.shape[2] % 2 == 0 and W.shape[3] % 4 == 0 and 2 * W.shape[2] * W.shape[3] <= 1024
    return even and has_clusters(x.device) and shared_bytes(x.shape[2], W, blocks(x)) <= SHARED


def blocks(x: Tensor) -> int:
    """Of a sequence's cluster, for the sequences of x (M, B, T, I)."""
    return CLUSTER if x.shape[0] * x.shape[1] < MANY else max(1, CLUSTER // 2)


@functools.cache
def has_clusters(device: torch.device) -> bool:
    """Whether blocks of this GPU can write into each other's shared memory, and have as much of it as on Hopper."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0) and has_room(device, SHARED)


def shared_bytes(T: int, W: Tensor, cluster: int) -> int:
    """Weights, two copies of the state, biases, and a stretch of the residual's gradient or of the second layers'.

    Another stretch where two threads share an output.
    """
    _, L, C, K, _ = W.shape
    return 4 * (L * C * K * C + 2 * T * C + L * C + split(T, W, cluster) * -(-T // cluster) * C)


def outs(C: int) -> int:
    """How many of C channels a thread has: the largest divisor that its registers hold, half of them at the most."""
    return max(n for n in range(1, min(OUTS, C // 2) + 1) if C % n == 0)


def items(T: int, W: Tensor, cluster: int) -> int:
    """Of a block and a layer: time steps, and some channels of each."""
    C = W.shape[2]
    return -(-T // cluster) * (C // outs(C))


def split(T: int, W: Tensor, cluster: int) -> int:
    """How many threads share an item: two where none of them then has another."""
    return 2 if SPLITS > 1 and 2 * items(T, W, cluster) <= MOST else 1


def threads(T: int, W: Tensor, cluster: int) -> int:
    """Of a block. A few items that are left over would cost a whole round."""
    count = split(T, W, cluster) * items(T, W, cluster)
    return -(-count // 32) * 32 if THREADS < count <= MOST else THREADS


def room(T: int, W: Tensor, cluster: int) -> int:
    """Blocks that fit on a multiprocessor, three at the most, by their shared memory: each has 1 KiB besides."""
    return max(1, min(3, (SHARED + 1024) // (shared_bytes(T, W, cluster) + 1024)))


def forward(inputs: tuple[Tensor, ...], states: tuple[Tensor, ...]) -> None:
    """(x, R, r, W, b), all contiguous, -> into (last, h, a) of `tcn`."""
    x, R, _, W, _ = inputs
    M, B, T, _ = x.shape
    with torch.cuda.device_of(x):
        launch = _kernel("temporal_forward", x, W)
        more = [T, M * B, B, int(R.numel() > 0)]
        launch((blocks(x) * M * B,), _threads(x, W), shared_bytes(T, W, blocks(x)), [*inputs, *states, *more])


def backward(x: Tensor, W: Tensor, states: tuple[Tensor, ...], dy: Tensor, g: Tensor) -> None:
    """(last, h, a) and dy -> into g: before the ReLU of each layer, and behind them before the first block's."""
    M, B, T, _ = x.shape
    with torch.cuda.device_of(x):
        launch = _kernel("temporal_backward", x, W)
        launch((blocks(x) * M * B,), _threads(x, W), shared_bytes(T, W, blocks(x)), [W, *states, dy, g, T, M * B, B])


def weight_gradients(g: Tensor, h: Tensor, x: Tensor, W: Tensor, sums: Tensor, chunk: int, residual: bool) -> None:
    """Into sums (parts, M, size): dW, db and where there is a residual dR, dr, one after the other.

    A part has `chunk` rows of a model's.
    """
    (M, B, T, _), (_, L, C, K, _) = x.shape, W.shape
    parts, _, size = sums.shape
    shared = 4 * (32 * 2 * (-(-C // 8) * 4) + 2 * K * C)
    with torch.cuda.device_of(x):
        launch = _kernel("temporal_weights", x, W, shared)
        launch((L + residual, parts, M), 2 * K * C, shared, [g, h, x, sums, T, B * T, chunk, size])


def _threads(x: Tensor, W: Tensor) -> int:
    return threads(x.shape[2], W, blocks(x))


def _kernel(name: str, x: Tensor, W: Tensor, shared: int | None = None) -> Kernel:
    cluster = blocks(x)
    wanted, given = shared or shared_bytes(x.shape[2], W, cluster), sizes(W, x.shape[3], cluster)
    given |= {"THREADS": _threads(x, W), "SPLIT": split(x.shape[2], W, cluster)}
    given["BLOCKS"] = room(x.shape[2], W, cluster)
    if x.dtype == torch.uint8:
        given["BYTES"] = 1
    return kernel(SOURCE, name, tuple(given.items()), wanted, x.get_device(), large=cluster > 8)


def sizes(W: Tensor, inputs: int, cluster: int) -> dict[str, int]:
    """What the compiler is told."""
    _, L, C, K, _ = W.shape
    return {"C": C, "K": K, "L": L, "I": inputs, "OUTS": outs(C), "CLUSTER": cluster, "THREADS": THREADS}
