"""The TCN of a CPU against the readable blocks: the same numbers, forward and backward, whatever the lengths."""

import pytest
import torch

from koopsim.nn import SIM, TCN, RandomFourierFeatures, stretches
from koopsim.nn.lift import CausalConv


@pytest.mark.parametrize(
    ("T", "levels", "C", "K", "inputs"),
    [(520, 8, 10, 8, 1), (37, 3, 4, 3, 2), (5, 2, 4, 2, 4), (100, 5, 6, 9, 1), (18, 4, 4, 20, 1), (1, 3, 2, 2, 1)],
)
def test_features_are_the_blocks(T, levels, C, K, inputs):
    torch.manual_seed(T)
    tcn = TCN(3, levels, C, K, inputs).double()
    x = torch.randn(3, T, inputs, dtype=torch.float64, requires_grad=True)
    wanted = [x, *tcn.blocks.parameters()]
    slow = tcn.blocks(x)
    fast = tcn.features(x.squeeze(-1) if inputs == 1 else x)
    weights = torch.randn_like(slow)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    pairs = zip(*(torch.autograd.grad((y * weights).sum(), wanted) for y in (fast, slow)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_no_layer_is_convolved_one_by_one(monkeypatch):
    monkeypatch.setattr(CausalConv, "forward", None)
    TCN(4, 3)(torch.zeros(2, 30))


def test_under_transforms_and_compilers_the_blocks_are_used(monkeypatch):
    monkeypatch.setattr(stretches, "features", None)
    tcn, x = TCN(4, 2), torch.zeros(2, 30)
    torch.func.vmap(tcn)(x)
    torch.func.grad(lambda t: tcn(t).sum())(x)
    torch.export.export(tcn, (x,))


@pytest.mark.parametrize("projector", [False, True])
@pytest.mark.parametrize("two", [False, True], ids=["single", "two"])
def test_a_folded_sim_is_its_maps(two, projector):
    torch.manual_seed(0)
    psi = RandomFourierFeatures(6, 10) if two else None
    sim = SIM(TCN(6, 2, 4, 3), 6, 3, 5, psi, projector=projector).double()
    x = torch.randn(2, 9, dtype=torch.float64)
    slow, fast = sim.h(sim.state(x)), sim(x)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    pairs = zip(*(torch.autograd.grad(y.square().sum(), list(sim.parameters())) for y in (fast, slow)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_second_derivative_is_refused():
    tcn, x = TCN(4, 2), torch.randn(1, 30, 1, requires_grad=True)
    (g,) = torch.autograd.grad(tcn.features(x.squeeze(-1)).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        g.sum().backward()


@pytest.mark.parametrize(("Q", "T"), [(7, 7), (8, 8), (9, 17)])
def test_doubling_and_halving_phases(Q, T):
    torch.manual_seed(Q)
    x = torch.randn(2, T, 3)
    phases, d = x, 1
    while d < 4:
        phases, d = stretches.doubled(phases, 2, T, d), 2 * d
    for p in range(4):
        for q, t in enumerate(range(p, T, 4)):
            assert torch.equal(phases[4 * torch.arange(2) + p, q], x[:, t])
    assert torch.equal(stretches.halved(stretches.halved(phases, 2, T, 4), 2, T, 2)[:, :T], x)
