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
import torch
from torch.nn import functional as F
from koopsim.nn.kernels import pixels
from koopsim.nn.kernels.pixels import pixel_loss

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

def network(features, width, depth):
    sizes = [features, *[width] * depth, 3]
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
for parts, rows, features, width, depth, sigmoid in [
    (1056, 264, 16, 8, 2, False), (3, 104, 24, 11, 2, False), (2, 37, 5, 4, 3, True), (5, 1001, 6, 16, 1, False)
]:
    pixels.PARTS = parts
    phi, t = torch.randn(rows, features, device=device), torch.rand(rows, 3, device=device)
    layers = network(features, width, depth)
    want, grads = gradients(twin, phi.double(), [[w.double() for w in layer] for layer in layers], t.double(), sigmoid)
    value, own = gradients(pixel_loss, phi, layers, t, sigmoid)
    torch.testing.assert_close(value.double(), want, rtol=1e-5, atol=0)
    for a, b in zip(own, grads):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-6)
"""

SHORT = """
pixels.PARTS = 4
for kind, near in ((torch.bfloat16, 4e-2), (torch.float16, 2e-2)):  # a ReLU or two falls on the other side
    phi, t, layers = torch.randn(512, 32, device=device).to(kind), torch.rand(512, 3, device=device), network(32, 16, 2)
    want, grads = gradients(twin, phi.float(), layers, t, False)
    value, own = gradients(pixel_loss, phi, layers, t, False)
    assert value.dtype == torch.float32 and all(g.dtype == torch.float32 for g in own)
    assert abs(float((value / want).detach()) - 1) < near
    for a, b in zip(own, grads):
        assert float((a - b).norm() / b.norm()) < near, (kind, a.shape)
# sums over pixels that float16 could not hold, and slopes that it would round to zero
phi = torch.full((65_536 if device == "cuda" else 4096, 8), 30.0, device=device).half()
for far, target in ((40.0, 0.0), (1.0, 0.998)):
    t = torch.full((len(phi), 3), target, device=device)
    layers = [(torch.eye(8, device=device), torch.zeros(8, device=device))] * 2
    layers.append((torch.full((3, 8), far / 240, device=device), torch.zeros(3, device=device)))
    value, own = gradients(pixel_loss, phi, layers, t, False)
    want, grads = gradients(twin, phi.float(), layers, t, False)
    for a, b in zip(own, grads):
        assert a.isfinite().all() and float((a - b).norm() / b.norm()) < 1e-2, (far, a.shape)
# what is no number is told by the loss
phi[3, 1] = torch.nan
assert pixel_loss(phi, layers, t).isnan()
"""

LAYER = """
from koopsim.nn.kernels.relu_layer import divides, relu_layer
for kind in (torch.float16, *([torch.bfloat16] if device == "cuda" else [])):  # the interpreter's dot does not know it
    for models, rows, K, H in [(2, 256, 128, 32), (1, 128, 64, 16), (3, 384, 192, 64)]:
        x, W = (torch.randn(models, *s, device=device).to(kind) for s in ((rows, K), (H, K)))
        b = 4 * torch.randn(models, H, device=device)
        assert divides(x, H)
        y, twin = relu_layer(x, W, b), F.relu(x.float() @ W.float().mT + b[:, None])
        assert y.dtype == kind and y.shape == twin.shape
        assert (y == 0).float().mean() > 0.1
        assert float((y.float() - twin).norm() / twin.norm()) < 1e-2
x[0, 5, 7] = torch.nan
y = relu_layer(x, W, b)
assert y[0, 5].isnan().all() and not y[0, :5].isnan().any() and not y[0, 6:].isnan().any()
assert not divides(x[:, :100], 64) and not divides(x[..., :100], 64) and not divides(x.float(), 64)
assert not any(divides(x, H) for H in (8, 48, 512))
# the whole, with it and without
P, rows, K, H = 2, 256, 64, 32
phi, t = torch.randn(P, rows, K, device=device).half() / 4, torch.rand(P, rows, 3, device=device)
weights = [torch.randn(P, *s, device=device) / 4 for s in ((H, K), (H,), (H, H), (H,), (3, H), (3,))]
pixels.PARTS = 6
called = []
pixels.relu_layer = lambda *given: called.append(1) or relu_layer(*given)
loss, grads = pixels._run(phi, weights, t, False)
assert called == [1]
pixels.divides = lambda x, H: False
for a, b in zip((loss, grads), pixels._run(phi, weights, t, False)):
    assert float((a - b).norm() / b.norm()) < 1e-2
