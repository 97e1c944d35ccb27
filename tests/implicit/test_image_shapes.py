"""Pictures that are not square, through every model of pictures; and the smallest sizes that are taken."""

import pytest
import torch

from koopsim.errors import KoopsimError
from koopsim.implicit.penalties import spectral_radius
from koopsim.implicit.transformer import UniversalTransformerCell
from koopsim.kinds import model_kind
from koopsim.models import build
from koopsim.presets import PRESETS

DIGITS = [name for name in PRESETS if name.startswith("digits/")]


@pytest.mark.filterwarnings("ignore::koopsim.implicit.info.UnconvergedWarning")
@pytest.mark.parametrize("name", DIGITS)
@pytest.mark.parametrize("shape", [(1, 8, 16), (3, 16, 8)])
def test_a_picture_need_not_be_square(name, shape):
    config = PRESETS[name].run.model
    model = build(model_kind(config).for_images(config, shape, 7))
    x = torch.randn(2, *shape)
    y = model(x)
    assert y.shape == (2, 7)
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_the_smallest_transformer_and_none_below():
    UniversalTransformerCell(heads=1, head_dim=1, model_dim=2, inner_dim=1)
    for less in ({"heads": 0}, {"head_dim": 0}, {"model_dim": 0}, {"inner_dim": 0}, {"model_dim": 3}):
        with pytest.raises(ValueError, match="positive sizes and an even model_dim"):
            UniversalTransformerCell(**{"heads": 1, "head_dim": 1, "model_dim": 2, "inner_dim": 1} | less)


def test_the_spectral_radius_of_a_linear_map_is_its_own():
    W = torch.diag(torch.tensor([0.9, -0.4, 0.1], dtype=torch.float64))
    z = torch.randn(2, 3, dtype=torch.float64)
    torch.testing.assert_close(spectral_radius(lambda z: z @ W, z), torch.full((2,), 0.9, dtype=torch.float64))
    assert spectral_radius(lambda z: z @ W, z, steps=2).shape == (2,)
    with pytest.raises(KoopsimError, match="steps=1: expected at least 2"):
        spectral_radius(lambda z: z @ W, z, steps=1)
