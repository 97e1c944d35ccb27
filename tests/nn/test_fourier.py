import math

import pytest
import torch

from koopsim import config
from koopsim.nn import RandomFourierFeatures, build_sim
from koopsim.nn.folded import fixed_features, folded
from koopsim.nn.fourier import NormalisedFourierFeatures


@pytest.mark.parametrize("bandwidth", [0.5, 3.0])
@pytest.mark.parametrize("kernel", ["gaussian", "laplace"])
def test_inner_products_are_the_kernel(kernel, bandwidth):
    torch.manual_seed(0)
    psi = RandomFourierFeatures(2, 200_000, bandwidth, kernel).double()
    x, y = torch.tensor([[0.1, -0.2]], dtype=torch.float64) * bandwidth, torch.tensor([[0.6, 0.3]]).double() * bandwidth
    difference = (x - y)[0]
    if kernel == "gaussian":
        expected = math.exp(-float(difference.square().sum()) / (2 * bandwidth**2))
    else:
        expected = math.exp(-float(difference.abs().sum()) / bandwidth)
    assert float((psi(x) * psi(y)).sum()) == pytest.approx(expected, abs=0.01)
    assert float(psi(x).square().sum()) == pytest.approx(1.0)


def test_frequencies_are_saved_and_not_learnt():
    psi = RandomFourierFeatures(3, 8)
    assert "frequencies" in psi.state_dict()
    assert not list(psi.parameters())


def test_phases_are_never_rounded_to_bf16():
    psi = RandomFourierFeatures(2, 16, bandwidth=0.01)
    x = torch.rand(5, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(psi(x), psi(x.clone()))
        inside = psi(x)
    torch.testing.assert_close(inside, psi(x))


@pytest.mark.parametrize("bad", [{"features": 3}, {"features": 0}, {"bandwidth": 0.0}, {"kernel": "cubic"}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(ValueError, match=r"must be|expected"):
        RandomFourierFeatures(**{"inputs": 2, "features": 4, **bad})


def test_normalised_features_do_not_feel_scale_and_place():
    torch.manual_seed(0)
    psi = NormalisedFourierFeatures(6, 20, bandwidth=0.7).double().train()
    x = torch.randn(200, 6, dtype=torch.float64)
    torch.testing.assert_close(psi(300 * x + 40), psi(x), rtol=1e-4, atol=1e-5)
    assert not list(psi.parameters())
    distances = torch.pdist(psi.scaled(x))
    assert float(distances.square().mean()) == pytest.approx(1, rel=0.02)  # their own unit


def test_normalised_features_remember_their_units():
    torch.manual_seed(0)
    psi = NormalisedFourierFeatures(3, 8).double().train()
    x = 5 * torch.randn(400, 7, 3, dtype=torch.float64) + 2
    for _ in range(100):
        psi(x)
    one = psi.eval()(x[:1, :1])
    torch.testing.assert_close(one, psi(x)[:1, :1])
    rows = x.reshape(-1, 3)
    expected = (x[:1, :1] - rows.mean(0)) / rows.std(0) / 6**0.5
    torch.testing.assert_close(psi.scaled(x[:1, :1]), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("lift", [config.MLPConfig(2, 8), config.IdentityConfig(2)])
def test_a_model_with_normalised_features_is_never_folded_away(lift):
    fourier = config.FourierConfig(12, 1.0, normalise=True)
    model = build_sim(config.SIMConfig(lift, lift_dim=4, fourier=fourier, hidden=5, outputs=3)).double().eval()
    x = torch.rand(30, 2, dtype=torch.float64)
    assert fixed_features(model, x) is None
    torch.testing.assert_close(folded(model, x), model(x))
    torch.testing.assert_close(model.fuse()(x), model(x), rtol=1e-10, atol=1e-12)
