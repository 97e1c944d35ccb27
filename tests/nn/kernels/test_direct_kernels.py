"""A SIM's loss and gradient kernel after kernel against autograd, through Triton's interpreter or on CUDA."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from koopsim.nn import SIM, TCN
from koopsim.nn.direct import direct

START = """
import copy, itertools, os
import torch
from torch.nn import functional as F
from koopsim.engine.members import Members, Rule
from koopsim.nn import SIM, TCN
from koopsim.nn.direct import DirectSIM
from koopsim.nn.kernels import tail as tail_kernels

device = "cuda" if torch.cuda.is_available() else "cpu"

def direct_of(sim):
    members = Members([sim], torch.zeros(1, 1, 4), 1, Rule())
    members.attach()
    begins = itertools.accumulate((s.numel() for s in members.shapes.values()), initial=0)
    return DirectSIM(sim, members.flat, dict(zip(members.shapes, begins)))

def distance(a, exact):
    return float((a.double() - exact).abs().max() / exact.abs().max())
"""

CASES = """
# clusters, parts of the tail, batch, length, levels, channels, taps, inputs, bytes, D, K, H, O, smoothing, scale
cases = [
    (0, 128, 2, 40, 2, 10, 8, 1, True, 32, 16, 32, 10, 0.0, 1.0),
    (0, 2, 1, 37, 1, 4, 3, 2, False, 7, 3, 9, 2, 0.1, 8.0),
    (0, 3, 3, 30, 1, 4, 2, 4, False, 5, 5, 6, 3, 0.0, 0.5),
]
if device == "cuda":  # all layers in one kernel, where there are clusters
    cases += [(1, *case[1:]) for case in cases]
    cases += [(1, 128, 1, 520, 8, 10, 8, 1, True, 32, 16, 32, 10, 0.0, 1.0)]
    cases += [(1, 128, 20, 520, 8, 10, 8, 1, True, 32, 16, 32, 10, 0.1, 1.0)]
for clusters, parts, B, T, levels, C, K, inputs, symbols, D, rank, H, O, smoothing, scale in cases:
    os.environ["KOOPSIM_CLUSTERS"], tail_kernels.PARTS = str(clusters), parts
    torch.manual_seed(T)
    sim = SIM(TCN(D, levels, C, K, inputs), D, O, H, rank=rank).to(device)
    with torch.no_grad():  # a gain is a norm at first: make it anything
        for p in sim.mu.parameters():
            p.add_(0.1 * torch.randn_like(p))
    exact = copy.deepcopy(sim).double()
    run = direct_of(sim)
    shape = (B, T) if inputs == 1 else (B, T, inputs)
    x = torch.randint(0, 10, shape, dtype=torch.uint8) if symbols else torch.randn(shape)
    x, y = x.to(device), torch.randint(0, O, (B, T), device=device)
    assert run.takes(x, y)
    losses, g = run(x, y, smoothing, scale)
    again = run(x, y, smoothing, scale)
    assert torch.equal(losses, again[0]) and torch.equal(g, again[1]), "two runs, two gradients"
    phi = exact.mu.linear(exact.mu.blocks(x.double().reshape(B, T, inputs)))
    answers = exact.h(exact.nu(exact.limit(phi)))
    loss = F.cross_entropy(answers.flatten(0, 1), y.flatten(), label_smoothing=smoothing)
    grads = torch.autograd.grad(loss, list(exact.parameters()))
    assert distance(losses, loss.detach().reshape(1)) < 1e-6, (losses, loss)
    assert g.shape == run.flat.shape
    pieces = g[0].split([p.numel() for p in grads])
    for (name, _), a, b in zip(exact.named_parameters(), pieces, grads):
        near = distance(a / scale, b.flatten())
        # of so many numbers before a ReLU some are zero but for rounding, and pass in one and not in the other
        assert near < (2e-5 if T < 100 else 1e-2), (name, clusters, B, T, near)
"""

SPOILT = """
sim = SIM(TCN(7, 1, 4, 3), 7, 3, 6, rank=3).to(device)
run = direct_of(sim)
x, y = torch.zeros(1, 9, dtype=torch.uint8, device=device), torch.zeros(1, 9, dtype=torch.int64, device=device)
y[0, 4] = 3
assert run(x, y, 0.0, 1.0)[0].isnan().all(), "a class that does not exist must not go unseen"
y[0, 4] = 0
assert run(x, y, 0.0, 1.0)[0].isfinite().all()
sim.nu[2].bias.data[0] = torch.nan
losses, g = run(x, y, 0.0, 1.0)
assert losses.isnan().all() and g.isnan().any()

