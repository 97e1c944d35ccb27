"""The operators of a monDEQ against dense matrices made of plain convolutions, and the theorem they rest on."""

import pytest
import torch
from dense_monotone import circular, dense, downwards, order
from hypothesis import given, settings
from hypothesis import strategies as st

from koopsim.errors import KoopsimError
from koopsim.implicit import inverse as inverses
from koopsim.implicit.circular import Grid, real_form
from koopsim.implicit.inverse import INVERSES, inverse
from koopsim.implicit.monotone import MonDEQ

F64 = torch.float64
MODELS = {
    "single": {"image": (2, 4, 4), "tiers": (3,)},
    "oblong": {"image": (1, 4, 3), "tiers": (2,)},
    "multi": {"image": (1, 8, 8), "tiers": (2, 3, 2)},
    "oblong multi": {"image": (1, 4, 6), "tiers": (2, 3)},
    "connected": {"image": (1, 4, 4), "tiers": (7,), "connected": True},
}


def model_of(kind: str, **options) -> MonDEQ:
    return MonDEQ(**MODELS[kind], **options).double()


def stir(model: MonDEQ, size: float, seed: int = 0) -> MonDEQ:
    """Parameters unlike those of initialisation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


def matrix(model: MonDEQ, linear) -> torch.Tensor:
    """The matrix of a map of states, in the dense order."""
    places = order(model)
    return linear(torch.eye(len(places), dtype=F64))[places][:, places]


@pytest.mark.parametrize(("height", "width"), [(6, 8), (5, 7), (1, 1), (2, 3)])
def test_the_transform_is_the_fourier_transform(height, width):
    grid, z = Grid(height, width), torch.randn(height, width, 3, 2, dtype=F64)
    got = grid.transform(z)
    want = torch.fft.fft2(z, dim=(0, 1))[: height // 2 + 1].flatten(0, 1) / width**0.5
    torch.testing.assert_close(got, torch.cat([want.real, want.imag], dim=1))
    torch.testing.assert_close(grid.inverse(got), z)


@pytest.mark.parametrize("phases", [1, 2])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_symbol_is_its_convolution(phases, size):
    grid = Grid(6, 8, phases)
    kernel, z = torch.randn(4, 3, size, size, dtype=F64), torch.randn(2, 3, 6, 8, dtype=F64)
    state = grid.fold(z.permute(2, 3, 1, 0))
    torch.testing.assert_close(grid.unfold(state).permute(3, 2, 0, 1), z, rtol=0, atol=0)
    out = grid.inverse(real_form(grid.symbol(kernel)) @ grid.transform(state))
    torch.testing.assert_close(grid.unfold(out).permute(3, 2, 0, 1), circular(kernel)(z))
    if phases == 2:
        out = grid.inverse(real_form(grid.symbol(kernel, strided=True)) @ grid.transform(state))
        torch.testing.assert_close(out.permute(3, 2, 0, 1), downwards(kernel)(z)[:, :, 1:, 1:])


@pytest.mark.parametrize("monotonicity", [1.0, 0.3])
@pytest.mark.parametrize("kind", MODELS)
def test_chains_are_their_dense_matrices(kind, monotonicity):
    model, a = stir(model_of(kind, monotonicity=monotonicity), 0.5), 0.7
    W, _ = dense(model)
    unit = torch.eye(len(W), dtype=F64)
    symbols = model.operator.symbols()
    with torch.no_grad():
        for chain, want in (
            (model.operator.explicit(symbols, 1.0), W),
            (model.operator.explicit(symbols, a), (1 - a) * unit + a * W),
            (model.operator.implicit(symbols, a), 2 * torch.linalg.inv((1 + a) * unit - a * W) - unit),
        ):
            torch.testing.assert_close(matrix(model, chain), want, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(matrix(model, chain.transposed), want.T, rtol=1e-9, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(sorted(MODELS)),
    size=st.floats(0, 10),
    monotonicity=st.floats(0.01, 3),
    seed=st.integers(0, 2**16),
)
def test_monotone_for_every_parameter(kind, size, monotonicity, seed):
    """sym(I - W) >= m I, by the operator's own products; with equality nowhere exceeded by rounding."""
    model = stir(model_of(kind, monotonicity=monotonicity), size, seed)
    with torch.no_grad():
        W = matrix(model, model.operator.explicit(model.operator.symbols(), 1.0))
    gap = torch.eye(len(W), dtype=F64) - W
    lowest = torch.linalg.eigvalsh((gap + gap.T) / 2)[0]
    assert lowest >= monotonicity - 1e-12 * torch.linalg.matrix_norm(W)


def test_scales_are_frobenius_norms():
    model = model_of("multi")
    with torch.no_grad():
        model.operator.log_g[1] = -7.0
        A = model.operator.symbols()[1].A
    grid = model.tiers[1].grid
    # Parseval: the mean over all frequencies of |symbol|^2 is the norm of the kernel, four times for four phases.
    twice = torch.full((grid.rows // 2 + 1,), 2.0, dtype=F64)
    twice[0] = 1
    if grid.rows % 2 == 0:
        twice[-1] = 1
    power = A.abs().square().sum((1, 2)).view(-1, grid.columns).sum(1) @ twice / (grid.rows * grid.columns)
    torch.testing.assert_close(power / 4, torch.tensor(-14.0, dtype=F64).exp())


@pytest.mark.parametrize("method", INVERSES)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float64])
@pytest.mark.parametrize("n", [1, 8, 21, 40])
def test_inverses(method, dtype, n):
    """M with Hermitian part >= 1 and a large skew part, of condition up to some hundreds."""
    M = torch.randn(5, n, n, dtype=dtype)
    R = torch.randn(5, n, n, dtype=dtype)
    M = torch.eye(n, dtype=dtype) + M.mH @ M / 2 + 2 * (R - R.mH)
    loose = dtype == torch.complex64
    want = torch.linalg.inv(M.to(torch.complex128))
    got = inverse(M, method).to(torch.complex128)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4 if loose else 1e-11)


def test_unknown_inverse_and_the_default(monkeypatch):
    M = 3 * torch.eye(2, dtype=F64)[None]
    with pytest.raises(KoopsimError, match="newton-schulz"):
        inverse(M, "newton")
    monkeypatch.setattr(inverses, "INVERSE", "blocks")
    monkeypatch.setitem(INVERSES, "blocks", lambda M: M * 0)
    assert not inverse(M).any()
