"""Solves small enough to work out by hand: how many steps, where each stops, what a threshold decides."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ, Backward, Reversible, UnconvergedWarning, anderson, broyden, newton, picard
from koopsim.implicit import info as info_file
from koopsim.implicit.gradient import Neumann, Phantom, pulled
from koopsim.implicit.info import DEQInfo, Info
from koopsim.implicit.iteration import Tolerance, numbers
from koopsim.implicit.ledger import HostLedger, Ledger, ledger_of
from koopsim.implicit.outside import seen_by
from koopsim.implicit.solvers import _combine, _dots, _lengths
from koopsim.implicit.splitting import Projection, Sweep, Until, split
from koopsim.implicit.state import described, packing_of

F64 = torch.float64


def halving(z):
    """From 0: 0, 1, 3/2, 7/4, ...; in step n the residual is 2^(1 - n)."""
    return z / 2 + 1


class Halving:
    """rate z + 1 with a rate a sample; notes how many samples it is asked for."""

    worthwhile = 0.5

    def __init__(self, rate, asked):
        self.rate, self.asked = rate, asked

    def __call__(self, z):
        self.asked.append(len(z))
        return self.rate * z + 1

    def rows(self, index):
        return Halving(self.rate[index], self.asked)


@pytest.mark.parametrize("books", [HostLedger, Ledger])
def test_a_residual_at_the_tolerance_is_not_below_it(books, monkeypatch):
    monkeypatch.setattr("koopsim.implicit.iteration.ledger_of", books)
    tol = Tolerance(2.0**-6, "absolute")
    _, info = picard(halving, torch.zeros(1, 1, dtype=F64), max_steps=20, tol=tol)
    assert (info.steps.item(), info.residuals.item(), info.converged.item()) == (8, 2.0**-7, True)
    z, info = picard(halving, torch.zeros(1, 1, dtype=F64), max_steps=7, tol=tol)
    assert (info.steps.item(), info.residuals.item(), info.converged.item()) == (7, 2.0**-6, False)
    assert z.item() == 2 - 2.0**-5
    _, info = picard(halving, torch.zeros(1, 1, dtype=F64), max_steps=1, tol=tol)
    assert (info.steps.item(), info.residuals.item()) == (1, 1.0)
    _, info = picard(halving, torch.zeros(2, 4), max_steps=3, tol=Tolerance(1e-3, sizes=(4,)))
    assert info.parts is None  # of one part: it is the residual


def test_a_reversible_residual_at_the_tolerance_is_not_below_it():
    """f = 1 from 0 with b = 1/2: z = 1/2, 3/4, 7/8, and the residual is what is left."""
    for steps, want in ((10, (3, 2.0**-3, True)), (2, (2, 2.0**-2, False))):
        deq = DEQ(lambda z: torch.ones_like(z), max_steps=steps, tol=Tolerance(0.25, "absolute"), gradient=Reversible())
        deq._warned.add("forward")
        z, info = deq(z0=torch.zeros(1, 1, dtype=F64))
        assert (info.steps.item(), info.residuals.item(), info.converged.item()) == want
        assert z.item() == 1 - want[1]
        assert info.forward.parts is None


def test_books_by_device_and_numbers_of_a_device_stay_there(monkeypatch):
    assert type(ledger_of(torch.zeros(2, 3), Tolerance())) is HostLedger
    away = torch.empty(2, 8, device="meta")
    assert numbers(away) is away
    monkeypatch.setattr("koopsim.implicit.ledger.Ledger", lambda z, tol: "tensors")
    assert ledger_of(away, Tolerance()) == "tensors"
    g, fz = torch.ones(2, 8), torch.full((2, 8), 2.0)
    host = Tolerance(1e-3, "relative", (3, 5)).residuals(g, fz, g[:, :1])
    monkeypatch.setattr("koopsim.implicit.iteration.numbers", lambda tensor: tensor)
    parts = Tolerance(1e-3, "relative", (3, 5)).residuals(g, fz, g[:, :1])
    assert isinstance(parts, torch.Tensor)
    torch.testing.assert_close(parts, torch.full((2, 2), 0.5))
    torch.testing.assert_close(torch.from_numpy(host), parts)


def test_a_map_narrows_when_just_its_share_is_left():
    """Two of four are done in step 2; the others need 1 / (2^n - 1) < 0.01, seven steps."""
    asked, rate = [], torch.tensor([0.0, 0.0, 0.5, 0.5], dtype=F64).unsqueeze(1)
    _, info = picard(Halving(rate, asked), torch.zeros(4, 1, dtype=F64), max_steps=20, tol=0.01)
    assert asked == [4, 4, 2, 2, 2, 2, 2]
    assert info.steps.tolist() == [2, 2, 7, 7]


def test_starts_that_are_none_and_options_at_their_bounds():
    with pytest.raises(KoopsimError, match="samples first"):
        picard(halving, torch.tensor(1.0), max_steps=3, tol=1e-3)
    z0 = torch.zeros(1, 1, dtype=F64)
    for bad in ({"delay": -1}, {"mixing": -1.0}, {"memory": 0}):
        with pytest.raises(KoopsimError, match="expected"):
            anderson(halving, z0, max_steps=3, tol=1e-3, **bad)
    with pytest.raises(KoopsimError, match="krylov=0"):
        newton(halving, z0, max_steps=3, tol=1e-3, krylov=0)
    assert newton(halving, z0, max_steps=3, tol=1e-3, krylov=1)[0].isfinite().all()
    for make in (lambda: Neumann(damping=0.0), lambda: Reversible(0.0), lambda: DEQ(halving, max_steps=2.5)):
        with pytest.raises(KoopsimError, match="expected"):
            make()
    assert (Phantom(1, 1.0).steps, DEQ(halving, max_steps=1).limits) == (1, (1, 1))


def test_anderson_that_remembers_one_point_is_the_plain_iteration():
    W = 0.6 * torch.linalg.qr(torch.randn(4, 4, dtype=F64)).Q
    f = lambda z: torch.tanh(z @ W + 1)  # noqa: E731
    z0 = torch.zeros(3, 4, dtype=F64)
    for got, want in zip(anderson(f, z0, max_steps=9, tol=1e-12, memory=1),
                         picard(f, z0, max_steps=9, tol=1e-12), strict=True):  # fmt: skip
        if isinstance(want, torch.Tensor):
            assert torch.equal(got, want)
        else:
            assert torch.equal(got.residuals, want.residuals)


def test_andersons_penalty_is_a_hundred_machine_precisions_unless_said():
    f = lambda z: torch.tanh(z @ W + 1)  # noqa: E731
    W, z0 = 0.9 * torch.linalg.qr(torch.randn(6, 6)).Q, torch.zeros(5, 6)
    answers = [anderson(f, z0, max_steps=9, tol=1e-9, **ridge)[0]
               for ridge in ({}, {"ridge": 100 * 2.0**-23}, {"ridge": 101 * 2.0**-23})]  # fmt: skip
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])


@pytest.mark.parametrize(
    ("sizes", "plain"),
    [
        ((1, 2, 3, 4, 0.5, 0.6), [True, False, True, True, False]),
        ((1, 1, 1, 1, 0.5, 0.6), [True, False, True, True, False]),
    ],
)
def test_anderson_takes_plain_steps_once_its_memory_is_full_of_no_better_points(sizes, plain):
    """Residuals of these sizes, this way and that: with room for two, the third and fourth step are plain."""
    g = torch.tensor([[size, 0] if k % 2 else [0, size] for k, size in enumerate(sizes)], dtype=F64)
    seen = []
    f = lambda z: seen.append(z[0].clone()) or z + g[len(seen) - 1]  # noqa: E731
    anderson(f, torch.zeros(1, 2, dtype=F64), max_steps=6, tol=Tolerance(1e-9, "absolute"), memory=2, delay=0)
    assert [torch.allclose(seen[k + 1], seen[k] + g[k], rtol=0, atol=1e-12) for k in range(5)] == plain


def test_anderson_solves_a_line_in_two_points():
    """One dimension: after the delay, two points give the fixed point of a line exactly, whatever its slope."""
    seen = []
    f = lambda z: seen.append(z.item()) or -3 * z + 8  # noqa: E731
    z, info = anderson(f, torch.zeros(1, 1, dtype=F64), max_steps=9, tol=1e-9, delay=1)
    assert seen[:3] == [0.0, 8.0, -16.0]
    assert info.steps.item() == 4
    torch.testing.assert_close(z, torch.full((1, 1), 2.0, dtype=F64))


def test_broydens_second_step_is_the_secants():
    """f = z / 4 + 3 from 0: 0, 3, and then s.w / s.s = 1/4, w = g = 3/4, a step of (3/4) / (3/4): there it is."""
    seen = []
    f = lambda z: seen.append(z.item()) or z / 4 + 3  # noqa: E731
    z, info = broyden(f, torch.zeros(1, 1, dtype=F64), max_steps=9, tol=1e-12)
    assert seen == [0.0, 3.0, 4.0]
    assert (z.item(), info.steps.item(), info.residuals.item()) == (4.0, 3, 0.0)


@np.errstate(all="ignore")
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_a_correction_that_would_make_broyden_singular_is_shortened(kind):
    """1 / (1 - theta t) is never beyond 10; without a step there is no correction."""
    tiny = float(torch.finfo(F64).tiny)
    ss = kind(np.array([[1.0], [1.0], [1.0], [2.0], [0.0], [tiny], [1.0]]))
    sw = kind(np.array([[1.0], [1.05], [0.95], [1.0], [3.0], [tiny], [-4.0]]))
    longer, share = (torch.as_tensor(part).squeeze(1) for part in _lengths(ss, sw, tiny))
    torch.testing.assert_close(longer, torch.tensor([10, -10, 10, 2, 1, 1, 0.2], dtype=F64))
    torch.testing.assert_close(share, torch.tensor([0.9, 1.1 / 1.05, 0.9 / 0.95, 0.5, 0, 0, 1], dtype=F64))


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_products_over_a_history(kind):
    history, v, weights = (np.random.default_rng(0).normal(size=shape) for shape in ((3, 4, 5), (3, 5), (3, 4)))
    dots, sums = _dots(kind(history), kind(v)), _combine(kind(weights), kind(history))
    np.testing.assert_allclose(dots, np.einsum("bmd,bd->bm", history, v))
    np.testing.assert_allclose(sums, np.einsum("bm,bmd->bd", weights, history))


@pytest.mark.parametrize("solver", [anderson, broyden, newton])
def test_solvers_answer_the_same_when_all_numbers_are_tensors(solver, monkeypatch):
    """As on a GPU, where nothing is NumPy's."""
    W, x = 0.95 * torch.linalg.qr(torch.randn(6, 6, dtype=F64)).Q, torch.randn(5, 6, dtype=F64)
    x[3], x[4] = torch.nan, 0  # no start, and a fixed point at the start
    f = lambda z: torch.tanh(z @ W + x)  # noqa: E731
    options = {} if solver is newton else {"memory": 3}
    plain = solver(f, torch.zeros_like(x), max_steps=12, tol=1e-7, **options)
    for file in ("iteration", "solvers"):
        monkeypatch.setattr(f"koopsim.implicit.{file}.numbers", lambda tensor: tensor)
    monkeypatch.setattr("koopsim.implicit.iteration.ledger_of", Ledger)
    z, info = solver(f, torch.zeros_like(x), max_steps=12, tol=1e-7, **options)
    torch.testing.assert_close(z, plain[0], rtol=1e-6, atol=1e-7, equal_nan=True)
    assert info.steps.tolist() == plain[1].steps.tolist()
    assert info.steps[3] == 1 == info.steps[4]