assert called == [1]
"""

STACKED = """
pixels.PARTS = 7
P, rows = 3, 40
phi, t = torch.randn(P, rows, 6, device=device), torch.rand(P, rows, 3, device=device)
nets = [network(6, 5, 2) for _ in range(P)]
layers = [[torch.stack([n[i][j] for n in nets]).requires_grad_() for j in (0, 1)] for i in range(3)]
flat = [w for layer in layers for w in layer]

def stacked(fn, shared):
    def call(x, y, *w):
        return fn(x, list(zip(w[::2], w[1::2])), y, True)
    return torch.vmap(call, in_dims=(None if shared else 0, 0, *[0] * 6))(phi[0] if shared else phi, t, *flat)

for shared in (False, True):
    got, want = stacked(pixel_loss, shared), stacked(twin, shared)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=0)
    weights = torch.tensor([1.0, -2.0, 0.5], device=device)
    for a, b in zip(*(torch.autograd.grad((v * weights).sum(), flat) for v in (got, want))):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
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
torch.testing.assert_close(pixel_loss(turned, wide, t[0]), twin(turned, wide, t[0], False), rtol=1e-5, atol=0)
"""

HOPPER = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from koopsim.nn.kernels import bias_relu, pixels, relu_layer

def compiled(kernel, kinds, fixed, **options):
    names = kernel.arg_names
    signature = {name: "constexpr" if name in fixed else kinds.get(name, "i32") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in kinds}
    source = ASTSource(kernel, signature, {(names.index(n),): v for n, v in fixed.items()}, aligned)
    done = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert done.metadata.shared <= 227 * 1024 and "st.global" in done.asm["ptx"]
    return done

def of(launch):
    own = dict(launch)
    return {"num_warps": own.pop("num_warps")}, own

for kind in ("*bf16", "*fp16"):
    options, own = of(pixels.LAUNCH)
    for sigmoid in (False, True):
        fixed = {"WIDTH": 256, "BLOCK": 256, "TILE": pixels.TILE, "SIGMOID": sigmoid, **own}
        kinds = dict.fromkeys("b C c t sums ends".split(), "*fp32") | {"x": kind, "d": kind}
        compiled(pixels._end, kinds, fixed, **options)
    options, own = of(bias_relu.LAUNCH)
    fixed = {"WIDTH": 256, "BLOCK": 256, "TILE": bias_relu.SHORT, **own}
    compiled(bias_relu._backward, dict.fromkeys("y dy dx".split(), kind) | {"sums": "*fp32"}, fixed, **options)
    for H in (16, 256):
        fixed = {"K": 512, "H": H, "ROWS": relu_layer.ROWS, "DEPTH": relu_layer.DEPTH}
        kinds = dict.fromkeys("x W y".split(), kind) | {"b": "*fp32"}
        done = compiled(relu_layer._layer, kinds, fixed, **relu_layer.LAUNCH)
        assert "wgmma" in done.asm["ptx"] and done.metadata.shared <= relu_layer.SHARED
"""


@pytest.mark.parametrize("script", [EXACT, SHORT, LAYER, STACKED], ids=["exact", "short", "layer", "stacked"])
def test_the_loss_of_all_pixels_and_its_gradient(script, in_triton):
    in_triton(START + script)


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
    monkeypatch.setattr(folded, "fuses", lambda x: True)
    phi, t = torch.zeros(8, 4, dtype=torch.bfloat16), torch.zeros(8, 3)
    assert folded.one_pass(phi, t, torch.bfloat16)
    assert not folded.one_pass(phi, t, None), "float32 and TF32 have their library's products"
    assert not folded.one_pass(phi.float(), t, torch.bfloat16), "points, and features that are not short"
    assert not folded.one_pass(phi, t[:, :2], torch.bfloat16), "three colours"
    monkeypatch.setattr(folded, "fuses", lambda x: False)
    assert not folded.one_pass(phi, t, torch.bfloat16), "on a CPU"
