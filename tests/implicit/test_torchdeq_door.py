"""A script that was written with torchdeq runs by the changed import alone, and its gradient is right by default."""

import argparse
import importlib
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

from koopsim.errors import KoopsimError
from koopsim.implicit import UnconvergedWarning, jacobian_penalty, spectral_radius
from koopsim.implicit import torchdeq as door
from koopsim.implicit.stabilise import VariationalDropout
from koopsim.implicit.torchdeq.options import OTHERS, Options

TIGHT = {"f_max_iter": 200, "b_max_iter": 200, "f_tol": 1e-10, "b_tol": 1e-10}


def theirs():
    return pytest.importorskip("torchdeq", reason="torchdeq is not installed: pip install 'koopsim[bench]'")


class Cell(nn.Module):
    """f(z, x) = tanh(W z + U x + b), W of norm 0.7."""

    def __init__(self, width=5):
        super().__init__()
        self.W, self.U = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.orthogonal_(self.W.weight, 0.7)

    def forward(self, z, x):
        return torch.tanh(self.W(z) + self.U(x))


def script(lib, steps=12):
    """As it stands in somebody's train.py, after `from torchdeq import ...`."""
    torch.manual_seed(3)

    class Model(nn.Module):
        def __init__(self, args):
            super().__init__()
            self.mix, self.carry, self.inject = nn.Linear(6, 6), nn.Linear(4, 4), nn.Linear(8, 6)
            self.down, self.drop = nn.Linear(6, 4), lib.VariationalDropout(0.1)
            self.head = nn.Linear(10, 1)
            self.deq = lib.get_deq(args)
            lib.apply_norm(self, "weight_norm", filter_out=["inject", "head"])

        def forward(self, x):
            lib.reset_deq(self)
            u = self.inject(x)

            def func(a, b):
                a = torch.tanh(0.5 * self.mix(a) + u)
                return a, torch.tanh(0.5 * self.carry(b) + self.down(self.drop(a)))

            states, info = self.deq(func, (torch.zeros_like(u), torch.zeros(len(x), 4)))
            at = states[-1][0].detach().requires_grad_()
            jac = lib.jac_reg(func(at, states[-1][1].detach())[0], at, vecs=2)
            return [self.head(torch.cat(state, 1)) for state in states], jac, info

    parser = argparse.ArgumentParser()
    lib.add_deq_args(parser)
    model = Model(parser.parse_args("--f_solver anderson --n_states 3 --f_max_iter 30 --tau 0.8".split()))
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    x = torch.randn(32, 8)
    y = x.sum(1, keepdim=True).tanh()
    for _ in range(steps):
        outs, jac, info = model(x)
        loss = lib.fp_correction(nn.functional.mse_loss, (outs, y), gamma=0.8) + 0.1 * jac
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    lib.remove_norm(model)
    model.eval()
    outs, _, info = model(x)
    return len(outs), nn.functional.mse_loss(outs[-1], y).item(), info


def test_the_script_runs_with_our_module():
    states, loss, info = script(door, steps=40)
    assert states == 1
    assert loss < 0.1
    assert info["nstep"].shape == info["abs_lowest"].shape == info["rel_lowest"].shape == (32,)
    assert info["abs_lowest"].max() < 1e-3


def test_the_same_script_runs_with_both():
    (ours, our_loss, our_info), (their_states, their_loss, their_info) = script(door), script(theirs())
    assert ours == their_states
    assert abs(our_loss - their_loss) < 0.1
    for key in ("nstep", "abs_lowest", "rel_lowest"):
        assert our_info[key].shape == their_info[key].shape
        assert our_info[key].dtype == their_info[key].dtype


@pytest.mark.parametrize("solver", ["fixed_point_iter", "simple_fixed_point_iter", "anderson", "broyden"])
def test_fixed_points_are_the_same_and_gradients_by_ift_too(solver):
    lib, cell = theirs(), Cell().double()
    x = torch.randn(4, 5, dtype=torch.float64)
    found = []
    for module in (door, lib):
        deq = module.get_deq(f_solver=solver, b_solver=solver.removeprefix("simple_"), ift=True, **TIGHT)
        states, info = deq(lambda z: cell(z, x), torch.zeros_like(x))
        assert len(states) == 1
        found.append((states[-1], torch.autograd.grad(states[-1].square().sum(), list(cell.parameters()))))
        assert info["nstep"].shape == (4,)
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-6, rtol=0)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=0)


