"""BatchNorm by whole cache lines against PyTorch's own layer, which is its twin."""

import pytest
import torch
from torch.nn import functional as F

from koopsim.nn import lift, wide_norm
from koopsim.nn.wide_norm import batch_norm, pixels_a_line


def pictures(shape, dtype=torch.float64, seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=random, dtype=dtype) * 3 + 5
    C = shape[1]
    weight, bias = (torch.randn(C, generator=random, dtype=dtype) for _ in range(2))
    return x.contiguous(memory_format=torch.channels_last), weight, bias


def running(C, dtype=torch.float64):
    return torch.linspace(-1, 1, C, dtype=dtype), torch.linspace(0.5, 2, C, dtype=dtype)


def by_twin(x, seen, weight, bias, momentum, eps):
    return F.batch_norm(x, *seen, weight, bias, True, momentum, eps)


def everything(norm, x, weight, bias, g):
    """What goes out, what was seen, and the gradients."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    seen = running(x.shape[1], x.dtype)
    y = norm(leaves[0], seen, *leaves[1:], 0.3, 1e-3)
    return [y.detach(), *seen, *torch.autograd.grad((y * g).sum(), leaves)]


@pytest.mark.parametrize("shape", [(4, 38, 4, 4), (8, 3, 4, 2), (2, 1, 8, 8), (3, 12, 2, 4)])
def test_it_is_pytorchs(shape, monkeypatch):
    x, weight, bias = pictures(shape)
    assert pixels_a_line(x) > 1
    g = pictures(shape, seed=1)[0]
    wanted = everything(by_twin, x, weight, bias, g)
    monkeypatch.setattr(F, "batch_norm", lambda *a: pytest.fail("it is the twin itself"))
    for own, other in zip(everything(batch_norm, x, weight, bias, g), wanted, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-11, atol=1e-11)


def test_float32_is_as_close_to_the_truth_as_pytorchs():
    x, weight, bias = pictures((32, 38, 16, 16), torch.float32)
    g = pictures(x.shape, torch.float32, 1)[0]
    truth = everything(by_twin, *(t.double() for t in (x, weight, bias, g)))

    def errors(norm):
        pairs = zip(everything(norm, x, weight, bias, g), truth, strict=True)
        return [float((own - true).abs().max() / true.abs().max()) for own, true in pairs]

    for own, twin in zip(errors(batch_norm), errors(by_twin), strict=True):
        assert own < max(1.5 * twin, 1e-6)


def test_bfloat16_has_float32s_statistics_and_sums():
    x, weight, bias = pictures((32, 38, 16, 16), torch.float32)
    short, g = x.bfloat16(), (pictures(x.shape, torch.float32, 1)[0] - 5).bfloat16()
    assert pixels_a_line(short) == 16
    truth = everything(by_twin, *(t.double() for t in (short, weight, bias, g)))
    leaves = [short.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    seen = running(38, torch.float32)
    y = batch_norm(short, seen, weight, bias, 0.3, 1e-3)
    own = [y.detach(), *seen, *torch.autograd.grad(y, leaves, g)]
    assert [t.dtype for t in own] == [torch.bfloat16, *[torch.float32] * 2, torch.bfloat16, *[torch.float32] * 2]
    again = running(38, torch.float32)
    z = by_twin(short, again, weight, bias, 0.3, 1e-3)
    twin = [z.detach(), *again, *torch.autograd.grad(z, leaves, g)]
    errors = [[float((t.double() - true).norm() / true.norm()) for t, true in zip(found, truth, strict=True)]
              for found in (own, twin)]  # fmt: skip
    assert all(mine < max(1.6 * theirs, 1e-6) for mine, theirs in zip(*errors, strict=True)), errors
    one = torch.autograd.grad(batch_norm(short, seen, weight, bias, 0.3, 1e-3), short, g, create_graph=True)[0]
    torch.testing.assert_close(one, own[3], rtol=2e-2, atol=2e-2)  # by PyTorch's own formula


def test_first_and_second_derivatives_are_right():
    x, weight, bias = (t.requires_grad_() for t in pictures((2, 4, 2, 2)))

    def whole(x, weight, bias):
        return batch_norm(x, running(4), weight, bias, 0.1, 1e-3)

    assert pixels_a_line(x) == 2
    assert torch.autograd.gradcheck(whole, (x, weight, bias))
    assert torch.autograd.gradgradcheck(whole, (x, weight, bias))


def test_a_gradient_that_lies_otherwise_counts_alike_and_twice():
    x, weight, bias = pictures((4, 6, 4, 4))
    x.requires_grad_()
    y = batch_norm(x, running(6), weight, bias, 0.1, 1e-3)
    g = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(2))  # channels first
    found = [torch.autograd.grad(y, x, way, retain_graph=True)[0] for way in (g, g.contiguous(), g)]
    twin = torch.autograd.grad(by_twin(x, running(6), weight, bias, 0.1, 1e-3), x, g)[0]
    for own in found:
        torch.testing.assert_close(own, twin, rtol=1e-11, atol=1e-11)
    (one,) = torch.autograd.grad(y.sum(), x)  # an expanded gradient
    assert float(one.abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("shape", "pixels"),
    [((2, 38, 4, 4), 8), ((2, 16, 4, 4), 1), ((2, 24, 4, 4), 2), ((1, 38, 3, 5), 1), ((1, 2, 2, 4), 1),
     ((1, 38, 2, 4), 1)],
)
def test_how_many_pixels_fill_lines(shape, pixels):
    assert pixels_a_line(pictures(shape, torch.float32)[0]) == pixels


def test_pictures_that_lie_channels_first_or_are_short_are_left_to_pytorch():
    assert pixels_a_line(torch.zeros(2, 38, 4, 4)) == 1
    assert pixels_a_line(pictures((2, 38, 4, 4), torch.float16)[0]) == 1


@pytest.mark.parametrize("shape", [(2, 16, 4, 4), (1, 38, 3, 5)])
def test_what_fills_no_lines_is_left_to_pytorch(shape, monkeypatch):
    monkeypatch.setattr(wide_norm.WideNorm, "apply", lambda *a: pytest.fail("it is to be PyTorch's"))
    x, weight, bias = pictures(shape)
    g = torch.ones_like(x)
    pairs = zip(everything(batch_norm, x, weight, bias, g), everything(by_twin, x, weight, bias, g), strict=True)
    assert all(torch.equal(own, other) for own, other in pairs)


def test_a_vgg_learns_by_it_as_by_its_layers():
    torch.manual_seed(0)
    vgg = lift.VGG((3, 8, 8), 6, 5).double().train()
    x = pictures((4, 3, 8, 8))[0]
    found = []
    for stages in (vgg.unbiased_stages, vgg.stages):
        before = {name: t.clone() for name, t in vgg.state_dict().items()}
        y = stages(x.contiguous(memory_format=torch.channels_last))
        learnt = [p for name, p in vgg.stages.named_parameters()]
        found.append([y.detach(), *torch.autograd.grad(y.square().sum(), learnt), *(b.clone() for b in vgg.buffers())])
        vgg.load_state_dict(before)
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-9)
