"""monDEQ: counts, equilibria and gradients against dense twins and finite differences, and what it says of itself."""

import collections
import copy
import inspect
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dense_monotone import dense, flat

from koopsim.bridge import WarmStart
from koopsim.config import MonDEQConfig, SIMConfig, VGGConfig
from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ, UnconvergedWarning, monotone, splitting
from koopsim.implicit.info import Info
from koopsim.implicit.monotone import SPLITTINGS, MonDEQ, Splitting
from koopsim.implicit.monotone_operator import Chain
from koopsim.implicit.splitting import Storage
from koopsim.implicit.stored import StoredChain
from koopsim.models import build
from koopsim.nn import build_sim, count_parameters

F64 = torch.float64
TIGHT = {"max_steps": 3000, "tol": 1e-13}
KINDS = {
    "single": {"image": (2, 4, 4), "tiers": (2,)},
    "multi": {"image": (1, 4, 4), "tiers": (2, 3)},
    "three": {"image": (1, 8, 8), "tiers": (2, 2, 3)},
    "connected": {"image": (1, 3, 3), "tiers": (6,), "connected": True},
}


def model_of(kind: str, strength: float = 2.0, scale: str = "exp", **options) -> MonDEQ:
    """A model with strong interactions, as after training: at first W is nearly -A^T A of norm 1 / width."""
    model = MonDEQ(**KINDS[kind], outputs=3, solving=Splitting(**options), scale=scale).double()
    if not model.connected:
        with torch.no_grad():
            if scale == "exp":
                model.operator.log_g.fill_(torch.tensor(strength).log())
            else:
                model.operator.g.fill_(strength**2)
            model.operator.h.fill_(strength)
    return model


def images(model: MonDEQ, count: int = 3) -> torch.Tensor:
    return torch.randn(count, *model.image, dtype=F64)


def step_size(splitting_: str) -> float:
    return 0.05 if splitting_ == "forward-backward" else 0.5


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (MonDEQConfig((3, 32, 32), (81,)), 172_218),
        (MonDEQConfig((3, 32, 32), (16, 32, 60)), 170_194),
        (MonDEQConfig((1, 28, 28), (56,)), 84_460),
        (MonDEQConfig((1, 28, 28), (16, 32, 32)), 81_394),
        (MonDEQConfig((1, 28, 28), (87,), connected=True), 84_313),
    ],
)
def test_published_parameter_counts(config, parameters):
    assert count_parameters(build(config)) == parameters
    assert count_parameters(build(replace(config, scale="free"))) == parameters