def finite_difference(cell, x, loss):
    """dL/dW of the fixed point by central differences in float64, of 400 plain steps."""

    def value():
        z = torch.zeros_like(x)
        for _ in range(400):
            z = cell(z, x)
        return loss(z)

    W, g, h = cell.W.weight, torch.zeros_like(cell.W.weight), 1e-6
    with torch.no_grad():
        for i in range(W.numel()):
            W.view(-1)[i] += h
            up = value()
            W.view(-1)[i] -= 2 * h
            g.view(-1)[i] = (up - value()) / (2 * h)
            W.view(-1)[i] += h
    return g


def by_default(lib, cell, x, **options):
    states, _ = lib.get_deq(**options)(lambda z: cell(z, x), torch.zeros_like(x))
    return torch.autograd.grad(states[-1].square().sum(), cell.W.weight)[0]


def test_the_gradient_is_right_by_default():
    cell, x = Cell().double(), torch.randn(4, 5, dtype=torch.float64)
    exact = finite_difference(cell, x, lambda z: z.square().sum())
    error = (by_default(door, cell, x) - exact).norm() / exact.norm()
    assert error < 5e-3  # as it comes, f_tol=1e-3
    assert (by_default(door, cell, x, **TIGHT) - exact).norm() < 1e-7 * exact.norm()
    assert (by_default(door, cell, x, grad=1) - exact).norm() > 0.05 * exact.norm()


def test_nearer_than_torchdeqs_default_and_the_same_where_one_step_is_asked_for():
    lib, cell, x = theirs(), Cell().double(), torch.randn(4, 5, dtype=torch.float64)
    exact = finite_difference(cell, x, lambda z: z.square().sum())
    ours, other = (by_default(module, cell, x) for module in (door, lib))
    assert (ours - exact).norm() < 0.1 * (other - exact).norm()
    for asked in ({"grad": 1}, {"ift": False}, {"grad": 3, "tau": 0.7}, {"grad": [2]}):
        ours, other = (by_default(module, cell, x, **asked, **TIGHT) for module in (door, lib))
        torch.testing.assert_close(ours, other, atol=1e-6, rtol=0)


def test_options_come_by_name_namespace_dict_or_object():
    parser = argparse.ArgumentParser()
    door.add_deq_args(parser)
    parser.add_argument("--lr", default=0.1)
    parsed = parser.parse_args(["--f_max_iter", "7", "--f_tol", "1e-4", "--f_stop_mode", "rel", "--indexing", "2", "5"])
    assert door.get_deq(parsed).options == Options(f_max_iter=7, f_tol=1e-4, f_stop_mode="rel", indexing=[2, 5])
    assert door.get_deq(parsed, f_max_iter=9).options.f_max_iter == 9
    assert parsed.f_max_iter == 7  # torchdeq writes into what it is given
    assert door.get_deq({"f_max_iter": 3, "epochs": 5}).options == Options(f_max_iter=3)
    assert door.get_deq(type("Config", (), {})()).options == Options()
    for flag, option in ((["--ift"], {"ift": True}), (["--grad", "2"], {"grad": [2]}), ([], {})):
        assert door.get_deq(parser.parse_args(flag)).options == Options(**option)


def test_the_parser_has_torchdeqs_arguments_with_its_defaults_but_three():
    parsed = []
    for module in (door, theirs()):
        parser = argparse.ArgumentParser()
        module.add_deq_args(parser)
        parsed.append(vars(parser.parse_args([])))
    ours, other = parsed
    assert set(ours) == set(other)
    differing = {name for name in ours if ours[name] != other[name] and not ours[name] == () == tuple(other[name])}
    assert differing == {"b_solver", "ift", "grad"}


