"""Convolutions by tensor cores (`conv.cu`, `conv_weights.cu`) against float64: on a CPU with fibres for threads."""

import copy
import ctypes
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from koopsim.nn.kernels import conv_tiles, cuda, tcn_cluster
from koopsim.nn.kernels.conv_tiles import shares
from koopsim.nn.lift import VGG
from koopsim.nn.transforms import has_room

CONVOLUTION = """
extern "C" void product(int blocks, int threads, int bytes, const uint4* x, const uint4* kernel, const float* before,
                        const uint4* seen, const float* after, uint4* y, float* sums, int images, int parts) {
    launch(blocks, threads, bytes, [=] { convolution(x, kernel, before, seen, after, y, sums, images, parts); });
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
    dw = conv2d_weight(planes, (dy.shape[3], x.shape[3], 3, 3), g, padding=1)
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


def check_convolution(build, tiles, images: int, blocks: int, normed_input: int, turned: int, kind: int) -> None:
    P, H, W = tiles.P, tiles.H, tiles.W
    given = tiles.defines() | {"BLOCKS": 1, "NORMED": normed_input, "TURNED": turned, "SUMS": kind}
    library = build((*FILES, "conv.cu"), CONVOLUTION, **given)
    x, kernel, seen = picture(images, H, W, P), picture(P, 3, 3, P), picture(images, H, W, P)
    before, after = table_of(P), table_of(P)
    y, sums = torch.full_like(x, torch.nan), torch.full((2, P, 2 * blocks + 1), torch.nan)
    places = pointers(x, kernel, before, seen, after, y, sums)
    library.product(blocks, tiles.threads, tiles.shared, *places, images, sums.shape[2])
    near(y, exact(normed(x, before if normed_input else None), kernel, bool(turned)))
    if kind:
        assert not sums.isnan().any()
        near(sums.double().sum(2), exact_sums(y, None if kind == 1 else (seen, after)), 1e-5)


def check_weights(build, tiles, images: int, blocks: int, normed_input: int) -> None:
    P, H, W = tiles.P, tiles.H, tiles.W
    given = tiles.defines() | {"GROUPS": tiles.groups, "NORMED": normed_input}
    library = build((*FILES, "conv_weights.cu"), WEIGHTS, **given)
    x, dy, before = picture(images, H, W, P), picture(images, H, W, P), table_of(P)
    parts, dw = torch.full((blocks, 9 * P * P), torch.nan), torch.full((P, 3, 3, P), torch.nan).bfloat16()
    library.product(blocks, tiles.threads, tiles.shared_of_weights, *pointers(x, dy, before, parts), images)
    want = exact_weights(normed(x, before if normed_input else None), dy)
    near(parts.double().sum(0).view(P, 3, 3, P), want, 1e-5)
    library.sums(*pointers(parts, dw), blocks)
    near(dw, want)


@pytest.mark.parametrize(("normed_input", "turned", "kind"), [(0, 0, 0), (1, 0, 1), (0, 1, 2)])
@pytest.mark.parametrize(("P", "H", "W", "images", "band", "mt", "blocks"), SHAPES)
def test_a_convolution(emulated_warps, P, H, W, images, band, mt, blocks, normed_input, turned, kind):
    torch.manual_seed(P + H)
    tiles = conv_tiles.Tiles(P, H, W, band, mt, shares(shares(band * W, 16), mt))
    check_convolution(emulated_warps, tiles, images, blocks, normed_input, turned, kind)


@pytest.mark.parametrize("normed_input", [0, 1])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("P", "H", "W", "images", "band", "mt", "blocks"), SHAPES)
def test_the_gradient_of_the_weights(emulated_warps, P, H, W, images, band, mt, blocks, groups, normed_input):
    torch.manual_seed(P + H)
    tiles = conv_tiles.Tiles(P, H, W, band, mt, shares(shares(9 * P, 16), mt), groups)
    check_weights(emulated_warps, tiles, images, blocks, normed_input)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [64, 512])
@pytest.mark.parametrize(("P", "size"), [(40, 32), (40, 16), (24, 28), (24, 14)])
def test_as_they_are_divided_on_an_h200(emulated_warps, P, size, batch):
    """The sizes that a GPU is given, for two images of the batch."""
    shape = batch, size, size, P
    tiles = conv_tiles.tiles_of(shape, 132)
    check_convolution(emulated_warps, tiles, 2, 3, 1, 0, 1)
    check_convolution(emulated_warps, tiles, 2, 3, 0, 1, 2)
    check_weights(emulated_warps, conv_tiles.tiles_of_weights(shape, 132), 2, 1, 1)


def test_bands_fit_where_they_are_used():
    for H, W, P in ((32, 32, 40), (16, 16, 40), (28, 28, 24), (14, 14, 24), (32, 32, 64), (64, 64, 40)):
        assert conv_tiles.fitting(H, W, P)
        for images in (1, 3, 64, 130, 512):
            tiles = conv_tiles.tiles_of((images, H, W, P), 132)
            assert tiles.shared <= conv_tiles.SHARED
            assert 16 * tiles.tiles * tiles.warps >= tiles.band * W  # every pixel has a warp
            tiles = conv_tiles.tiles_of_weights((images, H, W, P), 132)
            assert tiles.shared_of_weights <= conv_tiles.SHARED
            assert 16 * tiles.tiles * tiles.warps >= 9 * P
            assert tiles.threads <= 1024
    assert not conv_tiles.fitting(32, 32, 72)
    assert not conv_tiles.fitting(8, 1000, 40)


def test_where_they_take_over(monkeypatch):
    """Of pictures that claim to be on CUDA, on a machine that claims to be a Hopper."""
    monkeypatch.setattr(conv_tiles, "has_clusters", lambda device: True)

    def taken(channels=38, dtype=torch.bfloat16, images=2, size=32):
        with FakeTensorMode():
            return conv_tiles.taken_over(torch.empty(images, 3, size, size, device="cuda"), channels, dtype)

    assert taken()
    assert taken(64)
    assert not taken(65)
    assert not taken(dtype=torch.float32)
    assert not taken(images=0)
    assert not taken(size=1024)
    monkeypatch.setenv("KOOPSIM_CLUSTERS", "0")
    assert not taken()


def test_elsewhere_the_library_convolves(monkeypatch):
    x = torch.zeros(2, 3, 32, 32)
    assert not conv_tiles.taken_over(x, 38, torch.bfloat16)
    if torch.cuda.is_available() and conv_tiles.has_clusters(torch.device("cuda")):
        assert conv_tiles.taken_over(x.cuda(), 38, torch.bfloat16)
        assert not conv_tiles.taken_over(x.cuda(), 38, torch.float32)
        monkeypatch.setenv("KOOPSIM_CLUSTERS", "0")
        assert not conv_tiles.taken_over(x.cuda(), 38, torch.bfloat16)


HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
on_hopper = pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")
SIZES = [(40, 32), (40, 16), (24, 28), (24, 14)]


def poisoned(shape: tuple[int, ...]) -> None:
    """What is allocated next lies where nan was."""
    held = [torch.full(shape, torch.nan, device="cuda") for _ in range(6)]
    del held


@pytest.mark.cuda
@on_hopper
@pytest.mark.parametrize("images", [1, 3, 64, 130, 512])
@pytest.mark.parametrize(("P", "size"), SIZES)
def test_on_cuda_all_three_products(P, size, images):
    torch.manual_seed(images)
    shape = images, size, size, P
    x, dy, seen = (picture(*shape, device="cuda") for _ in range(3))
    kernel, before, after = picture(P, 3, 3, P, device="cuda"), table_of(P, "cuda"), table_of(P, "cuda")
    poisoned(shape)
    for _ in range(2):  # the second after memory was used by the first
        for table in (None, before):
            y, sums = conv_tiles.convolved(x, kernel, before=table, moments=True)
            near_on_cuda(y, exact(normed(x, table), kernel, False))
            assert sums is not None
            near(sums.double().sum(2), exact_sums(y, None), 1e-4)
            dw = conv_tiles.weight_gradient(x, dy, before=table)
            near_on_cuda(dw, exact_weights(normed(x, table), dy))
        dx, sums = conv_tiles.convolved(dy, kernel, turned=True, after=(seen, after))
        near_on_cuda(dx, exact(dy, kernel, True))
        want = exact_sums(dx, (seen, after))
        assert sums is not None
        torch.testing.assert_close(sums.double().sum(2), want, rtol=1e-4, atol=1e-4 * float(want.abs().max()) + 0.05)
        plain, none = conv_tiles.convolved(dy, kernel, turned=True)
        assert none is None
        assert torch.equal(plain, dx)


def near_on_cuda(got: Tensor, want: Tensor) -> None:
    """As `near`, but a ReLU's argument may be rounded to the other side: what a fused product gains of a sum."""
    torch.testing.assert_close(got.double(), want, rtol=2.0**-7, atol=2e-3 * float(want.abs().max()))


