"""Small pieces of the implicit room by hand: which inverse, Broyden's lengths, bounds of sizes and steps."""

import math

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

from koopsim.errors import KoopsimError
from koopsim.implicit import inverse
from koopsim.implicit.penalties import spectral_radius
from koopsim.implicit.solvers import NEAREST, _lengths, solve_spd
from koopsim.implicit.transformer import UniversalTransformerCell


@pytest.mark.parametrize("n", [1, 2, inverse.LEAF, inverse.LEAF + 1, 2 * inverse.LEAF + 3])
def test_inverses_by_blocks_and_by_lu(n):
    torch.manual_seed(n)
    M = torch.randn(3, n, n, dtype=torch.complex128) + 4 * n * torch.eye(n)
    wanted = torch.linalg.inv(M)
    torch.testing.assert_close(inverse.blocks(M), wanted)
    torch.testing.assert_close(inverse.lu(M), wanted)


def test_which_inverse_fits(monkeypatch):
    W = torch.zeros(2, 2, 3, 3)
    assert inverse._fitting(W) == "lu"
    monkeypatch.setattr(inverse, "capturing", lambda: True)
    assert inverse._fitting(W) == "blocks"
    monkeypatch.setattr(inverse, "find_spec", lambda name: name)
    with FakeTensorMode():
        for size, dtype, wanted in (
            (inverse.LARGEST, torch.float32, "kernel"), (inverse.LARGEST + 1, torch.float32, "blocks"),
            (3, torch.float64, "blocks"),
        ):  # fmt: skip
            assert inverse._fitting(torch.empty(2, 2, size, size, dtype=dtype, device="cuda")) == wanted
        monkeypatch.setattr(inverse, "find_spec", lambda name: None)
        assert inverse._fitting(torch.empty(2, 2, 3, 3, device="cuda")) == "blocks"


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_a_step_of_broydens_keeps_away_from_a_singular_map(kind):
    ss, t = [4.0, 2.0, 1.0, 5.0, 0.0], [0.5, 1 - NEAREST / 2, 1 + NEAREST / 2, 3.0, 0.0]
    with np.errstate(all="ignore"):
        found = _lengths(kind(ss), kind([s * r for s, r in zip(ss, t, strict=True)]), 1e-30)
    for i, (s, r) in enumerate(zip(ss, t, strict=True)):
        theta = 1.0 if abs(1 - r) >= NEAREST else (1 - math.copysign(NEAREST, 1 - r)) / r
        assert float(found[0][i]) == pytest.approx(1 / (1 - theta * r), rel=1e-5)
        assert float(found[1][i]) == pytest.approx(theta / s if s else 0.0, rel=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_positive_systems_are_solved(n):
    torch.manual_seed(n)
    A = torch.randn(3, n, n, dtype=torch.float64)
    A = A @ A.mT + torch.eye(n)
    b = torch.randn(3, n, dtype=torch.float64)
    wanted = torch.linalg.solve(A, b)
    torch.testing.assert_close(solve_spd(A, b), wanted)
    np.testing.assert_allclose(solve_spd(A.numpy(), b.numpy()), wanted.numpy())


def test_a_radius_needs_two_steps():
    def half(z):
        return 0.5 * z

    torch.testing.assert_close(spectral_radius(half, torch.ones(2, 3), steps=2), torch.full((2,), 0.5))
    torch.testing.assert_close(spectral_radius(half, torch.ones(2), steps=5), torch.full((2,), 0.5))
    with pytest.raises(KoopsimError, match="steps=1: expected at least 2 of the power iteration"):
        spectral_radius(half, torch.ones(2, 3), steps=1)


def test_sizes_of_a_transformer():
    assert UniversalTransformerCell(1, 1, 2, 1).model_dim == 2
    for wrong in ((0, 1, 2, 1), (1, 0, 2, 1), (1, 1, 0, 1), (1, 1, 2, 0), (1, 1, 3, 1)):
        with pytest.raises(ValueError, match="positive sizes and an even model_dim"):
            UniversalTransformerCell(*wrong)