@pytest.mark.parametrize("kind", KINDS)
def test_both_splittings_find_the_dense_equilibrium(kind):
    torch.manual_seed(1)
    reference = model_of(kind)
    x = images(reference)
    W, inside = dense(reference)
    q = torch.zeros(len(x), len(W), dtype=F64)
    if kind == "connected":
        q = reference.U(x.flatten(1)).detach()
    else:
        first = F.pad(reference.U(x).detach(), (1, 1, 1, 1)).flatten(1)
        q[:, : first.shape[1]] = first
    z = torch.zeros_like(q)
    a = 1 / torch.linalg.matrix_norm(torch.eye(len(W), dtype=F64) - W, ord=2) ** 2
    for _ in range(5000):
        z = torch.relu((1 - a) * z + a * (z @ W.T + q)) * inside
    assert 0.05 < (z > 0).double().mean() < 0.95
    torch.testing.assert_close(z, torch.relu(z @ W.T + q) * inside, rtol=1e-9, atol=1e-12)
    for name in SPLITTINGS:
        model = MonDEQ(**KINDS[kind], outputs=3, solving=Splitting(name, step_size(name), **TIGHT)).double()
        model.load_state_dict(reference.state_dict() | {"alpha": model.alpha})
        got, info = model.solve(x)
        assert info.converged.all()
        torch.testing.assert_close(flat(model, got.detach()), z, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(model.prepare(x)(got), got, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(model(x), _logits(model, got))


def _logits(model: MonDEQ, z: torch.Tensor) -> torch.Tensor:
    last = model.images(z)[-1]
    if len(model.tiers) == 1 and not model.connected:
        last = last.unfold(2, 4, 4).unfold(3, 4, 4).mean((-1, -2))
    return last.flatten(1) @ model.readout.weight.T + model.readout.bias


@pytest.mark.parametrize("name", SPLITTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_the_finite_difference(kind, name):
    torch.manual_seed(2)
    slow = name == "forward-backward" or kind in ("three", "multi")  # then along random directions only
    model = model_of(kind, 1.0 if slow else 2.0, method=name, alpha=0.2 if slow else 0.5, **TIGHT)
    x = images(model, 2).requires_grad_()
    names = [n for n, p in model.named_parameters() if p.numel() < 80]
    assert {"log_g", "A", "B", "h"} <= {n.split(".")[1] for n in names if "operator" in n} or kind == "connected"

    def outputs(x, *parameters):
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x,))

    parameters = [model.get_parameter(n).detach().clone().requires_grad_() for n in names]
    assert torch.autograd.gradcheck(outputs, (x, *parameters), eps=1e-6, atol=1e-7, rtol=1e-5, fast_mode=slow)


@pytest.mark.parametrize("g", [1.0, -0.8, 0.01])
@pytest.mark.parametrize("kind", ["single", "multi"])
def test_the_gradient_of_a_free_scale_is_the_finite_difference(kind, g):
    torch.manual_seed(2)
    model = model_of(kind, 1.0, "free", alpha=0.5, **TIGHT)
    x, operator = images(model, 2), model.operator
    start = torch.full_like(operator.g, g)

    def outputs(*scales):
        names = ("operator.g", "operator.h", "operator.g_between")[: len(scales)]
        return torch.func.functional_call(model, dict(zip(names, scales, strict=True)), (x,))

    scales = [start, operator.h, *([operator.g_between * g] if kind == "multi" else [])]
    scales = [scale.detach().clone().requires_grad_() for scale in scales]
    assert torch.autograd.gradcheck(outputs, scales, eps=1e-6, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_float64_rounded(kind):
    model = model_of(kind, tol=4e-6)  # rounded, the last of three tiers comes no closer than 2e-6
    x = images(model)
    single = copy.deepcopy(model).float()
    got, want = single(x.float()), model(x.float())
    assert (got.dtype, want.dtype) == (torch.float32, F64)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
    got.square().sum().backward()
    want.square().sum().backward()
    for p, r in zip(single.parameters(), model.parameters(), strict=True):
        assert p.grad is not None
        assert r.grad is not None
        torch.testing.assert_close(p.grad.double(), r.grad, rtol=1e-3, atol=1e-4 * float(r.grad.abs().max()))


def test_bfloat16_autocast_does_not_touch_the_solve():
    model = model_of("single", tol=1e-6).float()
    x = images(model).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z, _ = model.solve(x)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z, model.solve(x)[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", SPLITTINGS)
def test_tuning_finds_a_faster_step_to_the_same_equilibrium(name):
    model = model_of("single", strength=4.0, method=name, alpha=1.0, tol=1e-8, max_steps=1000)
    x = images(model)
    best = model.tune_alpha(x)
    z, info = model.solve(x)
    assert best == float(model.alpha) == float(model.state_dict()["alpha"]) < 1
    assert info.converged.all()
    torch.testing.assert_close(model.prepare(x)(z), z, rtol=1e-5, atol=1e-6)
    for other in (best / 2, 2 * best):
        model.alpha.fill_(other)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnconvergedWarning)
            assert model.solve(x)[1].steps.double().mean() >= info.steps.double().mean() - splitting.CHECK_EVERY
    model.tune = False
    model.start_epoch(x)
    assert float(model.alpha) == 2 * best
    model.tune = True
    model.start_epoch(x)
    assert float(model.alpha) == best


def test_samples_converge_each_by_itself():
    model = model_of("multi", strength=3.0, tol=1e-6)
    x = images(model, 4) * torch.tensor([1e-3, 1, 100, 0], dtype=F64).view(-1, 1, 1, 1)
    _, together = model.solve(x)
    alone = [model.solve(x[i : i + 1])[1].steps.item() for i in range(4)]
    assert together.steps.tolist() == alone
    assert len(set(alone)) > 1


def test_the_last_tier_is_solved_as_well_as_the_first():
    """It may be a small part of the state, and it is what the answer is read off."""
    torch.manual_seed(0)
    model = MonDEQ((3, 16, 16), (4, 5, 6), solving=Splitting(tol=1e-3)).double()
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        model.operator.log_g.fill_(1.0)
        model.operator.h.fill_(3.0)
        z, info = model.solve(x)
        model.tol = 1e-12
        exact, _ = model.solve(x)
    sizes = [tier.size for tier in model.tiers]
    parts, wholes = z.split(sizes, dim=1), exact.split(sizes, dim=1)
    small = wholes[-1].norm() / wholes[0].norm()
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(parts, wholes, strict=True)]
    assert small < 0.05
    assert bool(info.forward.converged.all())
    assert max(errors) < 5e-4  # judged by the whole state the last tier is 1.5e-3 off


def test_an_unconverged_solve_says_so():
    model = model_of("single", strength=4.0, tol=1e-12, max_steps=3)
    with pytest.warns(UnconvergedWarning, match="forward solve left 3 of 3"):
        outputs = model(images(model))
    with pytest.warns(UnconvergedWarning, match="backward"):
        outputs.sum().backward()
    report = model.diagnostics()
    assert report["unconverged"] == report["backward_unconverged"] == 1
    assert report["solver_steps"] == 3
    assert report["residual"] > 1e-12
    model(images(model)).sum().backward()  # said once


def test_the_warning_points_at_the_caller():
    model = model_of("single", strength=4.0, tol=1e-12, max_steps=3)
    with pytest.warns(UnconvergedWarning) as seen:
        model(images(model))
    assert seen[0].filename == __file__


def test_a_step_size_beyond_forward_backward_is_unconverged_not_wrong():
    model = model_of("single", strength=6.0, method="forward-backward", alpha=1.0)
    with pytest.warns(UnconvergedWarning):
        model(images(model))
    assert model.diagnostics()["unconverged"] > 0


def test_a_solve_begun_at_its_end_is_over_at_once():
    for name in SPLITTINGS:
        model = model_of("three", method=name, alpha=step_size(name), **TIGHT)
        x = images(model)
        z, cold = model.solve(x)
        again, warm = model.solve(x, z)
        assert warm.steps.max() == splitting.CHECK_EVERY < cold.steps.min()
        torch.testing.assert_close(again, z, rtol=1e-9, atol=1e-12)
        elsewhere, _ = model.solve(x, torch.randn_like(z))
        torch.testing.assert_close(elsewhere, z, rtol=1e-9, atol=1e-11)
    with pytest.raises(KoopsimError, match="state of shape"):
        model.solve(x, z[:, 1:])


def test_a_sim_starts_its_solve():
    model = model_of("single", **TIGHT)
    x, D = images(model), model.inside.shape[0]
    sim = build_sim(SIMConfig(VGGConfig(2, (2, 4, 4)), lift_dim=4, hidden=D)).double()
    z, info = WarmStart(sim, safeguard=True)(model, x)
    assert info.converged.all()
    torch.testing.assert_close(z, model.solve(x)[0], rtol=1e-9, atol=1e-11)


def _counted(method, calls):
    def call(self, y):
        calls[method.__name__] += 1
        return method(self, y)

    return call


@pytest.mark.parametrize("kind", KINDS)
def test_a_capture_runs_its_budget_and_no_more(kind, monkeypatch):
    model = model_of(kind, tol=1e-8)
    x = images(model)
    want = model(x)
    want.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    for module in (splitting, monotone):
        monkeypatch.setattr(module, "capturing", lambda: True)
    calls = collections.Counter()
    for name in ("__call__", "transposed"):
        monkeypatch.setattr(Chain, name, _counted(getattr(Chain, name), calls))
    model.captured_steps = (100, 120)
    model.zero_grad()
    got = model(x)
    got.sum().backward()
    assert calls == {"__call__": 100, "transposed": 120}
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)
    for p, g in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-5, atol=1e-7)


