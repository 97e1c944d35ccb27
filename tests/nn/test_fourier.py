import math

import pytest
import torch

from koopsim.nn import RandomFourierFeatures


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
