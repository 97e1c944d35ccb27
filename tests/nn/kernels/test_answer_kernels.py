"""One kernel's answer is the fused module's: `vgg.cu` and `tcn.cu` on a CPU with threads for threads, and on CUDA."""

import ctypes
import threading

import pytest
import torch

import koopsim
from koopsim.config import SIMConfig, TCNConfig, VGGConfig
from koopsim.nn.fuse import fuse
from koopsim.nn.kernels import answer, tcn_cluster, vgg_cluster
from koopsim.nn.lift import residual_of
from koopsim.nn.sim import build_sim

IMAGES = """
extern "C" void images(int count, int bytes, const float* x, const float* packed, float* y) {
    launch(count, bytes, [=] { image_answer(x, packed, y); });
}
"""
SEQUENCES = """
extern "C" void sequences(int count, int bytes, const float* x, const float* R, const float* r, const float* W,
                          const float* b, const float* head, float* y, int T, int projected) {
    launch(count, bytes, [=] { temporal_answer(x, R, r, W, b, head, y, T, projected); });
}
"""


def pointers(*tensors: torch.Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(t.data_ptr()) for t in tensors]


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def image_model(image: tuple[int, int, int], channels: int):
    model = build_sim(SIMConfig(VGGConfig(channels, image), 6, None, None, False, 5, 3)).train()
    for _ in range(3):  # statistics that are not those of the beginning
        model(torch.randn(8, *image) * 2 + 1)
    return model.eval()


@pytest.mark.parametrize(
    ("image", "channels", "strips", "halves", "threads"),
    [((3, 8, 8), 7, 2, 2, 16), ((1, 12, 8), 4, 4, 1, 3), ((2, 8, 12), 6, 1, 2, 40)],
    ids=["strips and halves", "a strip too many", "one strip, parts of sums"],
)
def test_an_image_in_one_kernel(emulated, image, channels, strips, halves, threads, monkeypatch):
    torch.manual_seed(channels)
    monkeypatch.setattr(vgg_cluster, "THREADS", threads)
    fused = fuse(image_model(image, channels))
    lift, head = fused[0], [fused[1], fused[3], fused[5]]
    sizes = vgg_cluster.sizes(lift, head, image, strips, halves)  # pyright: ignore[reportArgumentType]
    assert sizes is not None
    packed = vgg_cluster.packed(lift, head, sizes)  # pyright: ignore[reportArgumentType]
    library = emulated("vgg.cu", IMAGES, **sizes.defines())
    x, y = torch.randn(2, *image), torch.full((2, 3), torch.nan)
    library.images(2, sizes.shared_bytes(), *pointers(x, packed, y))
    near(y, fused(x))
    x[1, 0, 1, 1] = torch.nan  # not a number is answered by not a number
    library.images(2, sizes.shared_bytes(), *pointers(x, packed, y))
    assert y[1].isnan().all()
    assert not y[0].isnan().any()


@pytest.mark.parametrize(("T", "cluster", "inputs"), [(21, 4, 1), (9, 2, 4)], ids=["projected", "as it is"])
def test_a_sequence_in_one_kernel(emulated, T, cluster, inputs, monkeypatch):
    torch.manual_seed(T)
    monkeypatch.setattr(tcn_cluster, "THREADS", 7)
    model = build_sim(SIMConfig(TCNConfig(3, 4, 4, inputs), 6, None, None, False, 6, 3)).eval()
    fused = fuse(model)
    lift, head = fused[0], [fused[1], fused[3], fused[5]]
    sizes = tcn_cluster.sizes(lift.W[None], inputs, cluster) | {"HIDDEN": 6, "OUTPUTS": 3}  # pyright: ignore
    library = emulated("tcn.cu", SEQUENCES, **sizes)
    x = torch.randn(2, T) if inputs == 1 else torch.randn(2, T, inputs)
    R, r = residual_of(lift.residual, x)  # pyright: ignore[reportArgumentType]
    W, b, top = lift.W.contiguous(), lift.b.contiguous(), answer.packed_head(head)  # pyright: ignore
    y = torch.full((2, T, 3), torch.nan)
    library.sequences(2, 1 << 16, *pointers(x, R, r, W, b, top, y), T, int(R.numel() > 0))
    near(y, fused(x))


def test_what_has_no_kernel_is_left_to_the_modules():
    cpu = torch.device("cpu")
    assert answer.answering(fuse(image_model((3, 8, 8), 4)), (3, 8, 8), cpu) is None
    odd = fuse(image_model((3, 10, 8), 4))
    assert vgg_cluster.sizes(odd[0], [odd[1], odd[3], odd[5]], (3, 10, 8)) is None  # pyright: ignore
    fits = vgg_cluster.sizes(*_parts("cifar10/sim-single"), (3, 32, 32))  # pyright: ignore
    assert fits is not None
    assert fits.shared_bytes() <= tcn_cluster.SHARED


def _parts(name: str):
    fused = fuse(koopsim.build(name).eval())
    return fused[0], [fused[1], fused[3], fused[5]]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["cifar10/sim-single", "mnist/sim-single", "copy/sim-single"])
def test_on_cuda_few_at_once_and_from_threads(name):
    model = koopsim.load(name, "cuda").eval()
    shape = {"cifar10": (3, 32, 32), "mnist": (1, 28, 28), "copy": (520,)}[name.split("/")[0]]
    device = torch.device("cuda")
    one = answer.answering(fuse(model).to(device), shape, device)
    assert one is not None
    wrong, exact = [], fuse(model.double())

    def ask(seed: int) -> None:
        x = torch.randn(1 + seed % 8, *shape, generator=torch.Generator().manual_seed(seed))
        with torch.cuda.stream(torch.cuda.Stream()):
            x = x.cuda()
            for _ in range(5):
                y = one(x)
            want = exact(x.double())
            wrong.append(float((y - want).abs().max() / want.abs().max()))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(wrong) == 8
    assert max(wrong) < 1e-4


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["image", "sequence"])
def test_on_cuda_small_models(kind):
    """Small enough for a sanitizer that looks at every access to shared memory."""
    torch.manual_seed(0)
    if kind == "image":
        model, shape = image_model((3, 8, 8), 7), (3, 8, 8)
    else:
        model, shape = build_sim(SIMConfig(TCNConfig(3, 4, 4, 1), 6, None, None, False, 6, 3)).eval(), (40,)
    x, device = torch.randn(3, *shape), torch.device("cuda")
    one = answer.answering(fuse(model).to(device), shape, device)
    assert one is not None
    near(one(x).cpu(), fuse(model.cpu())(x))
