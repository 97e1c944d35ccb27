"""The folded product against the model itself: the same outputs and the same gradients, in float64."""

import pytest
import torch

from koopsim import build
from koopsim.config import FourierConfig, FourierNetworkConfig, IdentityConfig, MLPConfig, SIMConfig
from koopsim.nn.folded import fixed_features, folded, rows_linear
from koopsim.nn.linear import sliced_linear

MODELS = {
    "single": SIMConfig(MLPConfig(2, 12), lift_dim=10, hidden=9, outputs=3),
    "two": SIMConfig(MLPConfig(2, 12), lift_dim=10, fourier=FourierConfig(14, 0.3), hidden=9, outputs=3),
    "rff": SIMConfig(IdentityConfig(2), lift_dim=2, fourier=FourierConfig(16, 0.1), hidden=9, outputs=4),
    "rff, exact projector": SIMConfig(
        IdentityConfig(2), lift_dim=2, fourier=FourierConfig(16, 0.1), hidden=9, outputs=1, projector=True
    ),
    "rff, identity": SIMConfig(
        IdentityConfig(2), lift_dim=2, fourier=FourierConfig(16, 0.1), rank=16, hidden=9, outputs=3, projector=True
    ),
    "tancik": FourierNetworkConfig(features=16, sigma=2.0, width=11),
}


def model_and_points(name):
    torch.manual_seed(1)
    return build(MODELS[name]).double(), torch.rand(40, 2, dtype=torch.float64)


@pytest.mark.parametrize("name", MODELS)
def test_folding_changes_neither_the_output_nor_the_gradient(name):
    model, x = model_and_points(name)
    weight = torch.randn(40, model(x).shape[-1], dtype=torch.float64)
    gradients = [torch.autograd.grad((y * weight).sum(), model.parameters()) for y in (model(x), folded(model, x))]
    torch.testing.assert_close(folded(model, x), model(x), rtol=1e-12, atol=1e-13)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_features_are_fixed_exactly_where_nothing_learnt_comes_first(name):
    model, x = model_and_points(name)
    phi = fixed_features(model, x)
    assert (phi is not None) == (name.startswith("rff") or name == "tancik")
    if phi is not None:
        torch.testing.assert_close(folded(model, phi, given=True), model(x), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_products_are_near(name):
    model, x = model_and_points(name)
    model, x = model.float(), x.float()
    y = folded(model, x, dtype=torch.bfloat16)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, model(x), rtol=0.05, atol=0.02)
    assert not torch.equal(y, model(x))


def test_coordinates_are_never_rounded_to_bfloat16():
    """Two pixels of a 512-pixel row that bfloat16 cannot tell apart give different colours still."""
    torch.manual_seed(0)
    model = build(SIMConfig(MLPConfig(2, 12), lift_dim=10, fourier=FourierConfig(14, 1e-4), hidden=9, outputs=3))
    x = torch.tensor([[400 / 512, 0.5], [401 / 512, 0.5]])
    assert torch.equal(x[0].bfloat16(), x[1].bfloat16())
    lifted = [folded(model, x[i : i + 1], dtype=torch.bfloat16) for i in (0, 1)]
    assert not torch.equal(*lifted)


def test_a_point_model_that_is_no_picture_network_is_called_as_it_is():
    model = torch.nn.Linear(2, 3)
    x = torch.rand(5, 2)
    assert torch.equal(folded(model, x), model(x))
    assert fixed_features(model, x) is None


def test_sliced_rows_are_the_plain_product():
    x, W, b = (torch.randn(*s, dtype=torch.float64) for s in ((512, 6), (5, 6), (5,)))
    torch.testing.assert_close(sliced_linear(x, W) + b, rows_linear(x, W, b))


def test_sliced_rows_stack():
    """As a population calls them: under vmap, with a weight for each member."""
    x, W = (torch.randn(*s, dtype=torch.float64) for s in ((3, 512, 6), (3, 5, 6)))
    torch.testing.assert_close(torch.vmap(sliced_linear)(x, W), x @ W.mT)