def test_the_budget_follows_the_solves():
    model = model_of("single", tol=1e-3, max_steps=50)
    first = model.variant
    model.adapt()
    assert model.variant == first  # nothing is known yet
    model(images(model)).sum().backward()
    info = model.last_info
    assert info is not None
    assert info.backward is not None
    needed = info.steps.max(), info.backward.steps.max()
    model.diagnostics()
    model.adapt()
    for budget, steps in zip(model.variant, needed, strict=True):
        assert steps < budget <= steps + 4
    model.longest.fill_(50)
    model.adapt()
    assert model.variant == (50, 50)


def test_a_budget_goes_down_by_two_or_more():
    model = model_of("single")
    model.captured_steps = (9, 9)
    for longest, budgets in (
        ((7, 8), (9, 9)),
        ((6, 9), (7, 10)),
        ((7, 3), (8, 4)),
        ((0, 2), (8, 4)),
        ((17, 1), (18, 2)),
    ):
        model.longest.copy_(torch.tensor(longest))
        model.adapt()
        assert model.variant == budgets


def test_a_captured_loop_looks_at_each_of_its_last_steps(monkeypatch):
    model = model_of("single", tol=1e-3)
    x = images(model)
    exact = splitting.split(
        model._step(model.operator.linear()),
        model.alpha * model._inject(x).detach(),
        splitting.Projection(model.inside, rectify=True),
        splitting.Sweep(True, splitting.Until(50, 1e-3, check_every=1)),
    )[1].steps
    for module in (splitting, monotone):
        monkeypatch.setattr(module, "capturing", lambda: True)
    model.captured_steps = (int(exact.max()) + 1, 8)
    assert model.solve(x)[1].steps.max() == exact.max()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("kind", ["single", "multi", "connected"])
