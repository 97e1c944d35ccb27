"""The loss of all pixels and its gradient in a few passes, against autograd's; in Triton's interpreter or on CUDA."""

import os
import subprocess
import sys

import pytest
import torch

from koopsim import build
from koopsim.config import FourierConfig, FourierNetworkConfig, IdentityConfig, SIMConfig
from koopsim.nn import folded

START = """
import itertools
import torch
from torch.nn import functional as F
from koopsim.nn.kernels import pixels
from koopsim.nn.kernels.pixels import pixel_loss

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

def network(features, width, depth, outputs=3):
    sizes = [features, *[width] * depth, outputs]
    random = lambda *shape: torch.randn(shape, device=device) / shape[-1] ** 0.5
    return [(random(o, i), random(o)) for i, o in zip(sizes, sizes[1:])]

def twin(phi, layers, t, sigmoid):
    for W, b in layers[:-1]:
        phi = F.relu(phi @ W.mT + b)
    y = phi @ layers[-1][0].mT + layers[-1][1]
    return (y.sigmoid() if sigmoid else y).sub(t).square().mean()

def gradients(loss, phi, layers, t, sigmoid):
    leaves = [[w.detach().clone().requires_grad_() for w in layer] for layer in layers]
    value = loss(phi, leaves, t, sigmoid)
    return value, torch.autograd.grad(3 * value, [w for layer in leaves for w in layer])
"""

EXACT = """
assert device == "cpu", "float32 is the interpreter's alone: shared memory does not hold as much of it"
for rows, features, width, depth, outputs, sigmoid in [
    (256, 16, 16, 2, 3, False), (512, 48, 32, 2, 3, True), (256, 32, 16, 1, 1, False), (768, 80, 16, 3, 15, False)
]:
    phi, t = torch.randn(rows, features), torch.rand(rows, outputs)
    layers = network(features, width, depth, outputs)
    want, grads = gradients(twin, phi.double(), [[w.double() for w in layer] for layer in layers], t.double(), sigmoid)
    value, own = gradients(pixel_loss, phi, layers, t, sigmoid)
    torch.testing.assert_close(value.double(), want, rtol=1e-5, atol=0)
    for a, b in zip(own, grads):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-6)
# layers of unlike widths
layers = [*network(32, 64, 1, 16), *network(16, 16, 0)]
phi, t = torch.randn(256, 32), torch.rand(256, 3)
want, grads = gradients(twin, phi, layers, t, False)
value, own = gradients(pixel_loss, phi, layers, t, False)
torch.testing.assert_close(value, want, rtol=1e-5, atol=0)
for a, b in zip(own, grads):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
"""

SHORT = """
kinds = (torch.float16, *([torch.bfloat16] if device == "cuda" else []))  # the interpreter's dot does not know it
sizes = [(512, 64, 16, 2)] + [(65_536, 512, 256, 2), (16_384, 192, 64, 3)] * (device == "cuda")
for kind, (rows, K, H, depth) in itertools.product(kinds, sizes):
    near = 4e-2 if kind == torch.bfloat16 else 2e-2  # a ReLU or two falls on the other side
    for sigmoid in (False, True):
        phi, t = torch.randn(rows, K, device=device).to(kind), torch.rand(rows, 3, device=device)
        layers = network(K, H, depth)
        assert pixels.divides(phi, [H] * depth, 3)
        want, grads = gradients(twin, phi.float(), layers, t, sigmoid)
        value, own = gradients(pixel_loss, phi, layers, t, sigmoid)
        assert value.dtype == torch.float32 and all(g.dtype == torch.float32 for g in own)
        assert abs(float((value / want).detach()) - 1) < near
        for a, b in zip(own, grads):
            assert float((a - b).norm() / b.norm()) < near, (kind, rows, a.shape)
        again = gradients(pixel_loss, phi, layers, t, sigmoid)
        assert torch.equal(again[0], value) and all(map(torch.equal, again[1], own)), "not the same bits"
# sums over pixels that float16 could not hold, and slopes that it would round to zero
phi = torch.full((65_536 if device == "cuda" else 4096, 16), 30.0, device=device).half()
for far, target in ((20.0, 0.0), (1.0, 0.998)):
    t = torch.full((len(phi), 3), target, device=device)
    layers = [(torch.eye(16, device=device), torch.zeros(16, device=device))] * 2
    layers.append((torch.full((3, 16), far / 480, device=device), torch.zeros(3, device=device)))
    value, own = gradients(pixel_loss, phi, layers, t, False)
    want, grads = gradients(twin, phi.float(), [*layers[:2], [w.half().float() for w in layers[2]]], t, False)
    for a, b in zip(own, grads):
        assert a.isfinite().all() and float((a - b).norm() / b.norm()) < 1e-2, (far, a.shape)
# what is no number is told by the loss
phi[3, 1] = torch.nan
assert pixel_loss(phi, layers, t).isnan()
"""

