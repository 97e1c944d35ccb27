"""The kernel of a SIM's tail against the readable maps, on a CPU through Triton's interpreter, on CUDA as it runs."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from koopsim.nn import SIM

START = """
import copy
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from koopsim.nn import SIM
from koopsim.nn.kernels import tail as tail_kernels

device = "cuda" if torch.cuda.is_available() else "cpu"

def sim_of(D, K, H, O, **settings):
    return SIM(nn.Identity(), D, O, H, rank=K, **settings).to(device)

def distance(a, exact):
    return float((a.double() - exact).abs().max() / exact.abs().max())
"""

SIZES = """
for parts, rows, D, K, H, O in {cases}:
    tail_kernels.PARTS = parts
    torch.manual_seed(rows)
    sim = sim_of(D, K, H, O)
    phi = torch.randn(rows, D, device=device)
    weights = torch.randn(rows, O, device=device)
    results = []
    for model, dtype, fast in ((sim, torch.float32, True), (sim, torch.float32, False),
                               (copy.deepcopy(sim).double(), torch.float64, False)):
        x = phi.to(dtype).requires_grad_()
        y = model.tail(x) if fast else model.h(model.nu(model.limit(x)))
        results.append([y, *torch.autograd.grad((y * weights.to(dtype)).sum(), [x, *model.parameters()])])
    for fast, slow, exact in zip(*results):
        assert fast.shape == slow.shape
        near, twin = distance(fast, exact), distance(slow, exact)
        assert near < 1e-5 and near <= 3 * twin + 2e-7, (rows, D, K, H, O, tuple(fast.shape), near, twin)
"""

PICKED = """
for projector in (False, True):
    torch.manual_seed(1)
    sim, seen = sim_of(20, 6, 9, 4, projector=projector), []
    sim.tail = lambda phi, front=None: seen.append(phi.shape) or SIM.tail(sim, phi, front)
    x = torch.randn(2, 3, 20, device=device, requires_grad=True)
    weights = torch.randn(2, 3, 4, device=device)
    wanted = [x, *sim.parameters()]
    results = []
    for fused in (True, False):
        sim.fused = lambda phi: fused
        y = sim(x)
        results.append([y, *torch.autograd.grad((y * weights).sum(), wanted)])
    assert seen == [x.shape], seen
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))

    short, grads = x.detach().bfloat16().requires_grad_(), []  # as autocast hands it over
    for fused in (True, False):
        sim.fused = lambda phi: fused
        with torch.autocast(device, torch.bfloat16):
            y = sim(short)
        assert y.dtype == torch.float32
        grads.append([y, *torch.autograd.grad((y * weights).sum(), [short, *sim.parameters()])])
    assert grads[0][1].dtype == torch.bfloat16
    for a, b in zip(*grads):
        tolerance = 1e-2 if a.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))

sim.limit.V.data[0, 0] = torch.nan
assert sim.tail(x).isnan().all(), "a ReLU must not make a zero of what is not a number"
"""

STACKED = """
for programs, models, rows, D, K, H, O, shared in [(256, 3, 37, 32, 16, 32, 10, False), (4, 2, 70, 11, 5, 7, 3, True)]:
    tail_kernels.PROGRAMS = programs
    torch.manual_seed(models)
    sims = [sim_of(D, K, H, O) for _ in range(models)]
    parameters, buffers = stack_module_state(sims)
    flat = torch.cat([p.detach().flatten(1) for p in parameters.values()], 1)  # one row a model, as a population has it
    start, views = 0, {}
    for name, p in parameters.items():
        size = p[0].numel()
        views[name] = flat[:, start : start + size].view(p.shape).detach().requires_grad_()
        start += size
    x = torch.randn(rows, D, device=device) if shared else torch.randn(models, rows, D, device=device)
    weights = torch.randn(rows, O, device=device)
    empty = copy.deepcopy(sims[0]).to("meta")
    empty.fused = lambda phi: True
    losses = vmap(lambda p, x: (functional_call(empty, p, x) * weights).sum(), (0, None if shared else 0))(views, x)
    grads = torch.autograd.grad(losses.sum(), list(views.values()))
    for p, sim in enumerate(sims):
        phi = x if shared else x[p]
        alone = (sim.h(sim.nu(sim.limit(phi))) * weights).sum()
        torch.testing.assert_close(losses[p], alone, rtol=1e-5, atol=1e-4)
        for a, b in zip(grads, torch.autograd.grad(alone, list(sim.parameters()))):
            torch.testing.assert_close(a[p], b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))
