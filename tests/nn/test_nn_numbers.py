"""Answers and gradients of every model and lift to fixed inputs, and of their fast forms: see kept_numbers.py."""

import pytest
import torch
from kept_numbers import same
from torch import nn

from koopsim.models import build
from koopsim.nn import SIM
from koopsim.nn.fourier import NormalisedFourierFeatures, RandomFourierFeatures, sunflower
from koopsim.nn.fuse import fuse
from koopsim.nn.lift import MLP, TCN, VGG
from koopsim.nn.limit import LimitOperator
from koopsim.nn.tancik import FourierNetwork
from koopsim.presets import PRESETS


def answered(module, x):
    """(answer, the gradients' sums) in float64."""
    module = module.double()
    y = module(x.double() if x.is_floating_point() else x)
    y = y[0] if isinstance(y, tuple) else y
    weights = [p for p in module.parameters() if p.requires_grad]
    grads = torch.autograd.grad(y.square().sum(), weights, allow_unused=True) if weights else []
    return [y, [None if g is None else g for g in grads]]


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


MODULES = {
    "mlp": (lambda: MLP(3, 8, 4, layers=3, gain=1.5), (5, 3)),
    "vgg": (lambda: VGG((3, 8, 8), 4, 6), (4, 3, 8, 8)),
    "tcn": (lambda: TCN(5, 3, 6, 4, 2), (3, 20, 2)),
    "limit": (lambda: LimitOperator(10, 4), (6, 10)),
    "projector": (lambda: LimitOperator(10, 4, projector=True), (6, 10)),
    "fourier": (lambda: RandomFourierFeatures(3, 8, 2.0), (5, 3)),
    "normalised": (lambda: NormalisedFourierFeatures(3, 8, 2.0), (5, 3)),
    "cauchy": (lambda: NormalisedFourierFeatures(3, 8, 2.0, kernel="laplace"), (5, 3)),
    "tancik": (lambda: FourierNetwork(2, 8, 3.0, 6, 3), (5, 2)),
    "sim": (lambda: SIM(TCN(8, 2, 4, 3), lift_dim=8, outputs=10, hidden=6, rank=4), (3, 12)),
}


@pytest.mark.parametrize("name", MODULES)
def test_numbers_of_modules(name):
    torch.manual_seed(0)
    made, shape = MODULES[name]
    try:
        module = made()
    except Exception as error:
        if name != "cauchy":
            raise
        same("module/cauchy", str(error)[:60])
        return
    same(f"module/{name}", answered(module, drawn(*shape)), rel=1e-5)


@pytest.mark.parametrize("lift", ["vgg", "tcn"])
@pytest.mark.parametrize("multiple", [1, 8])
def test_numbers_of_what_is_fused(lift, multiple):
    torch.manual_seed(0)
    sim = SIM(VGG((3, 8, 8), 4, 6) if lift == "vgg" else TCN(6, 3, 6, 4), lift_dim=6, outputs=4, hidden=5).eval()
    fused = fuse(sim, multiple)
    assert isinstance(fused, nn.Sequential)
    x = drawn(4, 3, 8, 8) if lift == "vgg" else drawn(3, 20)
    with torch.no_grad():
        same(
            f"fused/{lift}, {multiple}", [fused(x), [p.shape.numel() for p in fused.parameters()]], rel=1e-4, near=1e-6
        )


def test_numbers_of_sunflowers():
    torch.manual_seed(0)  # they are turned at random
    same("sunflower", [sunflower(1), sunflower(17)])


def test_numbers_of_parameters():
    """How many each preset has, counted: the published numbers are beside them in the ledger."""
    found = {n: sum(p.numel() for p in build(PRESETS[n].run.model).parameters()) for n in PRESETS}
    same("parameters", {n: found[n] for n in sorted(found)})
