"""How maps are laid out for their kernels: with a readable twin in a kernel's place they give what the model gives."""

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from koopsim.nn import SIM, TCN, folded, stretches
from koopsim.nn.cross_entropy import fused_loss
from koopsim.nn.fuse import FusedTCN, FusedVGG
from koopsim.nn.taps import Taps
from koopsim.nn.vgg import VGG

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture
def stand_in(monkeypatch):
    """Put a function in a kernel's place."""
    return lambda where, function: monkeypatch.setattr(f"koopsim.nn.kernels.{where}", function)


def temporal_stack(x, R, r, W, b):
    return stretches.features(x[0], R[0], r[0], W[0], b[0]).unsqueeze(0), None, None


@pytest.mark.parametrize(("channels", "inputs"), [(4, 1), (3, 3), (5, 2)])
def test_a_tcn_is_handed_over_as_one_of_many(channels, inputs, stand_in):
    torch.manual_seed(0)
    tcn, x = TCN(3, 2, channels, 3, inputs), torch.randn(2, 9, inputs)
    asked = []

    def normed(layers, taps):
        asked.append((len(layers), taps))
        own = [layers[i] is p for i, p in enumerate(q for c in tcn.convs() for q in (c.direction, c.gain, c.bias))]
        assert all(own)
        return tcn.normed_weights(tcn.convs())

    stand_in("tcn.temporal_stack", temporal_stack)
    stand_in("weight_norm.normed_weights", normed)
    torch.testing.assert_close(tcn.stacked(x), tcn.blocks(x))
    assert asked == [(12, 3)]
    torch.testing.assert_close(FusedTCN(tcn)._stacked(x), tcn.blocks(x).detach(), rtol=1e-4, atol=1e-5)
    stand_in("tcn.temporal_stack", lambda x, R, r, W, b: (x * W.sum(),))
    torch.func.grad(lambda t: tcn.stacked(t).sum())(x)
    assert len(asked) == 1  # under a transform the weights are normed by their twin


