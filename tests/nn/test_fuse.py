"""The fused map against the model: the same outputs, and nothing left that could have been done beforehand."""

import copy

import pytest
import torch
from torch import nn

import koopsim
from koopsim.config import FourierConfig, IdentityConfig, MLPConfig, SIMConfig, TCNConfig, VGGConfig
from koopsim.export import example
from koopsim.nn import SIM, LimitOperator, RandomFourierFeatures, build_sim
from koopsim.nn.fuse import CausalConv1d, FusedVGG, fuse
from koopsim.nn.lift import CausalConv
from koopsim.presets import PRESETS

SIMS = [name for name, preset in PRESETS.items() if isinstance(preset.model, SIMConfig)]


def stirred(model: nn.Module) -> nn.Module:
    """The model with running statistics and normalisations that are not those of an untrained one."""
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        for tensor, low, high in (
            (norm.running_mean, -1, 1), (norm.running_var, 0.3, 3), (norm.weight, 0.5, 2), (norm.bias, -1, 1),
        ):  # fmt: skip
            nn.init.uniform_(tensor, low, high)
    for conv in (m for m in model.modules() if isinstance(m, CausalConv)):
        nn.init.uniform_(conv.gain, 0.5, 1.5)
    return model.eval()


def assert_same(model: nn.Module, fused: nn.Module, x: torch.Tensor, size: float = 1e-5) -> None:
    with torch.no_grad():
        y, z = model(x), fused(x)
    assert z.shape == y.shape
    assert float((z - y).abs().max()) <= size * max(1.0, float(y.abs().max()))


@pytest.mark.parametrize("name", SIMS)
def test_every_preset_gives_the_same_outputs(name):
    torch.manual_seed(0)
    model = stirred(koopsim.build(name))
    assert_same(model, model.fuse(), example(PRESETS[name].model, batch=4)[0])


@pytest.mark.parametrize("name", ["mnist/sim-single", "mnist/sim-two", "copy/sim-single", "copy/sim-two"])
def test_trained_weights_give_the_same_outputs(name):
    model = koopsim.load(name)
    assert_same(model, model.fuse(), example(PRESETS[name].model, batch=4)[0])


SMALL = {
    "single": SIMConfig(MLPConfig(2, 8), lift_dim=6, hidden=5, outputs=3),
    "two": SIMConfig(MLPConfig(2, 8), lift_dim=6, fourier=FourierConfig(10, 0.05), hidden=5, outputs=3),
    "rff": SIMConfig(IdentityConfig(2), fourier=FourierConfig(12, 0.5), hidden=5, outputs=3),
    "vgg": SIMConfig(VGGConfig(5, (3, 9, 11)), lift_dim=6, hidden=5, outputs=4),
    "vgg, two": SIMConfig(VGGConfig(5, (1, 8, 8)), lift_dim=6, fourier=FourierConfig(8, 2.0), hidden=5, outputs=4),
    "tcn": SIMConfig(TCNConfig(levels=3, channels=4, kernel=3), lift_dim=6, hidden=5, outputs=4),
    "tcn, channels": SIMConfig(TCNConfig(2, 4, 3, input_channels=2), lift_dim=6, hidden=5, outputs=4),
    "tcn, no residual layer": SIMConfig(TCNConfig(2, 2, 3, input_channels=2), lift_dim=6, hidden=5, outputs=4),
    "tcn, wide input": SIMConfig(TCNConfig(2, 2, 3, input_channels=5), lift_dim=6, hidden=5, outputs=4),
}


@pytest.mark.parametrize("limit", ["free", "projector", "identity"])
@pytest.mark.parametrize("name", SMALL)
def test_the_map_is_the_same_in_float64(name, limit):
    from dataclasses import replace

    torch.manual_seed(1)
    config = replace(SMALL[name], projector=limit != "free")
    config = replace(config, rank=config.lifted) if limit == "identity" else config
    model = stirred(build_sim(config)).double()
    assert_same(model, model.fuse(), example(config, batch=4, length=11)[0].double(), size=1e-12)