def test_newton_looks_as_far_ahead_as_the_point_is_large():
    """The first product is at z + h s with || h s || = sqrt(eps) (1 + || z ||)."""
    seen = []
    f = lambda z: seen.append(z.clone()) or torch.tanh(z) - 2  # noqa: E731
    newton(f, torch.tensor([[3.0, 4.0]], dtype=F64), max_steps=2, tol=1e-9)
    torch.testing.assert_close((seen[1] - seen[0]).norm(), torch.tensor(6 * 2.0**-26, dtype=F64), rtol=1e-6, atol=0)


def test_newton_takes_a_step_that_went_wrong_back_by_half():
    """f = z - arctan z from 2: s = -5 arctan 2 leads to a larger residual, so s / 2 from 2 is next."""
    points = []

    def f(z):
        if not points or abs(z.item() - points[-1]) > 1e-3:  # not a difference quotient's
            points.append(z.item())
        return z - torch.arctan(z)

    z, info = newton(f, torch.full((1, 1), 2.0, dtype=F64), max_steps=20, tol=Tolerance(1e-12, "absolute"))
    step = -5 * np.arctan(2)
    np.testing.assert_allclose(points[:3], [2, 2 + step, 2 + step / 2], rtol=1e-6)
    assert info.converged.all()
    assert abs(z.item()) < 1e-11


