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
from koopsim.nn.products import affine, faster, stacked, times
from koopsim.nn.written import WrittenSIM

there = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()
pytestmark = pytest.mark.skipif(not there, reason="this PyTorch has no oneDNN")


@pytest.fixture
def onednn(monkeypatch):
    """Every product of float32 is oneDNN's, and each is counted."""
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    for bound in ("LEAST", "EACH", "SHARED", "WIDE"):
        monkeypatch.setattr(products, bound, 0)
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


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch's own call
@pytest.mark.parametrize("gradients", [True, False])
def test_stacked_products(onednn, gradients):
    a, b = torch.randn(3, 4, 5), torch.randn(3, 5, 6)
    for one in (a, a.mT.contiguous().mT, torch.randn(3, 4, 9)[:, :, 2:7], a[:1].expand(3, -1, -1)):
        for other in (b, b.mT.contiguous().mT, torch.randn(3, 5, 9)[:, :, 1:7]):
            wanted = torch.bmm(one.double(), other.double())
            with torch.set_grad_enabled(gradients):
                torch.testing.assert_close(stacked(one, other).double(), wanted, rtol=1e-5, atol=1e-5)
                into = torch.full((3, 4, 6), torch.nan)
                assert stacked(one, other, into) is into
            torch.testing.assert_close(into.double(), wanted, rtol=1e-5, atol=1e-5)
    assert len(onednn) == 4 * 3 * 2 * 3
    a.requires_grad_()
    onednn.clear()
    (found,) = torch.autograd.grad(stacked(a, b).sum(), [a])
    torch.testing.assert_close(found, b.sum(2)[:, None].expand(3, 4, 5))
    (found,) = torch.autograd.grad(stacked(b.mT, a.mT).sum(), [a])
    torch.testing.assert_close(found, b.sum(2)[:, None].expand(3, 4, 5))
    with pytest.raises(RuntimeError, match=r"5.*6"):
        stacked(a.detach(), torch.randn(3, 6, 6))
    assert not onednn, "a gradient is PyTorch's own affair, and so is what does not fit"
    with torch.no_grad():
        stacked(a, b)
        assert len(onednn) == 3
        with forward_ad.dual_level():
            _, along = forward_ad.unpack_dual(stacked(forward_ad.make_dual(a, a), b))
            torch.testing.assert_close(along, torch.bmm(a, b))


def test_who_takes_stacked_products(onednn, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(products, "SHARED", 4 * 5 * 6 + 1)
    a, b = torch.randn(2, 4, 5), torch.randn(2, 5, 6)
    stacked(a, b)
    assert not onednn, "threads, and small"
    monkeypatch.setattr(products, "SHARED", 4 * 5 * 6)
    stacked(a, b)
    assert len(onednn) == 2
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(products, "SHARED", 1 << 30)
    monkeypatch.setattr(products, "EACH", 4 * 5 * 6)
    onednn.clear()
    stacked(a, b)
    assert len(onednn) == 2
    for one, other in ((a[:, :3], b), (a, b[:, :, :5]), (a.double(), b.double())):
        stacked(one, other)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert stacked(a, b).dtype == torch.bfloat16
    assert len(onednn) == 2
    assert stacked(a[:0], b[:0]).shape == (0, 4, 6)


def test_onednn_is_given_no_gaps(monkeypatch):
    given, own = [], torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(
        torch.ops.mkldnn, "_linear_pointwise", lambda x, W, *rest: given.append(W.stride()) or own(x, W, *rest)
    )
    x, W = torch.randn(3, 5), torch.randn(4, 9)
    for w in (W[:, 2:7], W[:, :5].contiguous(), W.mT[:5, :4].mT, torch.randn(5, 4).mT):
        torch.testing.assert_close(products._by_onednn(x, w, None), x @ w.mT)
    assert given == [(5, 1), (5, 1), (5, 1), (1, 4)]


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
    a, b = torch.randn(2, 200, 200), torch.randn(2, 200, 200)
    torch.testing.assert_close(torch.compile(stacked, backend="eager", fullgraph=True)(a, b), torch.bmm(a, b))


def test_an_export_is_for_every_batch():
    class Both(torch.nn.Module):
        def forward(self, x, a):
            return affine(x, torch.ones(100, 100)), stacked(a, a)

    batch = torch.export.Dim("batch", min=2)
    given = torch.randn(3, 100), torch.randn(3, 100, 100)
    program = torch.export.export(Both(), given, dynamic_shapes=({0: batch}, {0: batch}))
    for count in (2, 500):  # 500 rows would be oneDNN's
        x, a = torch.randn(count, 100), torch.randn(count, 100, 100)
        torch.testing.assert_close(program.module()(x, a), (F.linear(x, torch.ones(100, 100)), torch.bmm(a, a)))


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
