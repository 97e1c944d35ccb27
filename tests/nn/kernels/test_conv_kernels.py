"""Convolutions by tensor cores (`conv.cu`, `conv_weights.cu`) against float64: on a CPU with fibres for threads."""

import ctypes
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from koopsim.nn.kernels import conv_tiles

CONVOLUTION = """
extern "C" void product(int blocks, int threads, int bytes, const uint4* x, const uint4* kernel, const float* before,
                        const uint4* seen, const float* after, uint4* y, float* sums, int images) {
    launch(blocks, threads, bytes, [=] { convolution(x, kernel, before, seen, after, y, sums, images); });
}
"""
WEIGHTS = """
extern "C" void product(int blocks, int threads, int bytes, const uint4* x, const uint4* gradient, const float* before,
                        float* parts, int images) {
    launch(blocks, threads, bytes, [=] { convolution_weights(x, gradient, before, parts, images); });
}
extern "C" void sums(const float* parts, unsigned short* dw, int count) {
    launch(9 * P * P / 32, 256, 1024, [=] { weight_sums(parts, dw, count); });
}
"""
FILES = ("conv_tile.cu",)


def picture(*shape: int, device: str = "cpu") -> Tensor:
    return torch.randn(shape, device=device).bfloat16()


def table_of(P: int, device: str = "cpu") -> Tensor:
    """(mean, 1/std, scale, shift, ...): scales of both signs."""
    return torch.randn(6, P, device=device) + 0.1


def normed(x: Tensor, table: Tensor | None) -> Tensor:
    """In float64, but rounded as the kernels do."""
    if table is None:
        return x.double()
    return torch.relu(x.double() * table[2].double() + table[3].double()).bfloat16().double()


def exact(x: Tensor, kernel: Tensor, turned: bool) -> Tensor:
    """(B, H, W, P) by (out, 3, 3, in) in float64."""
    planes, k = x.double().permute(0, 3, 1, 2), kernel.double().permute(0, 3, 1, 2)
    y = F.conv_transpose2d(planes, k, padding=1) if turned else F.conv2d(planes, k, padding=1)
    return y.permute(0, 2, 3, 1)


def exact_weights(x: Tensor, dy: Tensor) -> Tensor:
    planes, g = (t.double().permute(0, 3, 1, 2) for t in (x, dy))
    dw = torch.nn.grad.conv2d_weight(planes, (dy.shape[3], x.shape[3], 3, 3), g, padding=1)
    return dw.permute(0, 2, 3, 1)


def exact_sums(y: Tensor, after: tuple[Tensor, Tensor] | None) -> Tensor:
    """(2, P) of what was stored."""
    y = y.double()
    if after is None:
        return torch.stack([y.sum((0, 1, 2)), y.square().sum((0, 1, 2))])
    v, (mean, rstd, scale, shift, *_) = after[0].double(), after[1].double()
    dz = y * (v * scale + shift > 0)
    return torch.stack([dz.sum((0, 1, 2)), (dz * (v - mean)).sum((0, 1, 2)) * rstd])


def near(got: Tensor, want: Tensor, digits: float = 2.0**-8) -> None:
    """Half a unit of bfloat16, and what float32 loses of a sum."""
    torch.testing.assert_close(got.double(), want, rtol=digits, atol=1e-5 * float(want.abs().max()))


def pointers(*tensors: Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(t.data_ptr()) for t in tensors]


SHAPES = [  # P, H, W, images, band, tiles of a warp, blocks
    (8, 8, 8, 3, 8, 2, 2),
    (16, 8, 8, 3, 3, 1, 4),
    (24, 14, 14, 1, 7, 2, 1),
    (40, 8, 8, 3, 4, 2, 4),
    (40, 5, 14, 1, 3, 4, 2),
]


@pytest.mark.parametrize(("normed_input", "turned", "kind"), [(0, 0, 0), (1, 0, 1), (0, 1, 2)])
@pytest.mark.parametrize(("P", "H", "W", "images", "band", "mt", "blocks"), SHAPES)
def test_a_convolution(emulated_warps, P, H, W, images, band, mt, blocks, normed_input, turned, kind):
    torch.manual_seed(P + H)
    tiles = conv_tiles.Tiles(P, H, W, band, mt, -(-(-(-band * W // 16)) // mt))
    given = tiles.defines() | {"BLOCKS": 1, "NORMED": normed_input, "TURNED": turned, "SUMS": kind, "FLIGHT": 2}
    library = emulated_warps((*FILES, "conv.cu"), CONVOLUTION, **given)
    x, kernel, seen = picture(images, H, W, P), picture(P, 3, 3, P), picture(images, H, W, P)
    before, after = table_of(P), table_of(P)
    y, sums = torch.full_like(x, torch.nan), torch.full((2, P, blocks), torch.nan)
    places = pointers(x, kernel, before, seen, after, y, sums)
    library.product(blocks, tiles.threads, tiles.shared, *places, images)
    near(y, exact(normed(x, before if normed_input else None), kernel, bool(turned)))
    if kind:
        assert not sums.isnan().any()
        near(sums.double().sum(2), exact_sums(y, None if kind == 1 else (seen, after)), 1e-5)


@pytest.mark.parametrize("normed_input", [0, 1])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("P", "H", "W", "images", "band", "mt", "blocks"), SHAPES)
def test_the_gradient_of_the_weights(emulated_warps, P, H, W, images, band, mt, blocks, groups, normed_input):
    torch.manual_seed(P + H)
    tiles = conv_tiles.Tiles(P, H, W, band, mt, -(-(-(-9 * P // 16)) // mt), groups)
    given = tiles.defines() | {"GROUPS": groups, "NORMED": normed_input, "FLIGHT": 2}
    library = emulated_warps((*FILES, "conv_weights.cu"), WEIGHTS, **given)
    x, dy, before = picture(images, H, W, P), picture(images, H, W, P), table_of(P)
    parts, dw = torch.full((blocks, 9 * P * P), torch.nan), torch.full((P, 3, 3, P), torch.nan).bfloat16()
    library.product(blocks, tiles.threads, tiles.shared_of_weights, *pointers(x, dy, before, parts), images)
    want = exact_weights(normed(x, before if normed_input else None), dy)
    near(parts.double().sum(0).view(P, 3, 3, P), want, 1e-5)
    library.sums(*pointers(parts, dw), blocks)
    near(dw, want)
