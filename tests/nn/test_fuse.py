"""The fused map against the model: the same outputs, and nothing left that could have been done beforehand."""

import copy

import pytest
import torch
from torch import nn

import koopsim
from koopsim.config import FourierConfig, IdentityConfig, MLPConfig, SIMConfig, TCNConfig, VGGConfig
from koopsim.errors import KoopsimError
from koopsim.export import example, export
from koopsim.nn import SIM, LimitOperator, RandomFourierFeatures, build_sim
from koopsim.nn.fusable import as_built, fusable
from koopsim.nn.fuse import CausalConv1d, FusedTCN, FusedVGG, fuse
from koopsim.nn.lift import CausalConv
from koopsim.nn.readout import Output
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


def test_a_lift_of_the_house_in_which_something_was_replaced_is_kept_as_it_is():
    model = stirred(build_sim(SMALL["vgg"]))
    model.mu.stages[2] = nn.Tanh()
    assert not as_built(model.mu)
    assert_same(model, model.fuse(), torch.randn(3, 3, 9, 11))


class Tempered(SIM):
    def forward(self, x):
        return super().forward(x).softmax(-1)


class Bounded(Output):
    def forward(self, z):
        return super().forward(z).tanh()


class Twice(LimitOperator):
    def forward(self, phi):
        return super().forward(super().forward(phi))


def hooked(model: SIM) -> SIM:
    model.h.register_forward_hook(lambda module, given, y: y + 1)
    return model


def hooked_before(model: SIM) -> SIM:
    model.nu[2].register_forward_pre_hook(lambda module, given: (2 * given[0],))
    return model


def shadowed(model: SIM) -> SIM:
    model.nu.forward = lambda phi: torch.tanh(type(model.nu).forward(model.nu, phi))
    return model


def replaced(name: str, part: nn.Module):
    def change(model: SIM) -> SIM:
        setattr(model, name, part)
        return model

    return change


def other_activation(model: SIM) -> SIM:
    model.nu[1] = nn.Tanh()
    return model


def longer(model: SIM) -> SIM:
    model.nu.append(nn.ReLU())
    return model


OTHERS = {  # models whose map is not the one that their modules say, and why
    "a subclass": (lambda model: Tempered(model.mu, 6, 3, 5), "it is Tempered"),
    "a hook": (hooked, "forward hook"),
    "a hook before": (hooked_before, "forward hook"),
    "a forward of its own": (shadowed, "forward hook"),
    "another nu": (replaced("nu", nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5))), "its nu is not"),
    "another activation": (other_activation, "its nu is not"),
    "a longer nu": (longer, "its nu is not"),
    "another h": (replaced("h", Bounded(5, 3)), "its h is not"),
    "another limit": (replaced("limit", Twice(6)), "its limit is not"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_more_than_its_modules_is_not_fused_and_deployed_and_exported_as_it_is(other, tmp_path):
    torch.manual_seed(0)
    change, why = OTHERS[other]
    model = change(build_sim(SMALL["single"])).eval()
    assert not fusable(model)
    with pytest.raises(KoopsimError, match=why):
        model.fuse()
    x = torch.randn(5, 2)
    assert_same(model, koopsim.deploy(model, [(4, 2)]), x)
    file = export(model, x, {0: "batch"}, tmp_path / "model.pt2", "pt2")
    assert_same(model, torch.export.load(file).module(), x)


def test_every_preset_is_fusable_and_a_solver_is_not():
    assert all(fusable(koopsim.build(name)) for name in SIMS)
    assert not fusable(koopsim.build("copy/deq"))


LONG = [(1, 1), (3, 40), (2, 100), (1, 520), (4, 37)]


@pytest.mark.parametrize("name", ["tcn", "tcn, channels", "tcn, no residual layer"])
@pytest.mark.parametrize(("batch", "length"), LONG)
def test_bands_are_the_convolutions(name, batch, length):
    fused = stirred(build_sim(SMALL[name])).double().fuse()[0]
    x = torch.randn(batch, length, fused.input_channels, dtype=torch.float64, requires_grad=True)
    slow, fast = fused._convolved(x), fused._stretched(x)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    (a,), (b,) = (torch.autograd.grad(y.square().sum(), x) for y in (slow, fast))
    torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-10)


def test_bands_are_made_once_for_a_length_and_anew_for_other_weights(monkeypatch):
    fused = stirred(build_sim(SMALL["tcn"])).fuse()[0]
    monkeypatch.setattr(FusedTCN, "_convolved", None)
    x = torch.randn(2, 30)
    with torch.inference_mode():
        fused(x)
    first = fused.bands
    x.requires_grad_()
    fused(x).sum().backward()  # what inference made is not of inference
    assert fused.bands is first
    fused(torch.randn(2, 31))
    assert fused.bands is not first
    fused.double()
    assert fused(x).dtype == torch.float64


@pytest.mark.parametrize("name", ["tcn", "tcn, wide input"])
def test_weights_that_are_loaded_are_answered_by(name):
    torch.manual_seed(0)
    one, other = (stirred(build_sim(SMALL[name])).fuse() for _ in range(2))
    x = torch.randn(2, 30, *([one[0].input_channels] if one[0].input_channels > 1 else []))
    assert not torch.equal(one(x), other(x))  # and bands are made
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(other(x), one(x), rtol=0, atol=0)
    torch.testing.assert_close(list(other[0].buffers()), list(one[0].buffers()), rtol=0, atol=0)  # the kernels' own


def test_bands_are_left_alone_where_something_else_looks_on(monkeypatch):
    fused = stirred(build_sim(SMALL["tcn"])).fuse()[0]
    monkeypatch.setattr(FusedTCN, "_stretched", None)
    x = torch.randn(2, 30)
    torch.func.vmap(fused)(x.unsqueeze(1))
    torch.export.export(fused, (x,))
    with torch.autocast("cpu", torch.bfloat16):
        fused(x)
    assert fused(x[:0]).shape == (0, 30, 4)
    stirred(build_sim(SMALL["tcn, wide input"])).fuse()(torch.randn(2, 9, 5))


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