def products(x: Tensor, dy: Tensor, kernel: Tensor, table: Tensor) -> list[Tensor]:
    y, sums = conv_tiles.convolved(x, kernel, before=table, moments=True)
    dx, of_dx = conv_tiles.convolved(dy, kernel, turned=True, after=(x, table))
    assert sums is not None
    assert of_dx is not None
    return [y, sums, dx, of_dx, conv_tiles.weight_gradient(x, dy, before=table)]


@pytest.mark.cuda
@on_hopper
def test_on_cuda_the_same_bits_each_time_and_in_a_graph():
    torch.manual_seed(0)
    x, dy, kernel, table = (picture(130, 32, 32, 40, device="cuda"), picture(130, 32, 32, 40, device="cuda"),
                            picture(40, 3, 3, 40, device="cuda"), table_of(40, "cuda"))  # fmt: skip
    first, second = products(x, dy, kernel, table), products(x, dy, kernel, table)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = products(x, dy, kernel, table)
    other = picture(130, 32, 32, 40, device="cuda")
    x.copy_(other)
    for t in captured:
        t.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, products(other, dy, kernel, table), strict=True))
    assert not torch.equal(captured[0], first[0])


def test_a_gpu_with_less_shared_memory_keeps_the_library(monkeypatch):
    """Of Hopper's generation or later, but made for a desk: neither convolutions nor clusters of ours."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 0))
    for room, enough in ((99 * 1024, False), (conv_tiles.SHARED, True)):
        found = SimpleNamespace(shared_memory_per_block_optin=room)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, found=found: found)
        has_room.cache_clear()
        tcn_cluster.has_clusters.cache_clear()
        assert tcn_cluster.has_clusters(torch.device("cuda")) is enough
    has_room.cache_clear()
    tcn_cluster.has_clusters.cache_clear()



@pytest.mark.cuda
@on_hopper
@pytest.mark.parametrize(("image", "channels", "batch"), [((3, 32, 32), 38, 130), ((1, 28, 28), 21, 64)])
def test_on_cuda_a_training_step_is_the_twin_s(image, channels, batch, monkeypatch):
    """In bfloat16, beside float64: not worse than what the library's convolutions leave."""
    torch.manual_seed(0)
    net = VGG(image, channels, 5).cuda()
    x, weights = torch.randn(batch, *image, device="cuda"), torch.randn(batch, 5, device="cuda")
    twin = copy.deepcopy(net).double()
    wanted = twin.linear(twin.stages(x.double()).flatten(1))
    of_twin = torch.autograd.grad((wanted * weights).sum(), list(twin.parameters()), materialize_grads=True)

    def errors(clusters: str) -> list[float]:
        monkeypatch.setenv("KOOPSIM_CLUSTERS", clusters)
        own = copy.deepcopy(net)
        with torch.autocast("cuda", torch.bfloat16):
            assert own.fused(x)
            y = own(x)
        grads = torch.autograd.grad((y.float() * weights).sum(), list(own.parameters()), materialize_grads=True)
        pairs = [(y.detach(), wanted.detach()), *zip(grads, of_twin, strict=True)]
        pairs += zip(own.buffers(), twin.buffers(), strict=True)
        biases = {id(g) for (n, _), g in zip(own.named_parameters(), grads, strict=True) if n in ZERO}
        return [float((a.double() - b).norm() / b.double().norm()) for a, b in pairs if id(a) not in biases]

    conv_tiles.build_stages((batch, *image[1:], shares(channels, 8) * 8), 0)
    built = cuda._machine_code.cache_info().misses
    ours, theirs = errors("1"), errors("0")
    assert cuda._machine_code.cache_info().misses == built, "not all that a step needs was built at once"
    assert max(theirs) < 0.5
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert a < 2 * b + 5e-3, (i, a, b)


ZERO = {f"stages.{k}.bias" for k in (0, 3, 7, 10)}  # gradients that are zero but for rounding