@pytest.mark.parametrize("name", ["vgg", "tcn"])
def test_more_batch_axes_and_bytes_are_taken_as_the_model_takes_them(name):
    model = stirred(build_sim(SMALL[name]))
    x = example(SMALL[name], batch=6, length=11)[0].abs().mul(3).to(torch.uint8)
    assert_same(model, model.fuse(), x.unflatten(0, (2, 3)))


def test_a_fused_vgg_is_convolutions_relus_and_poolings():
    fused = stirred(koopsim.build("digits/sim-single")).fuse()
    kinds = [type(layer) for layer in fused.modules() if not list(layer.children())]
    stage = [nn.Conv2d, nn.ReLU, nn.Conv2d, nn.MaxPool2d, nn.ReLU]  # fewer numbers to be rectified
    assert kinds == [*stage, *stage, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


def test_the_limit_and_the_weight_norm_are_gone():
    fused = koopsim.build("copy/sim-single").fuse()
    assert not any(isinstance(m, LimitOperator | CausalConv) for m in fused.modules())
    assert sum(isinstance(m, CausalConv1d) for m in fused.modules()) == 16
    matrices = [tuple(m.weight.shape) for m in fused.modules() if isinstance(m, nn.Linear)]
    assert matrices == [(10, 1), (32, 10), (32, 32), (10, 32)]  # residual; from mu's last ReLU to nu's first


def test_the_fused_model_is_a_copy_in_eval_mode():
    model = stirred(build_sim(SMALL["vgg"])).train()
    before, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    fused = model.fuse()
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not fused.training
    assert not any(p.requires_grad for p in fused.parameters())
    x = torch.randn(3, 3, 9, 11)
    y = fused(x)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert torch.equal(fused(x), y)
    model.load_state_dict(before)
    assert model.training
    assert_same(model.eval(), fused, x)


@pytest.mark.parametrize("multiple", [4, 8])
@pytest.mark.parametrize("name", ["vgg", "vgg, two"])
def test_padded_channels_change_nothing(name, multiple):
    model = stirred(build_sim(SMALL[name])).double()
    fused = fuse(model, channel_multiple=multiple)
    assert isinstance(fused[0], FusedVGG)
    assert fused[0].stages[0].out_channels == 8
    assert_same(model, fused, example(SMALL[name], batch=4)[0].double(), size=1e-12)


def test_any_lift_and_any_psi_are_kept_as_they_are():
    class Doubled(RandomFourierFeatures):
        def forward(self, x):
            return 2 * super().forward(x)

    model = SIM(nn.Sequential(nn.Linear(3, 8), nn.Tanh()), 8, 2, fourier=Doubled(8, 20)).eval()
    assert_same(model, model.fuse(), torch.randn(5, 3))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["copy/sim-single", "copy/sim-two", "cifar10/sim-single", "cifar10/sim-two"])
def test_every_kernel_of_cuda_gives_the_same_outputs(name, monkeypatch):
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = koopsim.load(name, "cuda")
    x = example(PRESETS[name].model, batch=64, length=520)[0].cuda()
    assert_same(model, model.fuse(), x)
    assert_same(model, fuse(model, channel_multiple=8), x)


PASSES = """
import torch
from koopsim import config
from koopsim.nn.fuse import FusedVGG, fuse
from koopsim.nn.sim import build_sim

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.allow_tf32 = False
torch.manual_seed(0)
model = build_sim(config.SIMConfig(config.VGGConfig(5, (3, 8, 12)), lift_dim=6, hidden=7, outputs=4)).to(device).eval()
for p in model.parameters():
    p.data.add_(0.3 * torch.randn_like(p))
fused, x = fuse(model, channel_multiple=8), torch.randn(3, 3, 8, 12, device=device)
FusedVGG._has_kernels = lambda self, x: True
with torch.no_grad():
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-4)
"""


def test_bias_relu_and_pooling_in_one_pass(in_triton):
    in_triton(PASSES)