def test_an_unknown_option_is_an_error_with_a_suggestion():
    with pytest.raises(KoopsimError, match=r"no option 'f_max_iters'.*'f_max_iter'"):
        door.get_deq(f_max_iters=3)
    for args in ({"f_solvr": "anderson"}, argparse.Namespace(f_solvr="anderson", lr=0.1)):
        with pytest.raises(KoopsimError, match=r"'f_solvr'.*Did you mean 'f_solver'"):
            door.get_deq(args)
    of_the_script = argparse.Namespace(n_stages=3, n_steps=9, max_iter=5, eval_freq=2, grad_clip=1.0, d_max_iter=1)
    assert door.get_deq(of_the_script).options == Options()
    assert door.get_deq(indexing=None, sup_loc=None, no_stat=None, grad=None).options == Options()
    with pytest.raises(KoopsimError, match=r"solver 'andersen'.*'anderson'"):
        door.get_deq(f_solver="andersen")
    with pytest.raises(TypeError, match="solver_kwarg"):
        door.get_deq()(lambda z: z / 2, torch.ones(2, 3), solver_kwarg={})
    with pytest.raises(KoopsimError, match="no setting 'mm'"):
        door.get_deq(f_solver="anderson")(lambda z: z / 2, torch.ones(2, 3), solver_kwargs={"mm": 3})
    assert door.get_deq(gamma=0.9, norm_type="none").options == Options()  # torchdeq's, for its other calls
    assert not set(OTHERS) & set(vars(Options()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sup_gap": 2, "grad": 4}, "n_states="),
        ({"sup_loc": [1], "grad": 4}, "indexing="),
        ({"core": "slices"}, "'sliced'"),
        ({"f_stop_mode": "relative"}, "'rel'"),
        ({"b_stop_mode": "x"}, "Known: abs, rel"),
        ({"grad": 0}, "from 1 on"),
        ({"grad": "3"}, "from 1 on"),
        ({"grad": [1, 2]}, "2 numbers for 1 states"),
        ({"tau": 1.5}, "in (0, 1]"),
        ({"indexing": [5, 3]}, "rising"),
        ({"indexing": [50]}, "below 40"),
        ({"f_max_iter": 0}, "at least 1|rising"),
        ({"f_tol": 0}, "positive"),
    ],
)
def test_what_cannot_be_done_is_refused(options, message):
    message = message.replace("(", r"\(").replace("]", r"\]")
    with pytest.raises(KoopsimError, match=message):
        door.get_deq(**options)


def test_settings_and_names_that_cannot_be_are_refused():
    deq = door.get_deq(f_solver="anderson")
    for setting in ("lam", "ls", "return_final", "tol", "stop_mode", "indexing"):
        with pytest.raises(KoopsimError, match=f"{setting}=1, which is not taken: .+"):
            deq(lambda z: z / 2, torch.ones(2, 3), solver_kwargs={setting: 1})
    for name in door._REFUSED:
        with pytest.raises(KoopsimError, match=f"torchdeq's {name} has no counterpart here: .+"):
            exec(f"from koopsim.implicit.torchdeq import {name}")
    with pytest.raises(ImportError):
        exec("from koopsim.implicit.torchdeq import nothing_of_the_kind")
    with pytest.raises(KeyError, match="Tolerance"):
        deq(lambda z: z / 2, torch.ones(2, 3))[1]["abs_trace"]


def test_every_public_name_of_torchdeq_is_here_or_refused():
    lib = theirs()
    named = {name for name in dir(lib) if not name.startswith("_") and callable(getattr(lib, name))}
    assert named == (set(door.__all__) | set(door._REFUSED)) - {"Equilibrium"}


def test_solver_settings_reach_the_solver():
    x = torch.randn(3, 5)
    cell = Cell()
    deq = door.get_deq(f_max_iter=100)
    steps = [
        deq(lambda z: cell(z, x), torch.zeros_like(x), solver_kwargs=kwargs)[1]["nstep"].max()
        for kwargs in ({}, {"tau": 0.5}, {"f_max_iter": 100, "return_final": False})
    ]
    assert steps[1] > steps[0] == steps[2]
    with pytest.warns(UnconvergedWarning):
        assert (deq(lambda z: cell(z, x), torch.zeros_like(x), solver_kwargs={"f_max_iter": 2})[1]["nstep"] == 2).all()
    deq(lambda z: cell(z, x), torch.zeros_like(x), solver_kwargs={"f_max_iter": 2})  # said once by a layer
    for solver, setting in (("anderson", "m"), ("broyden", "LBFGS_thres")):
        with pytest.raises(KoopsimError, match="memory=0"):
            door.get_deq(f_solver=solver)(lambda z: cell(z, x), torch.zeros_like(x), solver_kwargs={setting: 0})
    every = door.get_deq(f_solver="simple_fixed_point_iter", f_max_iter=25)
    cell, x = cell.double(), x.double()  # in float32 some step before the last is as good as any
    assert (every(lambda z: cell(z, x), torch.zeros_like(x))[1]["nstep"] == 25).all()