# ------------------------------------------------------------ splitting


@pytest.mark.parametrize(
    ("until", "captured", "runs", "steps", "converged"),
    [
        (Until(50, 0.01, 1), False, 6, 6, True),
        (Until(50, 0.01), False, 6, 6, True),
        (Until(50, 0.01, 4), False, 8, 8, True),
        (Until(7, 0.01, 4), False, 7, 7, True),
        (Until(5, 0.01, 1), False, 5, 5, False),
        (Until(9, 0.01, 100), True, 9, 7, True),  # looks at 7, 8 and 9
        (Until(9, 0.01, 1), True, 9, 6, True),
    ],
)
def test_a_splitting_looks_when_it_says(until, captured, runs, steps, converged, monkeypatch):
    """z = z / 2 + 1 from 1: in step k it is 2 - 2^-k and the residual 1 / (2^(k + 1) - 1), below 0.01 from step 6."""
    monkeypatch.setattr("koopsim.implicit.splitting.capturing", lambda: captured)
    calls = []
    T = lambda w: calls.append(1) or w / 2  # noqa: E731
    z, info = split(T, torch.ones(1, 1, dtype=F64), Projection(torch.ones(1, 1), rectify=False), Sweep(False, until))
    assert (len(calls), info.steps.item(), info.converged.item()) == (runs, steps, converged)
    torch.testing.assert_close(z.item(), 2 - 2.0**-runs)
    torch.testing.assert_close(info.residuals.item(), 1 / (2.0 ** (runs + 1) - 1), rtol=1e-6, atol=0)