PARTS = """
kind = torch.bfloat16 if device == "cuda" else torch.float32  # where the interpreter is exact
near = 2e-2 if device == "cuda" else 1e-5
def close(a, b):
    assert a.shape == b.shape
    assert float((a.float() - b.float()).norm() / b.float().norm()) < near
for models, rows, K, H in [(2, 256, 128, 32), (1, 128, 64, 16), (3, 384, 80, 64)]:
    x, W, a, d = (torch.randn(models, *s, device=device).to(kind) for s in ((rows, K), (H, K), (rows, K), (rows, H)))
    b = 4 * torch.randn(models, H, device=device)
    y = pixels._forth(x, W, b)
    close(y, F.relu(x.float() @ W.float().mT + b[:, None]))
    assert y.dtype == kind and (y == 0).float().mean() > 0.1
    if K & (K - 1) == 0:
        g, sums = pixels._down(d, W, a)
        found = (d.float() @ W.float()) * (a > 0)
        close(g, found)
        close(sums, g.float().sum(1))
x[0, 5, 7] = torch.nan
y = pixels._forth(x, W, b)
assert y[0, 5].isnan().all() and not y[0, :5].isnan().any() and not y[0, 6:].isnan().any()
"""

STACKED = """
kind = torch.bfloat16 if device == "cuda" else torch.float32
exact = dict(rtol=1e-5, atol=0) if device == "cpu" else dict(rtol=2e-2, atol=2e-3)
P, rows = 3, 256
phi, t = torch.randn(P, rows, 32, device=device).to(kind), torch.rand(P, rows, 3, device=device)
nets = [network(32, 16, 2) for _ in range(P)]
layers = [[torch.stack([n[i][j] for n in nets]).requires_grad_() for j in (0, 1)] for i in range(3)]
flat = [w for layer in layers for w in layer]

def stacked(fn, shared):
    def call(x, y, *w):
        return fn(x if fn is pixel_loss else x.float(), list(zip(w[::2], w[1::2])), y, True)
    return torch.vmap(call, in_dims=(None if shared else 0, 0, *[0] * 6))(phi[0] if shared else phi, t, *flat)

for shared in (False, True):
    got, want = stacked(pixel_loss, shared), stacked(twin, shared)
    torch.testing.assert_close(got, want, **exact)
    weights = torch.tensor([1.0, -2.0, 0.5], device=device)
    for a, b in zip(*(torch.autograd.grad((v * weights).sum(), flat) for v in (got, want))):
        assert float((a - b).norm() / b.norm()) < (1e-4 if device == "cpu" else 4e-2)
points = phi[0].clone().requires_grad_()
try:
    torch.autograd.grad(pixel_loss(points, nets[0], t[0]), points)
    raise SystemExit("a gradient of nothing")
except Exception as error:
    assert "features of pixels" in str(error), error
# turned and sliced tensors are what they are
turned = phi[0].mT.contiguous().mT
wide = [[w.detach()[0].repeat_interleave(2, -1)[..., ::2] for w in layer] for layer in layers]
assert not turned.is_contiguous() and not wide[0][0].is_contiguous()
torch.testing.assert_close(pixel_loss(turned, wide, t[0]), twin(turned.float(), wide, t[0], False), **exact)
"""

HOPPER = """
import pathlib, subprocess, tempfile, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from koopsim.nn.kernels import pixels

def compiled(kernel, kinds, fixed):
    names = kernel.arg_names
    signature = {name: "constexpr" if name in fixed else kinds.get(name, "i32") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in kinds}
    source = ASTSource(kernel, signature, {(names.index(n),): v for n, v in fixed.items()}, aligned)
    return compile(source, target=GPUTarget("cuda", 90, 32), options=pixels.LAUNCH)

tool = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
room = {"ROWS": pixels.ROWS, "DEPTH": pixels.DEPTH}
for kind, size, sigmoid in (("*bf16", {"K": 256, "H": 256}, False), ("*fp16", {"K": 64, "H": 16}, True)):
    layer = compiled(pixels._layer, dict.fromkeys("x W y".split(), kind) | {"b": "*fp32"}, size | room)
    back = compiled(pixels._back, dict.fromkeys("d W a g".split(), kind) | {"sums": "*fp32"}, size | room)
    kinds = dict.fromkeys("b C c t sums ends".split(), "*fp32") | dict.fromkeys("x W d".split(), kind)
    last = compiled(pixels._last, kinds, size | room | {"O": 3, "SIGMOID": sigmoid})
    for done in (layer, back, last):
        assert "wgmma" in done.asm["ptx"] and done.metadata.shared <= pixels.SHARED
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            pathlib.Path(file.name).write_bytes(done.asm["cubin"])
            used = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
        assert "STACK:0 " in used.stdout + used.stderr, "registers are spilt"
"""