@pytest.mark.parametrize("core", ["sliced", "indexing"])
def test_states_on_the_way(core):
    cell, x = Cell().double(), torch.randn(4, 5, dtype=torch.float64)
    limit, _ = door.get_deq(**TIGHT)(lambda z: cell(z, x), torch.zeros_like(x))
    deq = door.get_deq(core=core, indexing=[2, 5], f_max_iter=100, f_tol=1e-9)
    states, info = deq(lambda z: cell(z, x), torch.zeros_like(x))
    errors = [(state - limit[-1]).norm().item() for state in states]
    assert len(errors) == 3
    assert errors[0] > 2 * errors[1] > 1e3 * errors[2]
    for state in states:
        assert torch.autograd.grad(state.sum(), cell.U.weight, retain_graph=True)[0].norm() > 0
    one, _ = door.get_deq(**TIGHT)(lambda z: cell(z, x), torch.zeros_like(x))
    exact, own = (torch.autograd.grad(z[-1].sum(), cell.U.weight)[0] for z in (one, states))
    torch.testing.assert_close(own, exact, atol=1e-5, rtol=0)  # the last one's is implicit
    assert info["abs_lowest"].max() < 1e-9
    evenly = door.get_deq(core=core, n_states=3, f_max_iter=10, f_tol=1e-9, grad=[1, 2, 3])
    with pytest.warns(UnconvergedWarning):
        assert len(evenly(lambda z: cell(z, x), torch.zeros_like(x))[0]) == 3
    assert len(evenly.eval()(lambda z: cell(z, x), torch.zeros_like(x))[0]) == 1
    pair = door.get_deq(core=core, n_states=2, f_max_iter=10, f_tol=1e-9, grad=[2, 5])
    assert [pair._steps(k) for k in range(2)] == [2, 5]


def test_a_step_that_a_solve_does_not_come_to_has_no_state():
    cell, x = Cell(), torch.randn(4, 5)
    taken = int(door.get_deq()(lambda z: cell(z, x), torch.zeros_like(x))[1]["nstep"].max())
    for last, count in ((taken, 3), (taken + 1, 2), (taken + 2, 2)):
        deq = door.get_deq(core="indexing", indexing=[2, last])
        for recording in (True, False):
            with torch.set_grad_enabled(recording):
                assert len(deq(lambda z: cell(z, x), torch.zeros_like(x))[0]) == count


@pytest.mark.parametrize("core", ["sliced", "indexing"])
def test_torchdeqs_states_on_the_way_are_as_near(core):
    """Of plain iteration both come by the same points, ours one evaluation on at most."""
    lib, cell, x = theirs(), Cell().double(), torch.randn(4, 5, dtype=torch.float64)
    limit = door.get_deq(**TIGHT)(lambda z: cell(z, x), torch.zeros_like(x))[0][-1]
    options = {"core": core, "n_states": 3, "f_max_iter": 30, "f_tol": 1e-12}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)
        far = [
            [(z - limit).norm().item() for z in module.get_deq(**options)(lambda z: cell(z, x), torch.zeros_like(x))[0]]
            for module in (door, lib)
        ]
    assert len(far[0]) == len(far[1]) == 3
    for ours, other in zip(*far, strict=True):
        assert ours < 30 * other