@pytest.mark.parametrize("front", [False, True])
@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_a_tail_is_handed_over_as_one_of_many(front, shape, stand_in):
    torch.manual_seed(0)
    sim = SIM(nn.Identity(), 6, 3, hidden=4, rank=2)
    first = nn.Linear(7, 6) if front else None

    def tail(rows, weights):
        assert rows.ndim == 3
        assert len(rows) == 1
        V, U, *layers = (w[0] for w in weights)
        phi = rows[0]
        if front:
            phi = F.linear(phi, *layers[8:])
        z = F.linear(F.linear(phi, V), U)
        for i in (0, 2):
            z = F.linear(z, *layers[2 * (i // 2) : 2 * (i // 2) + 2]).relu()
        return F.linear(F.linear(z, *layers[4:6]), *layers[6:8]).unsqueeze(0)

    stand_in("tail.tail", tail)
    phi = torch.randn(*shape, 7 if front else 6)
    wanted = sim.h(sim.nu(sim.limit(first(phi) if front else phi)))
    found = sim.tail(phi, first)
    assert found.shape == (*shape, 3)
    torch.testing.assert_close(found, wanted)


def norm_relu_pool(y, gamma, beta, bias, eps, pool):
    """(B, H, W, P) -> the same normed, rectified and pooled; row 4 of the table the mean, 5 the variance to follow."""
    C = len(gamma)
    assert not y[..., C:].any()
    seen = y[..., :C].permute(0, 3, 1, 2)
    z = F.relu(F.batch_norm(seen, None, None, gamma, beta, True, 0.0, eps))
    z = F.max_pool2d(z, 2) if pool else z
    table = y.new_zeros(6, y.shape[3])
    table[4, :C], table[5, :C] = seen.mean((0, 2, 3)) + bias, seen.transpose(0, 1).flatten(1).var(1)
    return F.pad(z.permute(0, 2, 3, 1), (0, y.shape[3] - C)), table.detach()


@pytest.mark.parametrize("image", [(3, 8, 12), (1, 12, 8)])
def test_a_vgg_in_passes_is_its_stages(image, stand_in):
    stand_in("norm.norm_relu_pool", norm_relu_pool)
    torch.manual_seed(0)
    model = VGG(image, 5, 4)
    twin, x = copy.deepcopy(model), torch.randn(6, *image)
    wanted = twin.linear(twin.stages(x).flatten(1))
    found = model.fused_map(x, torch.float32)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
    grads = [torch.autograd.grad(y.square().sum(), m.linear.weight)[0] for y, m in ((found, model), (wanted, twin))]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("multiple", [1, 8])
def test_a_fused_vgg_in_passes_is_itself(multiple, stand_in):
    def bias_relu_pool(y, bias, pool):
        z = F.relu(y + bias.to(y.dtype)).permute(0, 3, 1, 2)
        return (F.max_pool2d(z, 2) if pool else z).permute(0, 2, 3, 1)

    stand_in("norm.bias_relu_pool", bias_relu_pool)
    torch.manual_seed(0)
    own, x = FusedVGG(VGG((3, 8, 12), 5, 4).eval(), multiple), torch.randn(2, 3, 8, 12)
    torch.testing.assert_close(own._in_passes(x), own._plainly(x), rtol=1e-4, atol=1e-5)
    own._has_kernels = lambda x: True
    torch.testing.assert_close(own(x.unsqueeze(0)), own._plainly(x).flatten(1).unsqueeze(0), rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert own._in_passes(x).dtype == torch.bfloat16


@pytest.mark.parametrize(("T", "C", "kernel", "dilation"), [(7, 2, 3, 2), (4, 3, 2, 1), (5, 1, 4, 3), (3, 2, 1, 5)])
def test_taps_are_shifted_copies(T, C, kernel, dilation):
    x = torch.randn(2, T, C, dtype=torch.float64, requires_grad=True)
    past = F.pad(x, (0, 0, (kernel - 1) * dilation, 0))
    wanted = torch.cat([past[:, k * dilation : k * dilation + T] for k in range(kernel)], dim=2)
    found, weights = Taps.apply(x, kernel, dilation), torch.randn_like(wanted)
    assert torch.equal(found, wanted)
    (a,), (b,) = (torch.autograd.grad((y * weights).sum(), x) for y in (found, wanted))
    torch.testing.assert_close(a, b)
    many = torch.randn(T, 3, 2, C, dtype=torch.float64)  # the stack's axis in the middle
    stacked = torch.func.vmap(lambda t: Taps.apply(t.transpose(0, 1), kernel, dilation), in_dims=1)(many)
    for i in range(3):
        assert torch.equal(stacked[i], Taps.apply(many[:, i].transpose(0, 1), kernel, dilation))


def test_many_rows_are_handed_over(stand_in, monkeypatch):
    stand_in("bias_relu.bias_relu", lambda y, b: F.relu(y + b.to(y.dtype)))
    stand_in("waves.waves", lambda phase, dtype: torch.cat([phase.sin(), phase.cos()], -1).to(dtype))
    monkeypatch.setattr(folded, "fuses", lambda x: True)
    x, W, b = torch.randn(256, 3), torch.randn(4, 3), torch.randn(4)
    torch.testing.assert_close(folded.relu_linear(x, W, b), F.linear(x, W, b).relu())
    assert folded.relu_linear(x, W, b, torch.bfloat16).dtype == torch.bfloat16
    torch.testing.assert_close(folded.waves(x, torch.float32), torch.cat([x.sin(), x.cos()], 1))


def test_a_loss_is_handed_over_as_one_of_many(stand_in):
    def losses(logits, targets, smoothing):
        assert (logits.shape, targets.shape) == ((1, 5, 3), (1, 5))
        return F.cross_entropy(logits[0], targets[0], label_smoothing=smoothing).reshape(1), logits

    stand_in("cross_entropy.losses", losses)
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    found = fused_loss(x, y, 0.2)
    assert found.shape == ()
    torch.testing.assert_close(found, F.cross_entropy(x, y, label_smoothing=0.2))
