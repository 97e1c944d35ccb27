from dataclasses import replace

import pytest
import torch
from torch import nn

from koopsim.config import FourierConfig, IdentityConfig, MLPConfig, SIMConfig, TCNConfig, VGGConfig, from_dict, to_dict
from koopsim.nn import SIM, RandomFourierFeatures, build_sim, count_parameters

SIMS = {
    "single": SIMConfig(MLPConfig(2, 8), lift_dim=6, hidden=5, outputs=3),
    "two": SIMConfig(MLPConfig(2, 8), lift_dim=6, fourier=FourierConfig(10), hidden=5, outputs=3),
    "rff": SIMConfig(IdentityConfig(2), fourier=FourierConfig(12, 0.5), hidden=5, outputs=3),
    "projector": SIMConfig(MLPConfig(2, 8), lift_dim=6, projector=True, hidden=5, outputs=3),
    "identity": SIMConfig(MLPConfig(2, 8), lift_dim=6, rank=6, projector=True, hidden=5, outputs=3),
}


@pytest.mark.parametrize("sim", SIMS.values(), ids=SIMS)
def test_the_model_is_the_composition_of_its_maps(sim):
    model = build_sim(sim).double()
    x = torch.randn(4, 7, 2, dtype=torch.float64)
    phi = model.mu(x) if sim.fourier is None else model.psi(model.mu(x))
    U, V = model.limit.factors()
    z = model.nu((U @ V @ phi.unsqueeze(-1)).squeeze(-1))
    torch.testing.assert_close(model(x), model.h(z))
    torch.testing.assert_close(model.state(x), z)
    assert model(x).shape == (4, 7, 3)


@pytest.mark.parametrize("sim", SIMS.values(), ids=SIMS)
def test_gradients_match_finite_differences(sim):
    torch.manual_seed(1)
    model = build_sim(sim).double()
    names, values = zip(*model.named_parameters(), strict=True)
    x = torch.randn(3, 2, dtype=torch.float64)
    run = lambda *values: torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,))  # noqa: E731
    assert torch.autograd.gradcheck(run, values, fast_mode=True)


def test_tcn_and_vgg_gradients_match_finite_differences():
    for lift, x in (
        (TCNConfig(levels=2, channels=3, kernel=2), torch.rand(2, 6)),
        (VGGConfig(channels=2, image=(1, 4, 4)), torch.rand(3, 1, 4, 4)),
    ):
        torch.manual_seed(0)
        model = build_sim(SIMConfig(lift, lift_dim=4, hidden=3, outputs=2)).double()
        names, values = zip(*model.named_parameters(), strict=True)

        x = x.double()

        def run(*values, model=model, names=names, x=x):
            return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,))

        assert torch.autograd.gradcheck(run, values, fast_mode=True)


def test_any_module_can_be_the_lift():
    model = SIM(lift=nn.GRUCell(3, 8), lift_dim=8, outputs=2, fourier=RandomFourierFeatures(8, 20))
    assert model(torch.randn(5, 3)).shape == (5, 2)
    assert count_parameters(model) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("sim", SIMS.values(), ids=SIMS)
def test_bf16_autocast_stays_close(sim):
    torch.manual_seed(0)
    model = build_sim(sim)
    x = torch.rand(64, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(x)
        low.float().square().mean().backward()
    torch.testing.assert_close(low.float(), model(x), rtol=0.1, atol=0.05)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("rank", [None, 6])
@pytest.mark.parametrize("projector", [False, True])
def test_an_even_start_is_a_projector_and_keeps_a_signals_size(rank, projector):
    """PyTorch's own start loses nine tenths of the signal on the way: answers to other rows are nearly the same."""
    plain = SIMConfig(MLPConfig(20, 64, 1), lift_dim=64, rank=rank, projector=projector, outputs=3)
    x = torch.randn(500, 20, generator=torch.Generator().manual_seed(1))
    spreads = {}
    for start in ("plain", "even"):
        torch.manual_seed(0)
        model = build_sim(replace(plain, start=start))
        spreads[start] = float(model(x).detach().std(0).mean())
        U, V = model.limit.factors()
        if start == "even":
            assert torch.allclose(V @ U, torch.eye(model.limit.rank), atol=1e-5)
            assert all(not layer.bias.any() for layer in model.modules() if isinstance(layer, torch.nn.Linear))
    assert spreads["even"] > 0.05
    assert spreads["even"] > 5 * spreads["plain"]


def test_a_configuration_of_before_starts_plainly():
    old = to_dict(SIMConfig())
    del old["start"]
    assert from_dict(SIMConfig, old).start == "plain"