def test_float16_solves_as_float32_does_whatever_the_scale(kind, scale, monkeypatch):
    """As on CUDA with TF32; here on a CPU, with a tiny loss, and as many steps of each: 24, where to stop apart."""
    torch.manual_seed(3)
    model = model_of(kind, alpha=0.5, tol=0.0, max_steps=24).float()
    x = scale * images(model).float()
    with torch.no_grad():
        assert model.U.bias is not None
        model.U.bias.mul_(scale)
    rounded = copy.deepcopy(model)
    monkeypatch.setattr(rounded, "_rounded", lambda like: torch.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)
        outputs = [m(x) for m in (model, rounded)]
        for out in outputs:
            (1e-9 / scale * out.square().sum()).backward()
    size = torch.linalg.vector_norm
    assert size(outputs[1] - outputs[0]) < 3e-3 * size(outputs[0])
    whole = size(torch.stack([size(r.grad) for r in model.parameters() if r.grad is not None]))
    for p, r in zip(rounded.parameters(), model.parameters(), strict=True):
        assert p.grad is not None
        assert r.grad is not None
        assert size(p.grad - r.grad) < 3e-2 * size(r.grad) + (0.01 * whole if r.numel() <= 3 else 0)  # gains: sums


@pytest.mark.parametrize("rows", [1, 5, 13, 36, 50])
def test_the_largest_entries(rows):
    q = torch.randn(rows, 4)
    q[rows // 2, 1], q[:, 2], q[-1, 3] = -7, 0, torch.nan
    got = monotone._largest(q)
    assert got[:2].equal(q[:, :2].abs().amax(0))
    assert got[2] == 2.0**20 * 2.0**-126
    assert got[3].isnan()


def test_float16_is_for_tf32_and_coarse_tolerances_only(monkeypatch):
    single = MonDEQ((1, 4, 4), (2,))
    device: Any = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    double: Any = SimpleNamespace(is_cuda=True, dtype=F64)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    assert single._rounded(device) == torch.float32
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert single._rounded(device) == torch.float16
    assert single._rounded(torch.zeros(1)) == torch.float32
    assert single._rounded(double) == F64
    single.tol = 1e-3
    assert single._rounded(device) == torch.float32


def test_what_a_transform_in_one_product_is_for(monkeypatch):
    monkeypatch.setattr(MonDEQ, "_rounded", lambda self, like: torch.float16)

    def step(image, tiers):
        model = MonDEQ(image, tiers)
        return model._step(model.operator.linear())

    for image, tiers, paired in (
        ((1, 4, 4), (2,), True),
        ((1, 6, 4), (2,), False),  # 8 rows: 3 even frequencies, 2 odd ones
        ((1, 4, 4), (2, 3), False),
    ):
        chain = step(image, tiers)
        assert isinstance(chain, StoredChain)
        assert chain.storage().paired == paired
        for transposed in (False, True):  # each tier's residual is its own in float16 too
            assert chain.storage(transposed).tiers == tuple(tier.size for tier in chain.tiers)
    large = step((1, 36, 36), (2,))
    assert isinstance(large, Chain)
    assert large.storage() == Storage(torch.float16, tiers=(38 * 38 * 2,))


def test_what_does_not_fit_is_refused():
    model = model_of("single")
    with pytest.raises(KoopsimError, match=r"shape \(2, 4, 4\); expected \('batch', 2, 4, 4\)"):
        model(images(model)[0])
    with pytest.raises(KoopsimError, match="multiples of 4"):
        MonDEQ((1, 6, 8), (2, 2, 2))
    with pytest.raises(KoopsimError, match="peaceman-rachford"):
        MonDEQ(solving=Splitting("douglas-rachford"))
    with pytest.raises(RuntimeError, match="second derivatives"):
        x = images(model).requires_grad_()
        torch.autograd.grad(model(x).sum(), x, create_graph=True)


def test_no_gradient_no_tape():
    model = model_of("single")
    with torch.no_grad():
        assert not model(images(model)).requires_grad
    model.requires_grad_(False)
    z, info = model.solve(images(model))
    assert not z.requires_grad
    assert info.backward is None


@pytest.mark.parametrize(
    ("script", "tried", "best", "longest"),
    [
        ([(9, 1)] * 2, 2, 0, 9),  # no better: the first of equals is kept
        ([(10, 1), (8, 1), (9, 1)], 3, 1, 8),
        ([(20, 0), (20, 0), (20, 1), (12, 1), (13, 0), (11, 1), (11, 1)], 7, 5, 11),  # unconverged: it goes on
        ([(20 - k, 1) for k in range(9)], 9, 8, 12),  # 2^-8 is the smallest
    ],
)
def test_tuning_stops_where_halving_makes_it_worse(script, tried, best, longest, monkeypatch):
    """Solves of so many steps, converged or not, in the place of real ones; unconverged counts as one step more."""
    model, seen = model_of("single", alpha=0.75, max_steps=20, tol=1e-3), []

    def solved(T, q, P, until):
        steps, converged = script[len(seen)]
        seen.append((float(model.alpha), until.max_steps, until.tol, until.check_every))
        return q, Info(torch.tensor([steps, steps]), torch.zeros(2), torch.tensor([True, bool(converged)]))

    monkeypatch.setattr(model, "_split", solved)
    model.longest.copy_(torch.tensor([3, 15]))
    assert model.tune_alpha(images(model)) == 0.75 / 2**best == float(model.alpha)
    assert seen == [(0.75 / 2**k, 20, 1e-3, 1) for k in range(tried)]
    assert model.longest.tolist() == [longest, max(15, longest)]


def test_gradients_reach_an_image_through_fixed_weights_and_either_part_alone():
    model = model_of("single", tol=1e-10)
    x = images(model).requires_grad_()
    (want,) = torch.autograd.grad(model(x).sin().sum(), x)
    model.requires_grad_(False)
    (got,) = torch.autograd.grad(model(x).sin().sum(), x)
    torch.testing.assert_close(got, want)
    model.operator.requires_grad_(True)
    z, _ = model.solve(x.detach())
    assert z.requires_grad  # W alone


def test_a_capture_never_runs_beyond_the_limit_and_says_nothing(monkeypatch):
    for module in (splitting, monotone):
        monkeypatch.setattr(module, "capturing", lambda: True)
    model = model_of("single", tol=1e-12, max_steps=5)
    assert model.captured_steps == (5, 5)
    model.captured_steps = (9, 3)
    model(images(model)).sum().backward()  # a warning would be an error
    assert (model.last_info.steps.max(), model.last_info.backward.steps.max()) == (5, 3)
    report = model.diagnostics()
    assert report["alpha"] == float(model.alpha)
    assert report["unconverged"] == 1


def test_sizes_and_tolerances_at_their_bounds(monkeypatch):
    for image, tiers in (((1, 2, 2), (2,)), ((1, 4, 6), (2, 2))):
        MonDEQ(image, tiers)
    for image, tiers in (((1, 1, 4), (2,)), ((1, 2, 4), (2, 2)), ((1, 4, 2), (2, 2)), ((1, 4, 5), (2, 2))):
        with pytest.raises(KoopsimError, match="multiples of"):
            MonDEQ(image, tiers)
    model = model_of("single")
    for shape in ((3, 2, 4, 5), (3, 2, 4, 4, 1)):
        with pytest.raises(KoopsimError, match="Build the model with their size"):
            model(torch.zeros(shape))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    coarse = MonDEQ((1, 4, 4), (2,), solving=Splitting(tol=monotone.COARSE))
    assert coarse._rounded(SimpleNamespace(is_cuda=True, dtype=torch.float32)) == torch.float16
    assert MonDEQ((1, 4, 4), (2,), solving=Splitting(max_steps=7)).captured_steps == (7, 7)
    assert MonDEQ((1, 8, 12), (2,)).readout.in_features == 2 * (10 // 4) * (14 // 4)
    monkeypatch.setattr(MonDEQ, "_rounded", lambda self, like: torch.float16)
    edge = MonDEQ((1, 24, 48), (1,))  # 26 x 50: the most pixels that are transformed at once
    assert isinstance(edge._step(edge.operator.linear()), StoredChain)


def test_what_no_compiler_takes_is_known_by_its_own_name():
    assert list(inspect.signature(MonDEQ.solve).parameters) == ["self", "x", "z0"]
    assert (MonDEQ.solve.__name__, DEQ.forward.__name__) == ("solve", "forward")
    assert "equilibrium" in str(MonDEQ.solve.__doc__)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # the compiler's own
def test_a_compiler_takes_what_is_round_the_solve_and_not_the_solve():
    torch._dynamo.reset()
    seen: list[torch.fx.GraphModule] = []

    def keep(graph, inputs):
        seen.append(graph)
        return graph.forward

    model = model_of("three", **TIGHT)
    x = torch.randn(3, 1, 8, 8, dtype=F64)
    compiled = torch.compile(copy.deepcopy(model), backend=keep)
    for _ in range(12):  # more often than a function is compiled anew
        answers = [each(x) for each in (compiled, model)]
    torch.testing.assert_close(*answers)
    pairs = zip(answers, (compiled, model), strict=True)
    grads = (torch.autograd.grad(y.square().sum(), list(m.parameters())) for y, m in pairs)
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)
    called = {node.target for graph in seen for node in graph.graph.nodes if node.op == "call_function"}
    assert 1 <= len(seen) <= 2
    assert torch.bmm not in called
    torch._dynamo.reset()