def test_states_of_several_tensors():
    torch.manual_seed(1)
    A, B = nn.Linear(3, 3), nn.Linear(8, 3)
    x = torch.randn(5, 3)
    seen = []

    def func(a, b, c):
        seen.append((a.shape, b.shape, c.shape))
        return [torch.tanh(A(a) / 3 + x), torch.cos(b / 2), (B(torch.flatten(b, 1)) / 4).sum(1) / 5 + c / 3]

    start = (torch.zeros(5, 3), torch.zeros(5, 2, 4), torch.zeros(5))
    states, info = door.get_deq(f_solver="broyden", f_tol=1e-5)(func, start)
    assert isinstance(states[-1], list)
    assert {tuple(map(tuple, shapes)) for shapes in seen} == {((5, 3), (5, 2, 4), (5,))}
    for got, again in zip(states[-1], func(*states[-1]), strict=True):
        torch.testing.assert_close(got, again, atol=1e-4, rtol=0)
    assert info["abs_lowest"].shape == (5,)
    sum(part.sum() for part in states[-1]).backward()
    assert A.weight.grad.norm() > 0
    assert B.weight.grad.norm() > 0


@pytest.mark.parametrize("mode", ["abs", "rel"])
def test_of_several_tensors_nothing_is_left_above_the_tolerance(mode):
    """torchdeq's residual is of all parts together, and each part's by itself is small too where it is relative."""
    start = tuple(torch.ones(3, n) for n in (2, 3, 4, 5))
    for rate in (0.5, 0.6, 0.7, 0.8):

        def func(*parts, rate=rate):
            return [rate * part + 0.1**k for k, part in enumerate(parts)]

        (z,), info = door.get_deq(f_stop_mode=mode, f_max_iter=100)(func, start)
        assert info[f"{mode}_lowest"].max() <= 1e-3
        if mode == "rel":
            for fz, part in zip(func(*z), z, strict=True):
                assert ((fz - part).norm(dim=1) <= 1.001e-3 * fz.norm(dim=1)).all()


def test_eval_mode():
    cell, x = Cell(), torch.randn(4, 5)
    deq = door.get_deq(f_max_iter=3, eval_factor=20, n_states=3).eval()
    states, info = deq(lambda z: cell(z, x), torch.zeros_like(x), sradius_mode=True)
    assert len(states) == 1
    assert 3 < info["nstep"].max() <= 60
    radius = spectral_radius(lambda z: cell(z, x), states[0], 100)
    torch.testing.assert_close(info["sradius"], radius, rtol=0.05, atol=0)
    assert states[0].requires_grad  # torchdeq's has none
    with torch.no_grad():
        (z,), info = deq(lambda z: cell(z, x), torch.zeros_like(x))
    assert info["sradius"].tolist() == [-1]
    torch.testing.assert_close(info["abs_lowest"], (cell(z, x) - z).norm(dim=1))
    few = door.get_deq(f_max_iter=50, eval_f_max_iter=2).eval()
    with pytest.warns(UnconvergedWarning):
        assert (few(lambda z: cell(z, x), torch.zeros_like(x))[1]["nstep"] == 2).all()


def test_a_forward_costs_no_evaluation_more_than_our_own():
    from koopsim.implicit import DEQ, Backward, Tolerance

    cell, x, calls = Cell(), torch.randn(4, 5), []

    def func(z):
        calls.append(1)
        return cell(z, x)

    door.get_deq(f_solver="anderson")(func, torch.zeros_like(x))
    ours = len(calls)
    own = DEQ(func, "anderson", 40, Tolerance(1e-3, "absolute"), backward=Backward(tol=1e-6))
    own(z0=torch.zeros_like(x))
    assert ours == len(calls) - ours - 1  # a function with parameters is not asked whether it has any


def test_the_backward_solve_is_told():
    cell, x, told = Cell(), torch.randn(4, 5), []
    (z,), _ = door.get_deq()(lambda z: cell(z, x), torch.zeros_like(x), backward_writer=told.append)
    assert not told
    z.mean().mul(1e-6).backward()
    assert len(told) == 1
    assert told[0]["rel_lowest"].max() < 1e-6  # whatever the scale of the loss
    assert told[0]["nstep"].min() > 3


