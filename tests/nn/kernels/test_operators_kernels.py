"""Every kernel is an operator that compilers, vmap and autograd can ask: its rules against what it does.

On a CPU through Triton's interpreter, on CUDA as it runs. `torch.library.opcheck` compares the schema, the fake rule
and the gradient's registration with a real call; the inputs are such as a compiler may hand over: sliced and turned.
"""

import pytest

PREPARE = """
import torch
from torch.library import opcheck
from koopsim.nn.kernels import bias_relu, cross_entropy, norm, padding, pixels, tail, tcn, waves, weight_norm
from koopsim.nn.padding import _padded

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

def odd(*shape, learnt=True):
    "Not contiguous: every other entry of a turned tensor."
    wide = torch.randn(*shape[:-2], 2 * shape[-1], shape[-2], device=device)
    return wide[..., ::2, :].mT.detach().requires_grad_(learnt)

def agree(op, *inputs):
    "Of odd inputs the operator makes what it makes of tidy ones, and its rules hold."
    def neat(i):
        if isinstance(i, list):
            return [neat(t) for t in i]
        return i.detach().contiguous() if isinstance(i, torch.Tensor) else i
    tidy = [neat(i) for i in inputs]
    a, b = op(*inputs), op(*tidy)
    for one, two in zip(a if isinstance(a, tuple) else (a,), b if isinstance(b, tuple) else (b,)):
        assert one.is_contiguous()
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    opcheck(op, inputs, test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))
"""

SMALL = """
norm.PARTS = 6  # the interpreter is slow
agree(waves.waves, odd(3, 7, 6), torch.float32)
agree(bias_relu.bias_relu_of_models, odd(2, 50, 6), odd(2, 6))
agree(cross_entropy.losses, odd(2, 40, 5), torch.randint(0, 5, (40, 2), device=device).mT, 0.1)
weights = [odd(2, 4, 8), odd(2, 8, 4), odd(2, 6, 8), odd(2, 6), odd(2, 6, 6), odd(2, 6), odd(2, 6, 6), odd(2, 6),
           odd(2, 3, 6), odd(2, 3)]
agree(tail.tail, odd(2, 40, 8), weights)
layers = [odd(4, 3), odd(1, 4, learnt=False)[0], odd(1, 4)[0], odd(4, 12), odd(1, 4)[0], odd(1, 4)[0]]
agree(weight_norm.normed_weights, layers, 3)
agree(norm.norm_relu_pool, odd(2, 4, 4, 16), odd(1, 6)[0], odd(1, 6)[0], odd(1, 6)[0], 1e-5, True)
agree(norm.bias_relu_pool, odd(2, 4, 4, 16, learnt=False), odd(1, 16, learnt=False)[0], False)
agree(padding.taken, odd(1, 20, learnt=False)[0], torch.tensor([3, -1, 19, 0], device=device), torch.float32)
agree(padding.pixels_last, odd(2, 3, 4, 4, learnt=False), 8, torch.float32)
layers = [odd(2, 16, 16), odd(2, 16), odd(2, 16, 16), odd(2, 16), odd(2, 3, 16), odd(2, 3)]
features = odd(2, 256, 16, learnt=False).to(torch.float16 if device == "cuda" else torch.float32)
agree(pixels.pixel_loss_of_models, features, layers, odd(2, 256, 3, learnt=False), True)
agree(_padded, [odd(5, 3, 3, 3), odd(4, 5, 2, 2)], torch.float32, 8)
"""

STACK = """
x, R, r = odd(1, 2, 20, 1), odd(1, 4, 1), odd(1, 4)
agree(tcn.temporal_stack, x, R, r, odd(1, 4, 4, 3, 4), odd(1, 4, 4))
none = torch.empty(1, 0, 0, device=device), torch.empty(1, 0, device=device)
agree(tcn.temporal_stack, odd(1, 4, 20, 4)[:, :2], *none, odd(1, 4, 4, 3, 4), odd(1, 4, 4))
"""