"""

FRONT = """
from koopsim.nn import TCN
cases = [(128, 2, 40, 10, 32, 16, 32, 10), (2, 1, 45, 4, 7, 3, 9, 2), (3, 2, 30, 20, 40, 8, 5, 3)]
for parts, B, T, C, D, K, H, O in cases:
    tail_kernels.PARTS = parts
    torch.manual_seed(T)
    sim = SIM(TCN(D, 2, C, 4), D, O, H, rank=K).to(device)
    a = torch.randn(B, T, C, device=device)
    weights = torch.randn(B, T, O, device=device)
    results = []
    for model, dtype, fast in ((sim, torch.float32, True), (copy.deepcopy(sim).double(), torch.float64, False)):
        x = a.to(dtype).requires_grad_()
        y = model.tail(x, model.mu.linear) if fast else model.h(model.nu(model.limit(model.mu.linear(x))))
        wanted = [x, *(p for m in (model.mu.linear, model.limit, model.nu, model.h) for p in m.parameters())]
        results.append([y, *torch.autograd.grad((y * weights.to(dtype)).sum(), wanted)])
    for fast, exact in zip(*results):
        assert fast.shape == exact.shape and distance(fast, exact) < 1e-5, (C, D, distance(fast, exact))
    seen = []
    sim.fused = lambda phi: True
    sim.tail = lambda phi, front=None: seen.append(front) or SIM.tail(sim, phi, front)
    sim.mu.fused = lambda rows: False
    import koopsim.nn.sim as module
    module.on_cpu = lambda *t: False
    sim(torch.randn(B, T, device=device))
    assert seen == [sim.mu.linear]
"""

PAPER = [  # parts, rows, D, K, H, outputs
    (128, 520, 32, 16, 32, 10),  # copy memory
    (128, 37, 32, 16, 32, 10),
    (128, 64, 50, 25, 32, 10),  # CIFAR-10, single-tier
    (128, 64, 104, 52, 32, 10),  # two-tier
]
OTHERS = [
    (3, 500, 32, 16, 32, 10),  # a program has many blocks of rows
    (1, 70, 50, 25, 32, 10),  # and one program has all
    (128, 5, 7, 3, 9, 2),
    (2, 33, 33, 33, 17, 17),  # one more than a tile
    (2, 40, 128, 64, 64, 32),  # the largest
    (128, 1, 1, 1, 1, 1),
]


@pytest.mark.parametrize(
    "script",
    [SIZES.format(cases=PAPER), SIZES.format(cases=OTHERS), PICKED, STACKED, FRONT],
    ids=["paper sizes", "other sizes", "picked by forward", "stacked", "with the lift's last layer"],
)
def test_the_kernel_is_the_maps_it_stands_for(script, in_triton):
    in_triton(START + script)


def phi_on_cuda(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Claims to be on CUDA and holds nothing: enough to be asked about."""
    with FakeTensorMode():
        return torch.empty(*shape, device="cuda", dtype=dtype)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_when_the_kernel_is_used():
    phi = phi_on_cuda(4, 32)
    assert SIM(nn.Identity(), 32, 10).fused(phi)
    assert SIM(nn.Identity(), 32, 10).fused(phi_on_cuda(4, 32, dtype=torch.bfloat16))
    assert not SIM(nn.Identity(), 32, 10).fused(torch.zeros(4, 32)), "on a CPU"
    assert not SIM(nn.Identity(), 32, 10).eval().fused(phi)
    assert not SIM(nn.Identity(), 32, 10).fused(phi_on_cuda(0, 32)), "no rows"
    assert not SIM(nn.Identity(), 32, 10).fused(phi_on_cuda(4, 32, dtype=torch.float64))
    assert not SIM(nn.Identity(), 32, 10).double().fused(phi)
    assert not SIM(nn.Identity(), 130, 10, rank=4).fused(phi_on_cuda(4, 130))
    assert not SIM(nn.Identity(), 100, 10, rank=65).fused(phi_on_cuda(4, 100))
    assert not SIM(nn.Identity(), 32, 33).fused(phi)
    assert not SIM(nn.Identity(), 32, 10, hidden=65).fused(phi)
    with torch.no_grad():
        assert not SIM(nn.Identity(), 32, 10).fused(phi)
    other = SIM(nn.Identity(), 32, 10)
    other.h = nn.Linear(32, 10)  # pyright: ignore[reportAttributeAccessIssue]
    assert not other.fused(phi), "somebody's own output"