# ------------------------------------------------------------ DEQ


def test_a_capture_is_asked_of_cuda_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for there in (True, False):
        monkeypatch.setattr(info_file, "torch", SimpleNamespace(cuda=SimpleNamespace(
            is_available=lambda there=there: there, is_current_stream_capturing=lambda: True)))  # fmt: skip
        assert info_file.capturing() is there


def test_a_captured_deq_runs_its_budget_and_says_nothing(monkeypatch):
    for file in ("deq", "iteration"):
        monkeypatch.setattr(f"koopsim.implicit.{file}.capturing", lambda: True)
    x, calls = torch.ones(2, 3, dtype=F64, requires_grad=True), []
    deq = DEQ(lambda z, x: calls.append(1) or 0.9 * z + x, "picard", 30, 1e-9)
    deq.captured_steps = (7, 5)
    z, info = deq(x)
    assert len(calls) == 7 + 1  # and one that is recorded
    z.sum().backward()
    assert (info.steps.max(), info.backward.steps.max()) == (7, 5)
    deq.captured_steps = (99, 5)
    assert deq(x)[1].steps.max() == 30  # never beyond the limit


def test_each_direction_names_its_own_tolerance():
    x = torch.ones(2, 3, requires_grad=True)
    deq = DEQ(lambda z, x: 0.99 * z + x, "picard", 3, 1e-6, backward=Backward("relaxed", 4, 1e-5))
    with pytest.warns(UnconvergedWarning, match="forward solve left 2 of 2 samples above tol=1e-06 after at most 3 "):
        z, _ = deq(x)
    with pytest.warns(UnconvergedWarning, match="backward solve left 2 of 2 samples above tol=1e-05 after at most 4 "):
        z.sum().backward()