WRITERS = """
from koopsim.errors import KoopsimError
from koopsim.implicit.kernels import inverse, splitting
from koopsim.nn.kernels import adam as adam_kernels
adam_kernels.PARTS, adam_kernels.BLOCK = 4, 16  # the interpreter is slow
adam = adam_kernels.adam
both = ("test_schema", "test_faketensor")

def some(*shape):
    return torch.randn(*shape, device=device)

def counters(value):
    return torch.full((2,), value, device=device)

def state(flat):
    return (odd(2, 30, learnt=False), odd(1, 2, learnt=False)[0], flat, some(2, 30), some(2, 30).square(), some(2, 30),
            torch.rand(30, device=device), torch.rand(2, 5, 4, device=device), counters(1), counters(0),
            torch.ones(2, dtype=torch.bool, device=device), torch.zeros(2, 5, device=device), 1e-8, 1.0, 0.1, 0.999)

opcheck(adam, state(some(2, 30)), test_utils=both)
rows, places = torch.tensor([2, 0], device=device), torch.tensor([1, 3], device=device)
opcheck(splitting.move, (odd(4, 6, learnt=False), rows, some(5, 6), places), test_utils=both)
for call in (lambda: adam(*state(odd(2, 30, learnt=False))),
             lambda: splitting.move(some(4, 6), rows, odd(5, 6, learnt=False), places)):
    try:
        call()
        raise AssertionError("it wrote into a copy")
    except KoopsimError as error:
        assert "expected a contiguous one" in str(error)

t, c, keep = odd(8, 5, learnt=False), odd(8, 5, learnt=False), torch.ones(8, 1, dtype=torch.bool, device=device)
none = (None,) * 4
flags = [True, True, False, False, False, False]
agree(splitting.split_step, t, c, keep, odd(8, 5, learnt=False), *none, [], 8, torch.float32, flags)
agree(splitting.split_step, t, c, keep, odd(8, 5, learnt=False), *none, [3, 5], 8, torch.float32, flags)
agree(splitting.split_step, t, c, keep, None, *none, [], 8, torch.float32, [True, False, True, False, False, False])
W = 0.1 * odd(3, 2, 18, 18, learnt=False)
opcheck(inverse.resolvent, (W, torch.tensor(0.5, device=device), torch.float32), test_utils=both)
torch.testing.assert_close(inverse.reflected_resolvent(W, 0.5), inverse.reflected_resolvent(W.contiguous(), 0.5))
"""

COMPILED = """
from koopsim.nn import TCN
tcn_ = TCN(5, 2, 4, 3).to(device)
tcn_.fused = lambda rows: True
x = torch.randn(3, 25, 2, device=device).mT[:, 1]
for rows in (x, x[:1], torch.zeros(1, 25, device=device).expand(4, 25)):
    want = tcn_.linear(tcn_.blocks(rows.unsqueeze(-1)))
    grads = torch.autograd.grad(want.square().sum(), list(tcn_.parameters()))
    compiled = torch.compile(tcn_, backend="aot_eager", dynamic=False)
    got = compiled(rows)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for a, b in zip(torch.autograd.grad(got.square().sum(), list(tcn_.parameters())), grads):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * max(1.0, float(b.abs().max())))

from koopsim.errors import KoopsimError
p = torch.randn(4, 3, device=device, requires_grad=True)
(g,) = torch.autograd.grad(waves.waves(p, torch.float32).square().sum(), p, create_graph=True)
try:
    torch.autograd.grad(g.sum(), p)
    raise AssertionError("a second derivative was silently wrong")
except KoopsimError as error:
    assert "differentiated again" in str(error)
"""


@pytest.mark.parametrize(
    "script",
    [SMALL, WRITERS, pytest.param(STACK, marks=pytest.mark.slow), pytest.param(COMPILED, marks=pytest.mark.slow)],
    ids=["small", "writers", "stack", "compiled"],
)
def test_operators_take_any_layout_and_keep_their_rules(script, in_triton):
    in_triton(PREPARE + script)
