"""3 x 3 convolutions of P channels to P by tensor cores: the kernels of `conv.cu` and `conv_weights.cu`, their sizes.

    convolved        y = conv(u), u = x or relu(scale x + shift);  or the gradient of a convolution's input
    weight_gradient  the gradient of its weights

A picture is (B, H, W, P) in bfloat16, weights are (P, 3, 3, P): out, taps, in. A library's kernels are made for
hundreds of channels; with 40 they use a small part of the tensor cores and read the picture several times. These hold
a band of an image in shared memory and read it once, and what stands before and after a convolution (a normalisation,
its statistics) is done on the way. For Hopper and later; `taken_over` says where. Tests: test_conv_kernels.py.
"""

import functools
import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from koopsim.nn.kernels.cuda import Defines, Kernel, build_ahead, kernel
from koopsim.nn.kernels.tcn_cluster import SHARED, has_clusters

HOME = Path(__file__).parent
BEFORE = tuple(HOME / name for name in ("mma.cu", "conv_tile.cu"))
TILE = 8  # channels: what a tensor core takes at once
MOST = 64  # channels
PIXELS = 512  # of a band, at most
WARP_TILES = 4  # times 16 pixels of a warp
FLIGHT = 12  # loads of a thread on their way at once
WEIGHT_PIXELS = 512  # the same for the gradient of the weights
WEIGHT_FLIGHT = 6  # which has sums in its registers while it loads
WEIGHT_TILES = 3  # times 16 rows of a warp
GROUPS = 2  # of warps that have a band each
REGISTERS = 65536  # of a multiprocessor
PARTS = 792  # of sums, as in `norm`, whose kernels add them up: no other number has to be compiled for