assert not run.takes(x.long(), y) and not run.takes(x, y[:, :4]) and not run.takes(x, y.int())
os.environ["KOOPSIM_DIRECT"] = "0"
assert not run.takes(x, y)
del os.environ["KOOPSIM_DIRECT"]
assert run.takes(x, y)
assert not run.takes(x[0], y[0]), "one sequence without a batch"
assert not run.takes(x[:0], y[:0]) and not run.takes(x[:, :0], y[:, :0]), "a mean of nothing"
assert not run.takes(x.double(), y), "its kernels would read float64 as float32"
for register in (sim.register_forward_hook, sim.register_forward_pre_hook):
    hook = register(lambda *a: None)
    assert not run.takes(x, y), "whoever listens wants to hear"
    hook.remove()
assert run.takes(x, y)
"""


HOPPER = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from koopsim.nn.kernels import batch, gathered, tail

def compiled(kernel, kinds, fixed, **options):
    names = kernel.arg_names
    signature = {name: "constexpr" if name in fixed else kinds.get(name, "i32") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name, kind in kinds.items() if kind[0] == "*"}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in fixed.items()}, aligned)
    done = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert done.metadata.shared <= 227 * 1024 and "st.global" in done.asm["ptx"]

numbers = dict.fromkeys("phi V U W1 b1 W2 b2 W3 b3 Wh bh L c dphi sums losses".split(), "*fp32")
shape = {"D": 32, "K": 16, "H": 32, "O": 10, "F": 10, "S": 32, "PK": 16, "PH": 32, "PO": 16, "PF": 16, "R": 16}
for of_loss, kind in ((True, "*i64"), (False, "*fp32")):
    more = {"dy": kind, "smoothing": "fp32"}
    compiled(tail._backward, numbers | more, shape | {"LOSS": of_loss}, **tail.LAUNCH)
kinds = dict.fromkeys("flat lift tail lost out losses".split(), "*fp32")
kinds |= {"places": "*i64", "to": "*i32", "scale": "fp32"}
compiled(gathered._gather, kinds, {"INPUTS": 1, "C": 10, "K": 8, "BLOCK": 128, "N": 64, "TILE": 32})
kinds = dict.fromkeys("y order positions y_rows".split(), "*i64") | {"x": "*u8", "x_rows": "*u8"}
compiled(batch._copy, kinds, {"BLOCK": 1024})
"""


@pytest.mark.parametrize("script", [CASES, SPOILT], ids=["gradients", "what is spoilt, and what is left alone"])
def test_kernel_after_kernel_is_autograd(script, in_triton):
    in_triton(START + script)


def sim_on_cuda(channels: int = 4, inputs: int = 1, **changed) -> SIM:
    """Claims to be on CUDA and holds nothing: enough to be asked about."""
    settings: dict[str, Any] = {"lift_dim": 8, "outputs": 3, "hidden": 6, "rank": 4} | changed
    model = SIM(TCN(settings["lift_dim"], 1, channels, 3, inputs), **settings)
    with FakeTensorMode():
        for module in model.modules():
            for name, p in module.named_parameters(recurse=False):
                module._parameters[name] = nn.Parameter(torch.empty(p.shape, device="cuda"))
    return model


def test_which_models_go_this_way():
    pytest.importorskip("triton")
    assert direct(sim_on_cuda())
    assert not direct(SIM(TCN(8, 1, 4, 3), 8, 3)), "on a CPU"
    assert not direct(sim_on_cuda(projector=True))
    assert not direct(sim_on_cuda(outputs=33))
    assert not direct(sim_on_cuda(hidden=65))
    frozen, other, lifted = sim_on_cuda(), sim_on_cuda(), sim_on_cuda()
    frozen.h.bias.requires_grad_(False)
    other.h = nn.Linear(6, 3)  # pyright: ignore[reportAttributeAccessIssue]
    lifted.mu = nn.Sequential(lifted.mu)
    assert not any(direct(model) for model in (frozen, other, lifted))


def test_which_models_are_others_or_too_wide():
    pytest.importorskip("triton")
    assert direct(sim_on_cuda(channels=64, inputs=64))
    assert not direct(sim_on_cuda(channels=65))
    assert not direct(sim_on_cuda(channels=4, inputs=5)), "the kernels keep an input in the room of a channel"
    exact, shaped, own = sim_on_cuda(), sim_on_cuda(), sim_on_cuda()
    with FakeTensorMode():
        exact.h.bias = nn.Parameter(torch.empty(3, dtype=torch.float64, device="cuda"))
    shaped.psi = nn.Tanh()
    own.__class__ = type("Own", (SIM,), {})  # whose forward may be another
    assert not any(direct(model) for model in (exact, shaped, own))


def test_the_kernels_compile_for_hopper(tmp_path):
    """The interpreter takes more than the compiler does."""
    pytest.importorskip("triton")
    own = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    own["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", HOPPER], env=own, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
