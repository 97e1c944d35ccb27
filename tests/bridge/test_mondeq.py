"""The bridge on monDEQs: one equilibrium whatever the start, so a warm solve must end where the cold one does."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from koopsim.bridge import DistillReport, Lessons, Student, WarmStart, compare, distill, linearise, observe
from koopsim.implicit import MonDEQ, Splitting
from koopsim.implicit.monotone import SPLITTINGS
from koopsim.nn import MLP, SIM

MODELS = {"connected": {"tiers": (12,), "connected": True}, "convolutional": {"tiers": (3,)}}


def images(count: int, seed: int = 1) -> Tensor:
    """8 x 8 images in a family of three dimensions, so that a few hundred of them teach the rest."""
    y, x = torch.meshgrid(*[torch.linspace(-1, 1, 8, dtype=torch.float64)] * 2, indexing="ij")
    a = torch.randn(count, 3, 1, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return a[:, 0] * x + a[:, 1] * y + a[:, 2] * torch.cos(3 * x * y)


def mondeq(kind: str, **options) -> MonDEQ:
    torch.manual_seed(0)
    solving = Splitting(max_steps=3000, alpha=0.5, **options)
    model = MonDEQ((1, 8, 8), outputs=4, **MODELS[kind], solving=solving).double()
    with torch.no_grad():  # W as large as training makes it: at its start a solve is over in a few steps
        for weight in (*model.operator.A, *model.operator.B):
            weight.mul_(3)
        if kind == "convolutional":
            model.operator.log_g.add_(1)
            model.operator.h.mul_(2)
    return model


@pytest.fixture(scope="module", params=MODELS)
def taught(request) -> tuple[MonDEQ, SIM, DistillReport]:
    """A monDEQ and its SIM."""
    model = mondeq(request.param, tol=1e-8)
    lift = nn.Sequential(nn.Flatten(), MLP(64, 64, 32))
    student = Student(lift, lift_dim=32, readout=readout_of(model))
    sim, report = distill(model, images(500), student, Lessons(epochs=30))
    return model, sim, report


def readout_of(model: MonDEQ) -> nn.Linear | None:
    """The connected one reads its answer off the whole state; the other pools first."""
    return model.readout if model.connected else None


def test_distilling(taught):
    model, sim, report = taught
    assert report.unconverged == 0
    assert report.heldout_centred < 0.25
    x = images(50, seed=7)
    errors = compare(model, x, sim)
    assert errors["distilled SIM"] < 0.5 * errors["mean"]
    if model.connected:
        with torch.no_grad():
            assert torch.allclose(sim(x), model.readout(sim.state(x)))


@pytest.mark.parametrize("safeguard", [False, True])
@pytest.mark.parametrize("splitting", SPLITTINGS)
def test_warm_start_same_equilibrium_fewer_steps(taught, splitting, safeguard):
    model, sim, _ = taught
    x, tol = images(60, seed=5), 1e-3
    solves = {}
    with torch.no_grad():
        tiers = tuple(t.channels for t in model.tiers)
        solving = Splitting(splitting, float(model.alpha), tol=tol, max_steps=3000)
        own = MonDEQ(model.image, tiers, model.connected, outputs=4, solving=solving).double()
        own.load_state_dict(model.state_dict())
        own.tune_alpha(x)
        solves["cold"], solves["warm"] = own.solve(x), WarmStart(sim, safeguard)(own, x)
        own.tol = 1e-12
        exact, _ = own.solve(x)
        f = own.prepare(x)
        assert (f(exact) - exact).norm() < 1e-10 * exact.norm()
    for z, info in solves.values():
        assert info.converged.all()
        assert ((z - exact).norm(dim=1) < 10 * tol * exact.norm(dim=1)).all()
    assert solves["warm"][1].steps.sum() <= 0.85 * solves["cold"][1].steps.sum()


def test_warm_start_gradients(taught):
    """Against the cold solve for every parameter, and against central differences for a few entries of each."""
    model, sim, _ = taught
    model.tol = 1e-12
    x = images(3, seed=9).requires_grad_()
    probe = torch.linspace(-1, 1, 3 * model.initial(x).shape[1], dtype=torch.float64).view(3, -1)
    warm, wanted = WarmStart(sim), {"x": x, **dict(model.named_parameters())}
    wanted = {name: p for name, p in wanted.items() if not name.startswith("readout")}

    def functional(z: Tensor) -> Tensor:
        return (z * probe).sum() + z.square().sum()

    grads = [
        torch.autograd.grad(functional(solve(x)[0]), list(wanted.values()), allow_unused=True)
        for solve in (model.solve, lambda x: warm(model, x))
    ]
    for name, cold, hot in zip(wanted, *grads, strict=True):
        assert cold.abs().max() > 1e-6, name
        assert torch.allclose(cold, hot, rtol=1e-7, atol=1e-9 * float(cold.abs().max())), name
        for i in np.random.default_rng(0).choice(hot.numel(), min(3, hot.numel()), replace=False):
            assert difference(lambda: functional(warm(model, x)[0]), wanted[name], i) == pytest.approx(
                float(hot.reshape(-1)[i]), rel=1e-5, abs=1e-6 * float(hot.abs().max())
            ), name
    assert all(p.grad is None for p in sim.parameters())


@torch.no_grad()
def difference(value, p: Tensor, i: int, h: float = 1e-5) -> float:
    """Central difference of value() by entry i of p."""
    sides = []
    entry = p.detach().view(-1)[i : i + 1]
    kept = entry.clone()
    for sign in (1, -1):
        entry.copy_(kept + sign * h)
        sides.append(float(value()))
    entry.copy_(kept)
    return (sides[0] - sides[1]) / (2 * h)


@pytest.mark.parametrize(("strength", "case"), [(0.6, "fixed-point"), (1.5, "invariant-set")])
def test_observing_a_known_one(strength, case):
    """W = -k I and q = U x + b > 0: the equilibrium is q / (1 + k), and z <- relu(q - k z) leaves it for k > 1."""
    model = MonDEQ((1, 8, 8), (5,), connected=True, outputs=4, solving=Splitting(tol=1e-10)).double()
    with torch.no_grad():
        model.operator.A[0].copy_(strength**0.5 * torch.eye(5)[:, :, None, None])
        model.operator.B[0].zero_()
        assert model.U.bias is not None
        model.U.bias.fill_(3.0)
    x = 0.5 * images(3).clamp(-1, 1)
    q = model.U(x.flatten(1)).detach()
    assert (q > 0).all()
    seen, local = observe(model, x, steps=60), linearise(model, x, count=2)
    assert seen.case == case
    assert seen.agreement["agree"] == 1
    assert seen.states.shape == (3, 2, 61, 5)
    assert np.allclose(seen.inputs, x.flatten(1))
    assert seen.solver is not None
    assert seen.solver.converged.all()  # whatever the plain iteration does, the splitting settles
    with torch.no_grad():
        assert torch.allclose(model.solve(x)[0], q / (1 + strength))
    assert all(l.radius == pytest.approx(strength) for l in local if l.found)
    assert [l.stable for l in local if l.found] == [strength < 1] * sum(l.found for l in local)
    assert strength > 1 or all(l.found for l in local)


def test_observing_a_convolutional_one():
    """A W half as large as at first: z <- relu(W z + q) settles, by the spectral radius of df/dz at its end a step."""
    torch.manual_seed(0)
    model = MonDEQ((1, 8, 8), (3,), outputs=4, solving=Splitting(tol=1e-8)).double()
    x = images(2)
    assert not observe(model, x, steps=40).settled.any()  # as it is built, it does not
    with torch.no_grad():
        model.operator.log_g.fill_(-0.7)
        model.operator.h.fill_(0.5)
    seen, local = observe(model, x, steps=120), linearise(model, x, count=2)
    assert seen.case == "fixed-point"
    assert seen.states.shape == (2, 2, 121, 300)
    with torch.no_grad():
        z, _ = model.solve(x)
    assert np.allclose(seen.states[:, 0, -1], z, atol=1e-6 * float(z.abs().max()))
    for verdict, at in zip(seen.verdicts, local, strict=True):
        assert at.stable
        assert np.abs(verdict.eigenvalues).max() == pytest.approx(at.radius, rel=1e-4)
