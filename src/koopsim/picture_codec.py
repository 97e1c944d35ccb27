"""A picture's network in few bytes: its linear maps multiplied out, rounded to a grid, entropy-coded.

    y = C relu( B relu( A psi(x) + a ) + b ) + c         A = nu_1 U V,  C = h nu_3: what is left of a SIM without a lift
    file = header | Huffman( round(A / d_A), ... )       a step d each; d grows until the file has the bytes asked for

As COIN (Dupont et al., 2021) and its followers do: weights, not pixels, are what is coded. The frequencies of psi lie
on their grid before the first step of training (`on_grid`): a phase of hundreds of radians forgives no rounding.

A file is read by `unpacked` alone, which believes nothing: every number is bounded, the checksum compared, and nothing
is inflated beyond what the header's sizes say. It cannot carry code.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from koopsim.config import FourierConfig, IdentityConfig, SIMConfig
from koopsim.errors import KoopsimError
from koopsim.nn.linear import Linear
from koopsim.nn.sim import SIM

MAGIC = b"KSP1"
HEAD = struct.Struct("<4sI")  # magic, CRC-32 of all that follows
SIZES = struct.Struct("<IIBBHHB")  # width, height, channels, bits, features, hidden, length of the name
GRID = 127  # the largest whole number of a weight: int8
SMALLEST = 100  # bytes that any such file has
BITS = 5.0  # a weight takes in a file of a given size; finer than that, a larger network is better
ARRAYS = ("frequencies", "A", "a", "B", "b", "C", "c")


@dataclass(frozen=True)
class Coded:
    """What a file says."""

    name: str
    width: int
    height: int
    channels: int
    bits: int
    features: int
    hidden: int
    arrays: dict[str, NDArray[np.float32]]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return shapes_of(self.features, self.hidden, self.channels)


def shapes_of(features: int, hidden: int, channels: int) -> dict[str, tuple[int, ...]]:
    """Of the arrays that are coded."""
    M, H = features, hidden
    return {
        "frequencies": (M // 2, 2), "A": (H, M), "a": (H,), "B": (H, H), "b": (H,), "C": (channels, H), "c": (channels,)
    }  # fmt: skip


def size_for(budget: int, channels: int) -> tuple[int, int]:
    """(M, H) of the network that a file of so many bytes has room for: M = 2 H, some BITS a weight."""
    if budget < SMALLEST + 50:
        raise KoopsimError(f"{budget} bytes are too few for a network; ask for at least {SMALLEST + 50}.")
    room = 8 * (budget - SMALLEST) / BITS
    hidden = 1
    while sum(math.prod(s) for s in shapes_of(2 * (hidden + 1), hidden + 1, channels).values()) <= room:
        hidden += 1
    return 2 * hidden, hidden


@torch.no_grad()
def on_grid(model: nn.Module) -> None:
    """Round the frequencies of psi to multiples of a step, so that coding them loses nothing."""
    w = cast(torch.Tensor, cast(nn.Module, model.psi).frequencies)
    step = (w.abs().max() / GRID).clamp(min=1e-30)
    w.copy_((w / step).round() * step)


@torch.no_grad()
def arrays_of(model: SIM) -> dict[str, NDArray[np.float32]]:
    """The network of a SIM without a lift, its linear maps multiplied out."""
    first, second, third = (cast(Linear, model.nu[i]) for i in (0, 2, 4))
    U, V = model.limit.factors()
    found = {
        "frequencies": cast(torch.Tensor, cast(nn.Module, model.psi).frequencies),
        "A": first.weight @ U @ V, "a": first.bias, "B": second.weight, "b": second.bias,
        "C": model.h.weight @ third.weight, "c": model.h.weight @ third.bias + model.h.bias,
    }  # fmt: skip
    return {name: t.detach().float().cpu().numpy() for name, t in found.items()}


def decoded_model(coded: Coded) -> tuple[SIM, SIMConfig]:
    """A SIM that is the same map: its limit operator and nu_3 are the identity."""
    M, H = coded.features, coded.hidden
    psi = FourierConfig(M)
    config = SIMConfig(IdentityConfig(2), lift_dim=2, fourier=psi, rank=M, hidden=H, outputs=coded.channels)
    from koopsim.models import build

    model = cast(SIM, build(config))
    arrays = {name: torch.from_numpy(a) for name, a in coded.arrays.items()}
    first, second, third = (cast(Linear, model.nu[i]) for i in (0, 2, 4))
    with torch.no_grad():
        cast(torch.Tensor, cast(nn.Module, model.psi).frequencies).copy_(arrays["frequencies"])
        model.limit.U.copy_(torch.eye(M))
        model.limit.V.copy_(torch.eye(M))
        for layer, W, b in ((first, "A", "a"), (second, "B", "b"), (model.h, "C", "c")):
            layer.weight.copy_(arrays[W])
            layer.bias.copy_(arrays[b])
        third.weight.copy_(torch.eye(H))
        third.bias.zero_()
    return model, config


# ---------------------------------------------------------------- bytes


def packed(coded: Coded, coarseness: float = 0.0) -> bytes:
    """The file's bytes. `coarseness` 0 is the finest grid, int8; each one more doubles the steps of the matrices."""
    name = coded.name.encode()[:255].decode(errors="ignore").encode()
    steps, parts = [], []
    for key in ARRAYS:
        values = coded.arrays[key].astype(np.float64).ravel()
        fine = max(float(np.abs(values).max()), 1e-30) / GRID
        step = np.float32(fine * 2**coarseness if key in ("A", "B", "C") else fine)
        steps.append(float(step))
        parts.append(np.clip(np.rint(values / float(step)), -GRID, GRID).astype(np.int8))
    press = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    payload = press.compress(np.concatenate(parts).tobytes()) + press.flush()
    sizes = (coded.width, coded.height, coded.channels, coded.bits, coded.features, coded.hidden, len(name))
    rest = SIZES.pack(*sizes) + name + struct.pack(f"<{len(ARRAYS)}f", *steps) + payload
    return HEAD.pack(MAGIC, zlib.crc32(rest)) + rest


