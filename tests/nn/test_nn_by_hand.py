"""Small maps of the nn room against what they are by definition: patches, padded kernels, spirals, files."""

import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from koopsim.config import MLPConfig, SIMConfig
from koopsim.errors import KoopsimError
from koopsim.models import build
from koopsim.nn import SIM
from koopsim.nn.fourier import NormalisedFourierFeatures, RandomFourierFeatures, sunflower
from koopsim.nn.padding import images_of_depth, padded, padded_kernels, patch_product, patches
from koopsim.nn.saved import load_saved, read_saved, save_model
from koopsim.nn.started import StartedSIM
from koopsim.nn.trials import no_trials


@pytest.mark.parametrize(("C", "H", "W"), [(1, 4, 6), (3, 5, 2)])
def test_patches_are_the_nine_neighbours_and_their_product_the_convolution(C, H, W):
    x = torch.randn(2, C, H, W, dtype=torch.float64)
    found = patches(x, torch.float64)
    P = padded(9 * C)
    assert found.shape == (2, H, W, P)
    around = F.pad(x, (1, 1, 1, 1))
    for h in range(H):
        for w in range(W):
            own = around[:, :, h : h + 3, w : w + 3].permute(0, 2, 3, 1).reshape(2, -1)
            assert torch.equal(found[:, h, w, : 9 * C], own)
    assert not found[..., 9 * C :].any()
    kernel = torch.randn(5, C, 3, 3, dtype=torch.float64)
    flat = F.pad(kernel.permute(0, 2, 3, 1).reshape(5, -1), (0, P - 9 * C)).view(5, P, 1, 1)
    wanted = F.conv2d(x, kernel, padding=1).permute(0, 2, 3, 1)
    torch.testing.assert_close(patch_product(found, flat), wanted)


def test_kernels_and_pictures_are_padded_with_zeros():
    kernels = [torch.randn(5, 3, 3, 3), torch.randn(4, 5, 3, 3)]
    first, second = padded_kernels(kernels, torch.float32)
    assert second.shape[1] == first.shape[0] >= 5
    torch.testing.assert_close(second[:4, :5], kernels[1])
    assert not second[4:].any()
    assert not second[:, 5:].any()
    x = torch.randn(2, 3, 4, 6)
    deep = images_of_depth(x, 8, torch.float64)
    assert deep.shape == (2, 8, 4, 6)
    assert deep.dtype == torch.float64
    assert deep.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(deep[:, :3], x.double())
    assert not deep[:, 3:].any()


def test_a_sunflower_has_the_radii_of_a_gaussian_and_the_golden_angle():
    torch.manual_seed(0)
    w = sunflower(200).double()
    radius = w.norm(dim=1)
    middle = (torch.arange(1, 201, dtype=torch.float64) - 0.5) / 200
    torch.testing.assert_close(1 - torch.exp(-(radius**2) / 2), middle, rtol=0, atol=1e-5)  # Rayleigh's law
    angle = torch.atan2(w[:, 1], w[:, 0])
    turns = ((angle[1:] - angle[:-1]) / (2 * math.pi)) % 1
    assert turns.tolist() == pytest.approx([(3 - math.sqrt(5)) / 2] * 199, abs=1e-4)
    assert not torch.equal(sunflower(3), sunflower(3))  # turned at random


def test_features_are_sines_then_cosines_of_equal_weight():
    for kind in (RandomFourierFeatures, NormalisedFourierFeatures):
        psi, x = kind(3, 8, bandwidth=0.5).double().eval(), torch.randn(5, 3, dtype=torch.float64)
        scaled = x if kind is RandomFourierFeatures else psi.norm(x) / math.sqrt(6)
        phase = scaled @ psi.frequencies.T
        wanted = torch.cat([phase.sin(), phase.cos()], dim=1) / 2
        torch.testing.assert_close(psi(x), wanted)
        torch.testing.assert_close(psi(x.clone().requires_grad_()).detach(), wanted)
        torch.testing.assert_close(psi(x).square().sum(1), torch.ones(5, dtype=torch.float64))
        with pytest.raises(ValueError, match="psi was given 2 numbers where it takes 3"):
            psi(x[:, :2])
    for features, bandwidth, said in ((1, 1.0, "must be even"), (3, 1.0, "must be even"), (2, 0.0, "must be positive")):
        with pytest.raises(ValueError, match=said):
            RandomFourierFeatures(2, features, bandwidth)
    assert RandomFourierFeatures(2, 2).frequencies.shape == (1, 2)


def test_a_start_of_zero_weight_is_the_sim():
    sim = SIM(nn.Linear(2, 6), lift_dim=6, outputs=3, hidden=4)
    x = torch.randn(5, 2)
    for start in ("learnt", "again"):
        model = StartedSIM(sim, start)
        torch.testing.assert_close(model(x), sim(x))
        with torch.no_grad():
            model.entry.normal_()
        own = model.z0 if start == "learnt" else sim.state(x)
        wanted = sim.h(sim.nu(sim.limit(sim.mu(x) + own @ model.entry.T)))
        torch.testing.assert_close(model(x), wanted)
        z0 = torch.randn(5, 4)
        torch.testing.assert_close(model(x, z0), sim.h(sim.nu(sim.limit(sim.mu(x) + z0 @ model.entry.T))))
        with pytest.raises(ValueError, match="z0 has 3 numbers; a state of this model has 4"):
            model(x, z0[:, :3])
    with pytest.raises(ValueError, match="expected 'learnt' or 'again'"):
        StartedSIM(sim, "never")


CONFIG = SIMConfig(MLPConfig(2, 4, 1), 6, outputs=3, hidden=4)


def test_a_saved_model_is_what_it_was(tmp_path):
    model = build(CONFIG).double()
    file = save_model(tmp_path / "a.safetensors", model, CONFIG)
    again = load_saved(file)
    assert next(again.parameters()).dtype == torch.float64
    assert not again.training
    assert (again.config, again.takes) == (CONFIG, None)
    x = torch.randn(4, 2, dtype=torch.float64)
    torch.testing.assert_close(again(x), model.eval()(x))
    assert read_saved(file).name == "a"
    assert read_saved(save_model(tmp_path / "b.safetensors", model, CONFIG, name="mine")).name == "mine"


def test_what_is_no_saved_model_is_one_sentence(tmp_path):
    model = build(CONFIG)
    with pytest.raises(KoopsimError, match="put together by hand"):
        save_model(tmp_path / "a.safetensors", model, None)
    with pytest.raises(KoopsimError, match=r"The file is a\.pt; a saved model ends in \.safetensors"):
        save_model(tmp_path / "a.pt", model, CONFIG)
    other = SIMConfig(MLPConfig(2, 5, 1), 6, outputs=3, hidden=4)
    with pytest.raises(KoopsimError, match="not what its SIMConfig builds: the first tensor that differs is"):
        save_model(tmp_path / "a.safetensors", model, other)
    with pytest.raises(KoopsimError, match="There is no file"):
        read_saved(tmp_path / "none.safetensors")
    with pytest.raises(KoopsimError, match="Cannot write"):
        save_model(tmp_path / "no" / "folder" / "a.safetensors", model, CONFIG)
    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(KoopsimError):
        read_saved(tmp_path / "x.safetensors")


@pytest.mark.parametrize("before", [True, False])
def test_trials_are_off_inside_and_as_before_after(before):
    kept = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before
    try:
        with no_trials():
            assert not torch.backends.cudnn.benchmark
        assert torch.backends.cudnn.benchmark is before
        with no_trials(False):
            assert torch.backends.cudnn.benchmark is before
    finally:
        torch.backends.cudnn.benchmark = kept
