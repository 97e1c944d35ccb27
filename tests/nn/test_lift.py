import copy

import pytest
import torch
from torch import nn

from koopsim.nn import MLP, TCN, VGG
from koopsim.nn.lift import CausalConv
from koopsim.nn.linear import Linear


class ConvolutionTwin(nn.Module):
    """The causal convolution as a library would write it: weight norm, Conv1d, padding, chomp."""

    def __init__(self, conv: CausalConv, inputs: int):
        super().__init__()
        outputs = conv.direction.shape[0]
        plain = nn.Conv1d(
            inputs, outputs, conv.kernel, dilation=conv.dilation, padding=conv.dilation * (conv.kernel - 1)
        )
        self.conv = nn.utils.parametrizations.weight_norm(plain.double())
        with torch.no_grad():
            kernel = conv.direction.view(outputs, conv.kernel, inputs).transpose(1, 2)
            self.conv.parametrizations.weight.original0.copy_(conv.gain.view(-1, 1, 1))
            self.conv.parametrizations.weight.original1.copy_(kernel)
            self.conv.bias.copy_(conv.bias)

    def forward(self, x):
        return self.conv(x.mT)[..., : x.shape[1]].mT


@pytest.mark.parametrize(("inputs", "kernel", "dilation"), [(1, 8, 1), (10, 8, 4), (3, 2, 16)])
def test_causal_conv_is_a_weight_normed_conv1d(inputs, kernel, dilation):
    conv = CausalConv(inputs, 10, kernel, dilation).double()
    twin = ConvolutionTwin(conv, inputs)
    x = torch.randn(2, 30, inputs, dtype=torch.float64)
    torch.testing.assert_close(conv(x), twin(x))
    assert sum(p.numel() for p in conv.parameters()) == sum(p.numel() for p in twin.parameters())


def test_weight_norm_starts_at_the_default_scale():
    conv = CausalConv(10, 10, 8, 1)
    torch.testing.assert_close(conv.weight(), conv.direction)


def test_tcn_is_causal_and_sees_far_enough():
    tcn = TCN(4).double()
    x = torch.randint(0, 10, (2, 600)).double()
    later = x.clone()
    later[:, 400:] += 1
    torch.testing.assert_close(tcn(x)[:, :400], tcn(later)[:, :400])
    x.requires_grad_()
    (seen,) = torch.autograd.grad(tcn(x)[0, -1].sum(), x)
    assert seen[0, 599 - 520].abs() > 0  # the paper's sequences are 520 long


def test_residual_convolution_exists_only_where_channels_differ():
    tcn = TCN(4)
    kinds = [type(block.residual) for block in tcn.blocks]
    assert kinds == [Linear] + [nn.Identity] * 7
    assert [block.first.dilation for block in tcn.blocks] == [2**i for i in range(8)]


@pytest.mark.parametrize(
    ("lift", "shape", "features"),
    [(TCN(6, 2), (9,), (9, 6)), (VGG((3, 8, 8), 4, 6), (3, 8, 8), (6,)), (MLP(2, 5, 6), (2,), (6,))],
    ids=["tcn", "vgg", "mlp"],
)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_any_batch_shape(lift, shape, features, batch):
    lift = lift.eval()
    x = torch.rand(*batch, *shape)
    y = lift(x)
    assert y.shape == (*batch, *features)
    if batch == (2, 3):
        torch.testing.assert_close(y[1], lift(x[1]), rtol=1e-4, atol=1e-5)


def test_uint8_digits_are_the_numbers_they_name():
    tcn = TCN(4, levels=2)
    digits = torch.randint(0, 10, (2, 12), dtype=torch.uint8)
    torch.testing.assert_close(tcn(digits), tcn(digits.float()))


def test_a_gain_scales_the_matrices_an_mlp_starts_with_and_nothing_else():
    from koopsim.config import MLPConfig
    from koopsim.errors import KoopsimError
    from koopsim.kinds import lift_kind

    def start(gain: float) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        config = MLPConfig(2, 8, gain=gain)
        return lift_kind(config).build(config, 5).state_dict()

    plain, scaled = start(1.0), start(2.5)
    for name, tensor in plain.items():
        torch.testing.assert_close(scaled[name], tensor * (2.5 if name.endswith("weight") else 1.0))
    with pytest.raises((KoopsimError, ValueError), match="gain is 0"):
        MLPConfig(gain=0.0)


def test_without_biases_a_vgg_trains_the_same():
    torch.manual_seed(0)
    vgg = VGG((3, 8, 12), 5, 4).double().train()
    twin = copy.deepcopy(vgg)
    for _ in range(2):
        x = torch.randn(6, 3, 8, 12, dtype=torch.float64)
        weights = torch.randn(6, 4, dtype=torch.float64)
        fast, slow = vgg(x), twin.linear(twin.stages(x).flatten(1))
        torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
        grads = [torch.autograd.grad((y * weights).sum(), list(m.parameters())) for y, m in ((fast, vgg), (slow, twin))]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)
    for (name, a), b in zip(vgg.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, msg=name)
