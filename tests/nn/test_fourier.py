import math

import pytest
import torch

from koopsim import config
from koopsim.errors import KoopsimError
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


@pytest.mark.parametrize("features", [64, 512])
def test_evenly_spread_frequencies_are_nearer_to_the_kernel_than_random_ones(features):
    """The largest error of psi(x) . psi(0) over the plane, against the mean of such errors of random draws."""
    x = torch.cartesian_prod(*[torch.linspace(-4, 4, 41, dtype=torch.float64)] * 2)
    kernel = (-x.square().sum(1) / 2).exp()

    def error(spread: str, seed: int) -> float:
        torch.manual_seed(seed)
        psi = RandomFourierFeatures(2, features, 1.0, spread=spread).double()
        assert psi.frequencies.shape == (features // 2, 2)
        return float((psi(x) @ psi(torch.zeros(2, dtype=torch.float64)) - kernel).abs().max())

    even, random = ([error(spread, seed) for seed in range(5)] for spread in ("even", "random"))
    assert max(even) < 0.5 * sum(random) / 5
    torch.manual_seed(0)
    first = RandomFourierFeatures(2, features, 2.0, spread="even").frequencies
    torch.manual_seed(1)
    second = RandomFourierFeatures(2, features, 2.0, spread="even").frequencies
    assert not torch.allclose(first, second)  # turned
    torch.testing.assert_close(first.norm(dim=1), second.norm(dim=1))
    assert float(first.square().sum(1).mean()) == pytest.approx(2 / 2.0**2, rel=0.02)  # the variance of two axes


def test_even_frequencies_are_for_the_plane():
    with pytest.raises(ValueError, match="plane"):
        RandomFourierFeatures(3, 8, spread="even")
    for other in ({"kernel": "laplace"}, {"normalise": True}):
        with pytest.raises(KoopsimError, match="gaussian"):
            config.FourierConfig(8, spread="even", **other)
    with pytest.raises(KoopsimError, match="plane"):
        config.SIMConfig(config.MLPConfig(2, 8), lift_dim=5, fourier=config.FourierConfig(8, spread="even"))
    model = build_sim(
        config.SIMConfig(
            config.IdentityConfig(2), lift_dim=2, fourier=config.FourierConfig(8, spread="even"), outputs=3
        )
    )
    assert model(torch.rand(4, 2)).shape == (4, 3)
    with torch.device("meta"):  # where parameters are only counted
        assert RandomFourierFeatures(2, 8, spread="even").frequencies.is_meta