@pytest.mark.parametrize("script", [SHORT, PARTS, STACKED], ids=["short", "parts", "stacked"])
def test_the_loss_of_all_pixels_and_its_gradient(script, in_triton):
    in_triton(START + script)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's shared memory has no room for it in float32")
def test_in_the_interpreter_they_are_exact(in_triton):
    in_triton(START + EXACT)


def test_the_kernels_compile_for_hopper(tmp_path):
    """The interpreter takes more than the compiler does."""
    pytest.importorskip("triton")
    own = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    own["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", HOPPER], env=own, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


MODELS = {
    "rff": SIMConfig(IdentityConfig(2), lift_dim=2, fourier=FourierConfig(16, 0.1), hidden=9, outputs=3),
    "rff, identity": SIMConfig(
        IdentityConfig(2), lift_dim=2, fourier=FourierConfig(16, 0.1), rank=16, hidden=9, outputs=3, projector=True
    ),
    "tancik": FourierNetworkConfig(features=16, sigma=2.0, width=11),
}


def by_autograd(phi, layers, t, sigmoid):
    """What stands in for the kernels."""
    for W, b in layers[:-1]:
        phi = torch.relu(phi.to(W.dtype) @ W.mT + b)
    y = phi @ layers[-1][0].mT + layers[-1][1]
    return (y.sigmoid() if sigmoid else y).sub(t).square().mean()


@pytest.mark.parametrize("name", MODELS)
def test_they_are_given_the_layers_of_the_folded_network(name, monkeypatch):
    pixels = pytest.importorskip("koopsim.nn.kernels.pixels")
    monkeypatch.setattr(pixels, "pixel_loss", by_autograd)
    torch.manual_seed(1)
    model, x, t = build(MODELS[name]).double(), torch.rand(40, 2).double(), torch.rand(40, 3).double()
    phi = folded.fixed_features(model, x)
    assert phi is not None
    loss, twin = folded.squared_error(model, phi, t), (model(x) - t).square().mean()
    torch.testing.assert_close(loss, twin, rtol=1e-12, atol=0)
    grads = (torch.autograd.grad(value, model.parameters()) for value in (loss, twin))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_who_goes_this_way(monkeypatch):
    pixels = pytest.importorskip("koopsim.nn.kernels.pixels")
    model = build(SIMConfig(IdentityConfig(2), 2, fourier=FourierConfig(64, 0.1), hidden=32, outputs=3))
    odd = build(SIMConfig(IdentityConfig(2), 2, fourier=FourierConfig(64, 0.1), hidden=33, outputs=3))
    phi, t = torch.zeros(256, 64, dtype=torch.bfloat16), torch.zeros(256, 3)

    def asked(model=model, phi=phi, t=t, dtype=torch.bfloat16):
        return folded.one_pass(model, phi, t, dtype)

    monkeypatch.setenv("KOOPSIM_PIXELS", "1")
    assert not asked(), "on a CPU"
    monkeypatch.setattr(folded, "fuses", lambda x: True)
    assert asked()
    assert asked(build(FourierNetworkConfig(features=64, sigma=2.0, width=16)))
    assert not asked(dtype=None), "float32 and TF32 have their library's products"
    assert not asked(phi=phi.float()), "points, and features that are not short"
    assert not asked(phi=phi.float(), dtype=torch.float32)
    assert not asked(odd), "of no power of two"
    assert not asked(build(FourierNetworkConfig(features=64, sigma=2.0, width=512))), "too wide"
    assert not asked(phi=phi[:, :56]), "an odd number of features"
    assert asked(phi=phi[:, :48])
    assert not asked(phi=phi[:128]), "what does not divide into slices"
    assert not asked(t=torch.zeros(256, 16)), "too many outputs"
    assert asked(t=torch.zeros(256, 15))
    with monkeypatch.context() as patch:
        patch.setattr(pixels, "has_room", lambda device, size: size < pixels.SHARED)
        assert not asked(), "a GPU with less shared memory"
    for other in ("0", None):
        monkeypatch.setenv("KOOPSIM_PIXELS", other) if other else monkeypatch.delenv("KOOPSIM_PIXELS")
        assert not asked(), "only where it is asked for"