def test_only_a_state_that_was_guessed_is_explained():
    class Lost:
        def __call__(self, z, x):
            raise ValueError("lost")

    class Told(Lost):
        def initial(self, x):
            return torch.zeros_like(x)

    x = torch.ones(2, 3)
    for cell, z0, notes in ((Lost(), None, 1), (Lost(), x, 0), (Told(), None, 0)):
        with pytest.raises(ValueError, match="lost") as caught:
            DEQ(cell)(x, z0=z0)
        assert len(getattr(caught.value, "__notes__", [])) == notes
    with pytest.raises(KoopsimError) as refused:
        DEQ(lambda z, x: z[:, :1])(x)
    assert not getattr(refused.value, "__notes__", [])


def test_a_pull_leaves_no_trace_and_may_be_repeated():
    at = torch.ones(2, 3, requires_grad=True)
    tape = at.square()
    for _ in range(2):
        vjp = pulled(tape, at, torch.ones(2, 3))
        assert torch.equal(vjp, torch.full((2, 3), 2.0))
        assert not vjp.requires_grad
    assert at.grad is None


# ------------------------------------------------------------ what a cell sees, and its state


def test_what_a_cell_sees_is_found_wherever_it_stands():
    w = torch.full((3,), 0.5, requires_grad=True)
    z = torch.ones(2, 3)
    assert seen_by(lambda z: torch.ones(2, 3), z) == []
    assert seen_by(lambda z: torch.add(z, other=w), z)[0] is w
    found = []
    thread = threading.Thread(target=lambda: found.extend(seen_by(lambda z: z * w, z)))  # numbers its past from 0
    thread.start()
    thread.join()
    assert found[0] is w


def test_forms_in_words_and_sizes():
    state = {"a": torch.zeros(2, 4, 8), "b": (torch.zeros(2), torch.zeros(2, 0))}
    packing = packing_of(state)
    assert packing.sizes == (32, 1, 0)
    assert described(packing.form) == "{a: 4 x 8, b: (scalars, 0)}"
    assert not packing.single
    with pytest.raises(KoopsimError, match="samples first"):
        packing_of((torch.zeros(2, 3), torch.tensor(1.0)))


def test_a_state_of_several_parts_may_have_no_samples():
    z0 = (torch.zeros(0, 2, 4), torch.zeros(0, 3))
    z, info = DEQ(lambda z: (z[0] / 2, z[1] / 2))(z0=z0)
    assert [tuple(part.shape) for part in z] == [(0, 2, 4), (0, 3)]
    assert info.converged.shape == (0,)


def test_figures_of_a_solve_by_hand():
    """The mean of the steps, the share that is left, the worst residual; a sample cut short needs one step more."""
    forward = Info(torch.tensor([3, 5]), torch.tensor([0.1, 0.7]), torch.tensor([True, False]))
    backward = Info(torch.tensor([2, 2]), torch.tensor([0.1, 0.2]), torch.tensor([True, True]))
    longest = torch.tensor([1, 4])
    report = DEQInfo(forward, backward).figures(longest)
    want = {"solver_steps": 4.0, "unconverged": 0.5, "residual": 0.7,
            "backward_solver_steps": 2.0, "backward_unconverged": 0.0, "backward_residual": 0.2}  # fmt: skip
    assert {name: round(float(value), 6) for name, value in report.items()} == want
    assert longest.tolist() == [6, 4]
    assert set(DEQInfo(forward).figures(longest)) == {"solver_steps", "unconverged", "residual"}


def test_newtons_linear_solves_are_gmres_with_a_full_memory(monkeypatch):
    """n + 2 products end an n-dimensional system; `krylov` may allow fewer."""
    asked, own = [], anderson

    def spied(f, z0, **options):
        asked.append(options)
        return own(f, z0, **options)

    monkeypatch.setattr("koopsim.implicit.solvers.anderson", spied)
    for krylov in (20, 4):
        newton(torch.cos, torch.zeros(1, 3, dtype=F64), max_steps=2, tol=1e-9, krylov=krylov)
    root = 2.0**-26
    assert asked == [{"max_steps": 5, "tol": root, "memory": 20, "delay": 0},
                     {"max_steps": 4, "tol": root, "memory": 4, "delay": 0}]  # fmt: skip