def test_jac_reg_is_torchdeqs_and_ours():
    lib, cell, x = theirs(), Cell(), torch.randn(4, 5)
    z = torch.randn(4, 5, requires_grad=True)
    values = []
    for make in (door.jac_reg, lib.jac_reg):
        torch.manual_seed(5)
        values.append(make(cell(z, x), z, vecs=3))
        assert torch.autograd.grad(values[-1], cell.W.weight, retain_graph=True)[0].norm() > 0
    torch.testing.assert_close(values[0], values[1])
    torch.manual_seed(5)
    torch.testing.assert_close(jacobian_penalty(lambda z: cell(z, x), z, 3), values[0])
    assert not door.jac_reg(cell(z, x), z, create_graph=False).requires_grad
    with pytest.raises(KoopsimError, match="requires a gradient"):
        door.jac_reg(cell(z, x), z.detach())
    with pytest.raises(RuntimeError, match="not have been used"):
        door.jac_reg(cell(z, x), torch.zeros(4, 5, requires_grad=True))


def test_power_method():
    lib = theirs()
    A = torch.diag(torch.tensor([0.9, 0.3, -0.1]))
    z = torch.randn(2, 3, requires_grad=True)
    for make in (door.power_method, lib.power_method):
        vector, radius = make(z @ A, z, n_iters=60)
        torch.testing.assert_close(radius, torch.full((2,), 0.9))
        torch.testing.assert_close(vector.abs(), torch.tensor([1.0, 0.0, 0.0]).expand(2, 3))
    turn = 0.8 * torch.tensor([[0.0, 1.0], [-1.0, 0.0]])  # a complex pair: torchdeq's quotient is 0
    w = torch.randn(2, 2, requires_grad=True)
    torch.testing.assert_close(door.power_method(w @ turn, w)[1], torch.full((2,), 0.8))


def test_fp_correction():
    lib = theirs()
    states, y, mask = [torch.randn(3, 4) for _ in range(3)], torch.randn(3, 4), torch.rand(3, 4)

    def crit(x, y, mask):
        return ((x - y) * mask).abs().mean()

    for settings in ({}, {"gamma": 0.5}, {"weight_func": "linear", "gamma": 0.4, "bias": 0.2}):
        ours, other = (m.fp_correction(crit, (states, y, mask), **settings) for m in (door, lib))
        torch.testing.assert_close(ours, other)
    plain = [crit(state, y, mask) for state in states]
    torch.testing.assert_close(door.fp_correction(crit, (states, y, mask), weight_func="const", c=2.0), 2 * sum(plain))
    loss, values = door.fp_correction(crit, (states, y, mask), return_loss_values=True)
    assert values == [p.item() for p in plain]
    torch.testing.assert_close(loss, 0.64 * plain[0] + 0.8 * plain[1] + plain[2])
    door.register_weight_func("last", lambda n, k: float(k == n - 1))
    torch.testing.assert_close(door.fp_correction(crit, (states, y, mask), "last"), plain[2])
    for bad in ({"weight_func": "expo"}, {"gama": 0.3}):
        with pytest.raises(KoopsimError, match="Did you mean"):
            door.fp_correction(crit, (states, y, mask), **bad)
    with pytest.raises(KoopsimError, match="a state or more"):
        door.fp_correction(crit, ([], y, mask))


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize("options", [{}, {"learn_scale": False, "target_norm": 0.6}])
def test_norms_are_torchdeqs(kind, options):
    lib, pair = theirs(), []
    for module in (door, lib):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, 4), nn.Conv2d(3, 5, 3), nn.Linear(4, 4))
        module.apply_norm(model, kind, filter_out="2", **options)
        for _ in range(50):  # power iterations
            module.reset_norm(model)
            _ = model[0].weight, model[1].weight
        pair.append(model)
    ours, other = pair
    for layer in (0, 1):
        torch.testing.assert_close(ours[layer].weight, other[layer].weight, atol=1e-3, rtol=0)
        count = [sum(p.numel() for p in model[layer].parameters() if p.requires_grad) for model in pair]
        assert count[0] == count[1]
    assert isinstance(ours[2].weight, nn.Parameter)
    before = ours[0].weight.detach().clone()
    door.remove_norm(ours)
    assert isinstance(ours[0].weight, nn.Parameter)
    torch.testing.assert_close(ours[0].weight.detach(), before, atol=1e-5, rtol=0)


