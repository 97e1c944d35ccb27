"""Products by oneDNN, against F.linear and autograd in float64, and who takes which."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import vmap
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from koopsim.nn import MLP, SIM, RandomFourierFeatures, products
from koopsim.nn.folded import folded
from koopsim.nn.products import affine, faster, times
from koopsim.nn.written import WrittenSIM

there = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()
pytestmark = pytest.mark.skipif(not there, reason="this PyTorch has no oneDNN")


@pytest.fixture
def onednn(monkeypatch):
    """Every product of float32 is oneDNN's, and each is counted."""
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "LEAST", 0)
    monkeypatch.setattr(products, "WIDE", 0)
    calls, own = [], products._by_onednn
    monkeypatch.setattr(products, "_by_onednn", lambda *given: calls.append(1) or own(*given))
    return calls


def layouts() -> dict[str, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return {
        "plain": (torch.randn(6, 5), torch.randn(4, 5)),
        "leading axes": (torch.randn(2, 3, 5), torch.randn(4, 5)),
        "no axis": (torch.randn(5), torch.randn(4, 5)),
        "transposed": (torch.randn(5, 6).t(), torch.randn(5, 4).t()),
        "sliced": (torch.randn(6, 9)[:, 2:7], torch.randn(8, 9)[::2, 1:6]),
        "strided": (torch.randn(6, 10)[:, ::2], torch.randn(4, 15)[:, ::3]),
        "expanded": (torch.randn(6, 1).expand(6, 5), torch.randn(1, 5).expand(4, 5)),
        "unaligned": (torch.randn(31)[1:].view(6, 5), torch.randn(21)[1:].view(4, 5)),
        "one row": (torch.randn(1, 5), torch.randn(4, 5)),
        "one output": (torch.randn(6, 5), torch.randn(1, 5)),
    }


@pytest.mark.parametrize("name", layouts())
def test_it_is_the_product_and_its_gradients(onednn, name):
    x, W = (t.detach().requires_grad_() for t in layouts()[name])
    b = torch.randn(len(W), requires_grad=True)
    y = affine(x, W, b)
    assert onednn == [1]
    assert y.dtype == torch.float32
    exact = [t.detach().double().requires_grad_() for t in (x, W, b)]
    wanted = F.linear(*exact)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)
    g = torch.randn_like(y)
    found = torch.autograd.grad(y, [x, W, b], g)
    assert len(onednn) == 3, "the way back is oneDNN's too"
    for one, other in zip(found, torch.autograd.grad(wanted, exact, g.double()), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    if x.ndim == 2:
        with torch.no_grad():
            torch.testing.assert_close(times(x.t(), g), x.t() @ g)
            into = torch.full((x.shape[1], len(W)), torch.nan)
            assert times(x.t(), g, out=into) is into
            torch.testing.assert_close(into, x.t() @ g)


def test_without_a_bias_and_with_one_factor_learnt(onednn):
    x, W = torch.randn(6, 5), torch.randn(4, 5, requires_grad=True)
    (found,) = torch.autograd.grad(affine(x, W).sum(), [W])
    torch.testing.assert_close(found, x.sum(0).expand(4, 5))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch's own call
def test_second_derivatives_and_those_along_a_direction(onednn):
    x, W, b = torch.randn(6, 5, requires_grad=True), torch.randn(4, 5, requires_grad=True), torch.randn(4)
    (g,) = torch.autograd.grad(affine(x, W, b).square().sum(), [x], create_graph=True)
    found = torch.autograd.grad(g.square().sum(), [x, W])
    X, V = (t.detach().double().requires_grad_() for t in (x, W))
    (g,) = torch.autograd.grad(F.linear(X, V, b.double()).square().sum(), [X], create_graph=True)
    for one, other in zip(found, torch.autograd.grad(g.square().sum(), [X, V]), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    tangents = [torch.randn_like(t) for t in (x, W, b)]
    with torch.no_grad():
        wanted = F.linear(tangents[0], W) + F.linear(x, tangents[1]) + tangents[2]
    for enabled in (True, False):  # without gradients tangents pass all the same
        with torch.set_grad_enabled(enabled), forward_ad.dual_level():
            duals = [forward_ad.make_dual(t.detach(), d) for t, d in zip((x, W, b), tangents, strict=True)]
            _, along = forward_ad.unpack_dual(affine(*duals))
        torch.testing.assert_close(along, wanted)


def test_many_gradients_at_once(onednn):
    x, W = torch.randn(6, 5), torch.randn(4, 5, requires_grad=True)
    (found,) = torch.autograd.grad(affine(x, W), [W], torch.eye(24).view(24, 6, 4), is_grads_batched=True)
    torch.testing.assert_close(found, torch.autograd.functional.jacobian(lambda W: F.linear(x, W), W).flatten(0, 1))


def test_within_a_transform_of_something_else(onednn):
    x, W, b = torch.randn(6, 5), torch.randn(4, 5), torch.randn(3, 4)
    torch.testing.assert_close(vmap(lambda b: affine(x, W, b))(b), x @ W.t() + b[:, None])
    assert not onednn


def test_what_does_not_fit_is_refused_as_pytorch_does(onednn):
    with pytest.raises(RuntimeError, match="6x5 and 6x4"):
        affine(torch.randn(6, 5), torch.randn(4, 6), torch.randn(4))
    with pytest.raises(RuntimeError, match="6x5 and 4x5"):
        times(torch.randn(6, 5), torch.randn(4, 5))
    assert not onednn


def test_a_compiler_is_left_to_it():
    """Without a question that it would warn of: whatever processor this is."""
    x, W, b = torch.randn(600, 100), torch.randn(100, 100), torch.randn(100)
    torch.testing.assert_close(torch.compile(affine, backend="eager", fullgraph=True)(x, W, b), F.linear(x, W, b))


def test_operations_can_be_counted(onednn):
    x, W = torch.randn(6, 5), torch.randn(4, 5, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        affine(x, W).sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 6 * 5 * 4


def test_who_takes_a_product(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    x, W = torch.randn(4096, 64), torch.randn(64, 64)
    assert faster(x, W, 64)
    assert faster(x.view(2, 2048, 64), W, 64)
    assert not faster(x[:100], W, 64), "small"
    assert not faster(x.t(), x, 64), "a long sum for a small result"
    assert not faster(x.double(), W.double(), 64)
    assert not faster(x.to("meta"), W.to("meta"), 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not faster(x, W, 64)
    seen = []
    vmap(lambda W: seen.append(faster(x, W, 64)) or F.linear(x, W))(W.expand(2, 64, 64))
    assert seen == [False]
    assert not faster(x[:, :0], W[:, :0], 64)
    assert not faster(x, W.double(), 64)
    least, wide = products.LEAST, products.WIDE
    assert faster(torch.empty(wide // 64, least // wide), W, 64)  # both bounds just reached
    assert not faster(torch.empty(wide // 64, least // wide - 1), W, 64)
    assert not faster(torch.empty(wide // 64 - 1, 2 * least // wide), W, 64)
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    assert not faster(x, W, 64)
    assert products.products(products.LEAST - 1) == (torch.mm, F.linear)
    assert products.products(products.LEAST) == (times, affine)


@pytest.mark.parametrize(
    ("vendor", "capability", "mkl", "expected"),
    [
        ("AuthenticAMD", "AVX512", True, True),
        ("GenuineIntel", "AVX512", True, False),
        ("AuthenticAMD", "AVX2", True, False),
        ("AuthenticAMD", "AVX512", False, False),
    ],
)
def test_on_which_processors(monkeypatch, vendor, capability, mkl, expected):
    monkeypatch.setattr(products, "_processor", lambda: f"vendor_id : {vendor}")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    assert products.onednn_is_faster.__wrapped__() == expected


def test_a_network_of_pixels_is_the_same(onednn):
    torch.manual_seed(0)
    model = SIM(torch.nn.Identity(), 2, 3, hidden=8, fourier=RandomFourierFeatures(2, 16, 0.3))
    x, t = torch.rand(50, 2), torch.rand(50, 3)

    def gradients() -> list[Tensor]:
        return [*torch.autograd.grad(F.mse_loss(folded(model, x), t), list(model.parameters()))]

    ours = gradients()
    assert len(onednn) > 6
    products.onednn_is_faster = lambda: False  # monkeypatch puts it back
    for one, other in zip(ours, gradients(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lift", [True, False])
def test_a_gradient_that_is_written_out_is_the_same(onednn, lift):
    torch.manual_seed(0)
    psi = RandomFourierFeatures(6 if lift else 2, 16, 0.7)
    model = SIM(MLP(2, 7, 6, layers=2) if lift else torch.nn.Identity(), 6 if lift else 2, 3, hidden=8, fourier=psi)
    x, weight = torch.rand(50, 2), torch.randn(50, 3)
    into = {name: torch.full_like(p, torch.nan).detach() for name, p in model.named_parameters()}
    with torch.inference_mode():
        written = WrittenSIM(model, into)
        answers = written(x)
        written.backward(weight)
    assert len(onednn) > 8
    exact = model.double()
    wanted = exact(x.double())
    torch.testing.assert_close(answers.double(), wanted, rtol=1e-4, atol=1e-5)
    gradients = torch.autograd.grad((wanted * weight).sum(), [*exact.parameters()])
    for (name, found), g in zip(into.items(), gradients, strict=True):
        torch.testing.assert_close(found.double(), g, rtol=1e-3, atol=1e-4, msg=name)