def test_a_reversible_solve_has_the_forward_solves_budget():
    tol = Tolerance(1e-9, "absolute")
    deq = DEQ(halving, max_steps=3, tol=tol, gradient=Reversible(), backward=Backward(max_steps=5))
    with pytest.warns(UnconvergedWarning):
        _, info = deq(z0=torch.zeros(1, 1, dtype=F64))
    assert info.steps.tolist() == [3]


def test_a_reversible_solve_keeps_the_residuals_of_its_parts():
    deq = DEQ(
        lambda z: (z[0] / 2, z[1] / 4 + 1, z[2]), max_steps=3, gradient=Reversible(), tol=Tolerance(1e-9, "absolute")
    )
    deq._warned.add("forward")
    _, info = deq(z0=(torch.ones(2, 1), torch.zeros(2, 1), torch.ones(2, 1)))
    assert info.forward.parts.shape == (2, 3)
    assert (info.forward.parts[:, 2] == 0).all()
    assert torch.equal(info.residuals, info.forward.parts.amax(1))


def test_a_reversible_step_that_was_never_made_is_not_undone():
    w = torch.ones(3, requires_grad=True)
    calls = []
    deq = DEQ(lambda z: calls.append(1) or w * z, gradient="reversible")  # at its fixed point from the start
    z, info = deq(z0=torch.ones(2, 3))
    before = len(calls)
    assert info.steps.tolist() == [0, 0]
    z.sum().backward()
    assert len(calls) == before
    assert (info.backward.residuals == 0).all()
    z, info = deq(z0=torch.ones(0, 3))
    before = len(calls)
    z.sum().backward()  # of no samples there is nothing to undo
    assert len(calls) == before
    assert info.backward.residuals.shape == (0,)


def test_a_reversible_sample_that_is_infinite_stops_where_it_is():
    rate = torch.tensor([[torch.inf], [0.5]])
    deq = DEQ(lambda z: rate * z, max_steps=4, gradient=Reversible(), tol=Tolerance(1e-9, "absolute"))
    deq._warned.add("forward")
    z, info = deq(z0=torch.ones(2, 1))
    assert (info.steps.tolist(), info.residuals[0].item(), z[0].item()) == ([0, 4], torch.inf, 1.0)


def test_plain_steps_are_f_itself_and_mixing_may_go_beyond_it():
    seen = []
    f = lambda z: seen.append(z.clone()) or 0.1 * z + 0.3  # noqa: E731
    z0 = torch.linspace(-70, 90, 60).view(3, 20)
    picard(f, z0, max_steps=4, tol=1e-9)
    anderson(f, z0, max_steps=4, tol=1e-9, delay=1)  # whose first step with a history has one point of it
    for k in (0, 1, 2, 4, 5):
        assert torch.equal(seen[k + 1], 0.1 * seen[k] + 0.3)  # z + (f(z) - z) would be rounded twice
    seen.clear()
    _, info = anderson(lambda z: seen.append(z.item()) or halving(z), torch.zeros(1, 1), max_steps=9, tol=1e-6,
                       memory=1, mixing=2.0, delay=0)  # fmt: skip
    assert seen == [0.0, 2.0]  # 0 + 2 g: the fixed point
    assert info.converged.all()


def test_what_has_just_become_zero_has_not_converged():
    """From 1 to 0 in a step: what moved is all there was, relative to EPS."""
    one, P = torch.ones(1, 1, dtype=F64), Projection(torch.ones(1, 1), rectify=True)
    z, info = split(lambda w: -w, one, P, Sweep(False, Until(1, 0.01)))
    assert (z.item(), info.converged.item()) == (0.0, False)
    torch.testing.assert_close(info.residuals.item(), 1e8)
    z, info = picard(torch.zeros_like, one, max_steps=1, tol=0.01)
    assert (z.item(), info.converged.item()) == (1.0, False)
    torch.testing.assert_close(info.residuals.item(), 1e8)