def shares(n: int, of: int) -> int:
    """How many parts of so much n has, the last of them perhaps smaller."""
    return -(-n // of)


@dataclass(frozen=True)
class Tiles:
    """How a product is divided: bands of rows, tiles a warp, warps, groups of warps; loads on their way."""

    P: int
    H: int
    W: int
    band: int
    tiles: int
    warps: int
    groups: int = 1
    flight: int = 2

    @property
    def span(self) -> int:
        """Bytes from pixel to pixel: an odd number of pieces of 16."""
        return (self.P // 8 | 1) * 16

    @property
    def tile(self) -> int:
        """Bytes of a band with what is around it."""
        return (self.band + 2) * (self.W + 2) * self.span

    @property
    def bands(self) -> int:
        """Of an image."""
        return shares(self.H, self.band)

    @property
    def threads(self) -> int:
        return 32 * self.warps * self.groups

    @property
    def shared(self) -> int:
        """Bytes of a block of `convolution`: the tile and the weights, or all threads' sums."""
        sums = 4 * 2 * self.P * (self.threads // (self.P // 8))
        return max(self.tile + (9 * self.P + 8) * self.span, sums)  # 8 rows more: what nobody looks at is read

    @property
    def shared_of_weights(self) -> int:
        """Bytes of a block of `convolution_weights`: each group's tile and gradient, or a group's sums."""
        gradient = shares(self.band * self.W, 16) * 16 * self.span
        sums = 4 * 32 * self.warps * self.tiles * self.P // 8 * 4
        return max(self.groups * (self.tile + gradient), sums)

    @property
    def blocks(self) -> int:
        """Of `convolution` on a multiprocessor: by shared memory, and by registers where a thread has 128."""
        room, registers = 233472 // (self.shared + 1024), REGISTERS // (self.threads * 128)
        return max(1, min(room, registers))

    def defines(self) -> dict[str, int]:
        """What the compiler is told of both kernels."""
        shape = {"P": self.P, "H": self.H, "W": self.W, "BAND": self.band}
        return shape | {"MT": self.tiles, "WARPS": self.warps, "FLIGHT": self.flight}


def _band(H: int, W: int, images: int, pixels: int, wanted: int) -> int:
    """Rows of a band: of at most so many pixels, and smaller where there would not be a band for each of `wanted`."""
    bands = shares(H * W, pixels)
    while bands < H and shares(H, bands) * W > pixels:
        bands += 1
    while images * bands < wanted and 8 * bands <= H:
        bands *= 2
    return shares(H, bands)


@functools.cache
def tiles_of(shape: tuple[int, ...], processors: int) -> Tiles:
    """Of `convolution` for pictures (B, H, W, P)."""
    B, H, W, P = shape
    band = _band(H, W, B, PIXELS, processors * 3 // 4)
    sixteens = shares(band * W, 16)
    few = B * shares(H, band) < 2 * processors  # then more warps wait for each other's loads, where pixels are few
    tiles = min(WARP_TILES, 2) if few and sixteens <= 16 else WARP_TILES
    return Tiles(P, H, W, band, tiles, shares(sixteens, tiles), 1, FLIGHT)


@functools.cache
def tiles_of_weights(shape: tuple[int, ...], processors: int) -> Tiles:
    """Of `convolution_weights`: as many groups as fit, of those that are wanted."""
    B, H, W, P = shape
    band = _band(H, W, B, WEIGHT_PIXELS, GROUPS * processors * 3 // 4)
    warps = shares(shares(9 * P, 16), WEIGHT_TILES)
    found = Tiles(P, H, W, band, WEIGHT_TILES, warps, GROUPS, WEIGHT_FLIGHT)
    while found.groups > 1 and (found.shared_of_weights > SHARED or found.threads > 512):
        found = replace(found, groups=found.groups - 1)
    return found


def taken_over(x: Tensor, channels: int, dtype: torch.dtype) -> bool:
    """Whether the kernels can be used for this many channels (padded by TILE) of images (B, depth, H, W)."""
    if not x.is_cuda or x.numel() == 0 or dtype != torch.bfloat16 or os.environ.get("KOOPSIM_CLUSTERS") == "0":
        return False
    if torch.compiler.is_compiling():  # it would look into all of this, for each number of images
        return False
    return has_clusters(x.device) and fitting(x.shape[-2], x.shape[-1], shares(channels, TILE) * TILE)


def fitting(H: int, W: int, P: int) -> bool:
    """Whether bands of such pictures fit into shared memory: those of many images, which are the largest."""
    if P % TILE or P > MOST or max(W, H) > min(PIXELS, WEIGHT_PIXELS):
        return False
    many = (1 << 20, H, W, P)
    return max(tiles_of(many, 132).shared, tiles_of_weights(many, 132).shared_of_weights) <= SHARED


def convolved(
    x: Tensor, kernel: Tensor, before: Tensor | None = None, turned: bool = False,
    moments: bool = False, after: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(y, sums (2, P, parts)) of `conv.cu`.

    before   the table of x;   after   what the sums of dz xhat are of, and its table
    """
    processors = _processors(x.get_device())
    tiles = tiles_of(tuple(x.shape), processors)
    grid = min(len(x) * tiles.bands, tiles.blocks * processors, PARTS)
    kind = 1 if moments else 2 if after is not None else 0
    y = torch.empty_like(x)
    sums = x.new_empty(2, tiles.P, PARTS, dtype=torch.float32) if kind else None
    with torch.cuda.device_of(x):
        launch = _convolution(tiles, before is not None, turned, kind, x.get_device())
        seen, table = after if after is not None else (x, x)
        tensors = [x, kernel, x if before is None else before, seen, table, y, y if sums is None else sums]
        launch((grid,), tiles.threads, tiles.shared, [*tensors, len(x), PARTS])
    return y, sums


def weight_gradient(x: Tensor, dy: Tensor, before: Tensor | None = None) -> Tensor:
    """(P, 3, 3, P) of `conv_weights.cu`; before: the table of x."""
    device, processors = x.get_device(), _processors(x.get_device())
    tiles = tiles_of_weights(tuple(x.shape), processors)
    grid = min(shares(len(x) * tiles.bands, tiles.groups), processors)
    parts, dw = x.new_empty(grid, 9 * tiles.P**2, dtype=torch.float32), x.new_empty(tiles.P, 3, 3, tiles.P)
    with torch.cuda.device_of(x):
        of_bands, sums = _weights(tiles, before is not None, device)
        tensors = [x, dy, x if before is None else before, parts]
        of_bands((grid,), tiles.threads, tiles.shared_of_weights, [*tensors, len(x)])
        sums((9 * tiles.P**2 // 32,), 256, 1024, [parts, dw, grid])
    return dw


@functools.cache
def _processors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


CONVOLUTION, WEIGHTS = (*BEFORE, HOME / "conv.cu"), (*BEFORE, HOME / "conv_weights.cu")


def _defines(tiles: Tiles, normed: bool, turned: bool, kind: int) -> Defines:
    given = {"BLOCKS": tiles.blocks, "NORMED": int(normed), "TURNED": int(turned), "SUMS": kind}
    return tuple((tiles.defines() | given).items())


def _weight_defines(tiles: Tiles, normed: bool) -> Defines:
    return tuple((tiles.defines() | {"GROUPS": tiles.groups, "NORMED": int(normed)}).items())


def _convolution(tiles: Tiles, normed: bool, turned: bool, kind: int, device: int) -> Kernel:
    given = _defines(tiles, normed, turned, kind)
    return kernel(CONVOLUTION, "convolution", given, tiles.shared, device, beside=True)


def _weights(tiles: Tiles, normed: bool, device: int) -> tuple[Kernel, Kernel]:
    given = _weight_defines(tiles, normed)
    of_bands = kernel(WEIGHTS, "convolution_weights", given, tiles.shared_of_weights, device)
    return of_bands, kernel(WEIGHTS, "weight_sums", given, 1024, device)


@functools.cache
def build_stages(shape: tuple[int, ...], device: int) -> None:
    """All kernels of a VGG's step on pictures (B, H, W, P), side by side: one after the other they take seconds."""
    B, H, W, P = shape
    wanted = []
    for size, plain in (((B, H, W, P), False), ((B, H // 2, W // 2, P), True)):
        tiles, weights = tiles_of(size, _processors(device)), tiles_of_weights(size, _processors(device))
        kinds = [(True, False, 1), (False, True, 2), *([(False, False, 1), (False, True, 0)] if plain else [])]
        wanted += [(CONVOLUTION, _defines(tiles, *kind)) for kind in kinds]
        wanted += [(WEIGHTS, _weight_defines(weights, normed)) for normed in ((True, False) if plain else (True,))]
    build_ahead(wanted, device)