def test_what_norms_are_asked_for():
    door.apply_norm(model := nn.Sequential(nn.Linear(2, 2)), "none")
    assert isinstance(model[0].weight, nn.Parameter)
    door.apply_norm(model, args=argparse.Namespace(norm_type="spectral_norm", norm_no_scale=True, norm_target_norm=0.5))
    assert torch.linalg.matrix_norm(model[0].weight.detach(), 2) == pytest.approx(0.5, rel=0.05)
    for options in ({"norm_type": "weight"}, {"clip": True}, {"n_power_iterations": 3}, {"target": 2}):
        with pytest.raises(KoopsimError):
            door.apply_norm(nn.Sequential(nn.Linear(2, 2)), **options)
    with pytest.raises(KoopsimError, match="no linear"):
        door.apply_norm(nn.Sequential(nn.Linear(2, 2)), prefix_filter_out=["0"])


@pytest.mark.parametrize("name", [f"Variational{kind}{n}d" for kind in ("Dropout", "DropToken") for n in (1, 2, 3)])
@pytest.mark.parametrize("token_first", [True, False])
def test_dropouts_share_what_torchdeqs_share(name, token_first):
    lib = theirs()
    x = torch.ones(6, *range(2, 3 + int(name[-2])))
    masks = []
    for module in (door, lib):
        dropout = getattr(module, name)(dropout=0.5, token_first=token_first)
        first = dropout(x)
        assert torch.equal(dropout(x), first)  # until it is reset
        masks.append(dropout.mask)
        module.reset_dropout(nn.Sequential(dropout))
        assert dropout.mask is None
        assert torch.equal(dropout.eval()(x), x)
    assert masks[0].shape == masks[1].shape
    assert set(masks[0].unique().tolist()) <= {0.0, 2.0}
    usual = [getattr(module, name)() for module in (door, lib)]
    for dropout in usual:
        dropout(x)
    assert usual[0].mask.shape == usual[1].mask.shape
    assert set(usual[0].mask.unique().tolist()) <= {0.0, 2.0}, "half of them"


def test_a_plain_dropout_drops_half():
    torch.manual_seed(0)
    assert door.VariationalDropout()(torch.ones(4, 1000)).unique().tolist() == [0, 2]


def test_one_mask_holds_for_all_states_of_a_call():
    cell, drop, x = Cell(), door.VariationalDropout(dropout=0.1), torch.randn(4, 5)
    assert isinstance(drop, VariationalDropout)
    masks = []

    def func(z):
        z = drop(cell(z, x))
        masks.append(drop.mask)
        return z

    deq = door.get_deq(n_states=3, f_max_iter=300)
    deq(func, torch.zeros_like(x))
    assert len({id(mask) for mask in masks}) == 1
    deq(func, torch.zeros_like(x))
    assert len({id(mask) for mask in masks}) == 2  # the next call's is drawn without a reset


def test_a_module_of_ones_own_is_called_as_a_function_only():
    """Methods that a cell of ours may have are somebody else's in a script of torchdeq's."""

    class Layer(nn.Module):
        def prepare(self, x):
            raise AssertionError

        initial = prepare

        def forward(self, z):
            return z / 2 + 1

    (z,), _ = door.get_deq()(Layer(), torch.zeros(2, 3))
    torch.testing.assert_close(z, torch.full((2, 3), 2.0), atol=2e-3, rtol=0)


def test_a_start_and_a_checkpoint():
    z = door.mixed_init((50, 40))
    assert 0.4 < (z == 0).float().mean() < 0.6
    assert 0.8 < z[z != 0].std() < 1.2
    cell, x, calls = Cell(), torch.randn(3, 5), []

    def counted(z, x):
        calls.append(1)
        return cell(z, x)

    z = torch.zeros(3, 5, requires_grad=True)
    plain = torch.autograd.grad(cell(z, x).sum(), [z, *cell.parameters()])
    kept = torch.autograd.grad(door.mem_gc(counted, (z, x)).sum(), [z, *cell.parameters()])
    torch.testing.assert_close(kept, plain)
    assert len(calls) == 2


def test_it_is_imported_only_when_asked_for():
    code = "import sys, koopsim.implicit; assert 'koopsim.implicit.torchdeq' not in sys.modules; "
    code += "import koopsim.implicit.torchdeq; assert 'torchdeq' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert importlib.import_module("koopsim.implicit.torchdeq") is door