def within(coded: Coded, budget: int) -> bytes:
    """The finest file of at most `budget` bytes."""
    low, high = 0.0, 7.0
    if len(best := packed(coded, low)) <= budget:
        return best
    best = packed(coded, high)
    if len(best) > budget:
        raise KoopsimError(
            f"This network does not fit into {budget:,} bytes: with the coarsest weights it has {len(best):,}; give "
            "fewer --features or a smaller --hidden, or leave both to --bytes."
        )
    for _ in range(12):
        middle = (low + high) / 2
        data = packed(coded, middle)
        if len(data) <= budget:
            best, high = data, middle
        else:
            low = middle
    return best


def unpacked(data: bytes, where: str) -> Coded:
    """What a file's bytes say, whoever wrote them."""

    def bad(why: str) -> KoopsimError:
        return KoopsimError(f"{where} is not a whole coded network of 'koopsim fit': {why}. It cannot be used.")

    if len(data) < HEAD.size + SIZES.size:
        raise bad(f"it has {len(data)} bytes")
    magic, checksum = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise bad("it begins with other bytes")
    if zlib.crc32(data[HEAD.size :]) != checksum:
        raise bad("its checksum does not match its content")
    at = HEAD.size + SIZES.size
    width, height, channels, bits, features, hidden, length = SIZES.unpack_from(data, HEAD.size)
    even = features >= 2 and features % 2 == 0 and hidden >= 1 and 1 <= channels <= 4
    if not even or min(width, height) < 1 or max(width, height) >= 2**31 or bits not in (8, 16):
        raise bad(f"it says {width} x {height} x {channels} of {bits} bits, {features} features, {hidden} hidden")
    scales = struct.Struct(f"<{len(ARRAYS)}f")
    if len(data) < at + length + scales.size:
        raise bad("it ends too soon")
    name = "".join(filter(str.isprintable, data[at : at + length].decode(errors="replace"))) or "picture"
    steps = scales.unpack_from(data, at + length)
    if not all(math.isfinite(step) and 0 < step < 1e30 for step in steps):
        raise bad("a step of its grid is no positive number")
    try:
        arrays = _arrays(data[at + length + scales.size :], shapes_of(features, hidden, channels), steps)
    except (zlib.error, ValueError) as error:
        raise bad(f"its weights cannot be decoded ({error})") from error
    return Coded(name, width, height, channels, bits, features, hidden, arrays)


def _arrays(packed: bytes, shapes: Any, steps: tuple[float, ...]) -> dict[str, Any]:
    """The weights, each a whole number of its array's steps; ValueError where there are more or fewer of them."""
    counts = [math.prod(shapes[key]) for key in ARRAYS]
    values = zlib.decompressobj(-15).decompress(packed, sum(counts) + 1)
    if len(values) != sum(counts):
        raise ValueError(f"it has {len(values)} weights where {sum(counts)} belong")
    flat = np.frombuffer(values, np.int8)
    arrays, start = {}, 0
    for key, count, step in zip(ARRAYS, counts, steps, strict=True):
        arrays[key] = (flat[start : start + count].astype(np.float32) * np.float32(step)).reshape(shapes[key])
        start += count
    return arrays
