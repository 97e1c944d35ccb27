"""Distillation, the warm start and the closed form against equilibria that are known."""

import copy
from dataclasses import replace

import pytest
import torch
from cells import Affine, inputs

from koopsim.bridge import DistillWarning, Lessons, Student, WarmStart, closed_form, compare, distill, examine
from koopsim.bridge.distill import CONSTANT, _no_better, _notes, targets_of
from koopsim.bridge.measures import MeasureReport
from koopsim.bridge.settling import Settling
from koopsim.config import CopyMemoryConfig, MLPConfig, SIMConfig
from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ, TransformerDEQ, UnconvergedWarning
from koopsim.nn import MLP, SIM, build_sim
from koopsim.spectral import Monomials
from koopsim.tasks import build_task


@pytest.fixture(scope="module")
def taught():
    """A tanh DEQ of 16 states and its SIM."""
    deq = DEQ(Affine(16, 3, 0.9, torch.tanh), tol=1e-8, max_steps=100)
    sim, report = distill(deq, inputs(1200, 3), lessons=Lessons(epochs=40))
    return deq, sim, report


def test_distillation_generalises(taught):
    _, sim, report = taught
    assert report.train_error < 0.06
    assert report.heldout_error < 0.08
    assert report.heldout_centred < 0.2
    assert report.inputs == 960
    assert report.heldout == 240
    assert report.unconverged == 0
    assert isinstance(sim, SIM)
    assert sim.h.weight.requires_grad


def test_without_a_readout_the_answer_is_the_state(taught):
    _, sim, _ = taught
    x = inputs(5, 3)
    assert torch.allclose(sim(x), sim.state(x))


@pytest.mark.parametrize("safeguard", [False, True])
@pytest.mark.parametrize("solver", ["anderson", "broyden", "picard"])
def test_warm_start_same_result_fewer_steps(taught, solver, safeguard):
    deq, sim, _ = taught
    deq = DEQ(deq.cell, solver=solver, tol=1e-3, max_steps=200)
    x = inputs(100, 3, seed=5)
    with torch.no_grad():
        z, cold = deq(x)
        w, warm = WarmStart(sim, safeguard)(deq, x)
        deq.tol = 1e-10
        exact, _ = deq(x)
    assert warm.converged.all()
    assert warm.steps.sum() <= 0.8 * cold.steps.sum()
    for point in (z, w):
        assert (point - exact).norm() < 0.01 * exact.norm()


def test_warm_start_gradients(taught):
    _, sim, _ = taught
    cell = Affine(16, 3, 0.9, torch.tanh)
    tight = DEQ(cell, tol=1e-12, max_steps=200)
    warm = WarmStart(sim)
    x = inputs(2, 3, seed=9).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: warm(tight, x)[0], (x,))
    weights = torch.linspace(-1, 1, 32, dtype=torch.float64).view(2, 16)
    grads = []
    for solve in (lambda: warm(tight, x)[0], lambda: tight(x)[0]):
        cell.zero_grad()
        (solve() * weights).sum().backward()
        grads.append(cell.W.grad.clone())
    assert torch.allclose(*grads, rtol=1e-8, atol=1e-10)
    assert all(p.grad is None for p in sim.parameters())


def test_a_useless_start_is_left_out(taught):
    deq, sim, _ = taught
    broken = copy.deepcopy(sim)
    with torch.no_grad():
        broken.nu[-1].bias.fill_(torch.nan)
    x = inputs(4, 3)
    with torch.no_grad():
        z, cold = deq(x)
        w, warm = WarmStart(broken)(deq, x)
    assert torch.equal(z, w)
    assert torch.equal(cold.steps, warm.steps)
    with torch.no_grad():
        broken.nu[-1].bias.fill_(1e6)
        assert torch.equal(WarmStart(broken, safeguard=True).start(deq, x), torch.zeros(4, 16, dtype=torch.float64))


def test_warm_start_refuses_what_does_not_fit():
    deq = DEQ(Affine(4, 3))
    sim = build_sim(SIMConfig(MLPConfig(3, 8), lift_dim=8, hidden=5, outputs=2)).double()
    with pytest.raises(KoopsimError, match="must hold the same"):
        WarmStart(sim)(deq, inputs(2, 3))
    with pytest.raises(KoopsimError, match="needs a SIM"):
        WarmStart(deq)
    fitting = build_sim(SIMConfig(MLPConfig(3, 8), lift_dim=8, hidden=4, outputs=2)).double()
    with pytest.raises(KoopsimError, match="wrap the cell"):
        WarmStart(fitting)(Affine(4, 3), inputs(2, 3))


def test_distilling_a_transformer_keeps_shapes_and_readout():
    torch.manual_seed(0)
    model = TransformerDEQ()
    with torch.no_grad():  # a cell that contracts, and inputs that matter
        model.embedding.mul_(5)
        model.deq.cell.output.gain.mul_(0.1)
        model.deq.cell.outer.gain.mul_(0.3)
    task = build_task(CopyMemoryConfig(horizon=2, train=300, valid=1, test=20))
    x, _ = task.split("train")
    sim, report = distill(model, x, lessons=Lessons(epochs=20), task=task)
    assert report.heldout_centred < 0.8
    assert report.heldout_error < 0.35
    assert report.task_deq is not None
    assert report.task_sim is not None
    assert report.task_sim["loss"] == pytest.approx(report.task_deq["loss"], rel=0.1)
    assert sim.state(x[:2]).shape == (2, 22, 40)
    with torch.no_grad():
        z, cold = model.solve(x)
        w, warm = WarmStart(sim)(model, x)
    assert (z - w).norm() < 0.03 * z.norm()
    assert warm.steps.sum() < 0.8 * cold.steps.sum()
    errors = compare(model, x, sim)
    assert errors["distilled SIM"] < errors["mean"]


def test_closed_form_of_a_transformer():
    """Short sequences, so that all directions can be kept: close, since a cell with small gains is nearly affine."""
    torch.manual_seed(0)
    model = TransformerDEQ(model_dim=8, heads=2, head_dim=4, inner_dim=8)
    with torch.no_grad():
        model.embedding.mul_(50)
        model.deq.cell.output.gain.mul_(0.05)
        model.deq.cell.outer.gain.mul_(0.2)
    x = torch.randint(0, 10, (200, 2))
    errors = compare(model, x, closed=closed_form(model, x[:100], Monomials(1), steps=20))
    assert errors["closed form"] < errors["mean"]


def test_a_readout_and_a_lift_of_ones_own():
    torch.manual_seed(0)
    readout = torch.nn.Linear(4, 2).double()
    deq = DEQ(Affine(4, 3, 0.5), tol=1e-8, max_steps=100)
    x = inputs(60, 3)
    student = Student(MLP(3, 16, 10), lift_dim=10, rank=7, projector=True, readout=readout)
    with pytest.warns(DistillWarning, match="hardly better than a constant .* relative error is"):
        sim, report = distill(deq, x, student, Lessons(epochs=3))
    assert report.heldout_centred > CONSTANT
    assert "hardly better" in str(report)
    assert sim.limit.rank == 7
    assert torch.equal(sim.h.weight, readout.weight)
    assert float(examine(sim).defect) < 1e-10


def test_distill_refuses():
    deq = DEQ(Affine(4, 3))
    with pytest.raises(KoopsimError, match="at least 1"):
        distill(deq, inputs(3, 3), lessons=Lessons(heldout=0.01))
    with pytest.raises(KoopsimError, match="name the lift"):
        distill(deq_of_images(), torch.rand(20, 2, 3, 3))
    unsettled = DEQ(lambda z, x: z + x, max_steps=3)
    with pytest.raises(KoopsimError, match="none are left"):
        distill(unsettled, inputs(20, 3).abs() + 1)


def deq_of_images() -> DEQ:
    return DEQ(lambda z, x: 0.5 * z + x)


def seen_as(cases, repelling, elsewhere, branches=(1,)):
    n = len(cases)
    z, yes = torch.zeros(n, 1), torch.ones(n, dtype=torch.bool)
    masks = (torch.tensor([i in some for i in range(n)]) for some in (repelling, elsewhere))
    return Settling(tuple(cases), z, z, yes, z[:, 0], *masks, torch.tensor(branches), yes)


def test_what_is_said_of_equilibria_is_of_the_inputs_it_holds_for():
    """Of six inputs two repel, one of which grows and is left out; another attracts, beside z_0's branch."""
    seen = seen_as(["fixed-point"] * 5 + ["divergent"], {0, 5}, {1}, (2, 1))
    chosen, usable, _ = targets_of(seen, None)
    assert (chosen, usable.tolist()) == ("equilibrium", [True] * 5 + [False])
    assert _notes(seen, chosen, usable, asked=False) == (
        "1 of 6 inputs were left out: they reach no equilibrium (the iteration: divergent on 1, fixed-point on 5).",
        "The solver's equilibrium repels on 1 of 6 inputs; there z_0's branch is the target.",
        "On 1 other inputs of 6 the solver's equilibrium attracts and is the target; z_0's branch goes to another.",
    )
    chosen, usable, _ = targets_of(seen, "equilibrium")  # its answer is learnt wherever it is
    assert _notes(seen, chosen, usable, asked=True) == (
        "The solver's equilibrium repels on 2 of 6 inputs; the SIM learns it all the same, as target= asks.",
        "On 1 inputs of 6 the solver's equilibrium attracts and is the target; z_0's branch goes to another.",
    )
    moving = seen_as(["invariant-set"] * 3 + ["fixed-point"], {0, 1, 2}, {3})
    said = _notes(moving, *targets_of(moving, None)[:2], asked=False)
    assert said == ("The iteration keeps moving on 3 of 4 inputs: the target is its invariant measure.",)


def test_a_measure_that_is_no_better_than_a_constant():
    report = MeasureReport(mmd=0.5, mmd_mean=0.52, mmd_equilibrium=1.0, floor=0.0, averages=1.0, second_moments=1.0)
    (said,) = _no_better(9.0, 1.0, report)
    assert "whose MMD is 0.52: its own is 0.5." in said
    assert _no_better(9.0, 1.0, replace(report, mmd=0.1)) == ()
    assert _no_better(0.1, 1.0, None) == ()
    assert len(_no_better(0.95, 1.0, None)) == 1


def test_inputs_that_do_not_converge_are_left_out_and_counted():
    def cell(z, x):
        return torch.where(x[:, :1] > 1.5, z + x, 0.5 * z + x)

    x = inputs(200, 2)
    with pytest.warns(DistillWarning, match="15 of 200 inputs were left out.*divergent on 15"):
        _, report = distill(DEQ(cell), x, lessons=Lessons(epochs=2))
    assert report.unconverged == int((x[:, 0] > 1.5).sum()) > 0
    assert report.inputs + report.heldout == 200 - report.unconverged


# ---------------------------------------------------------------- the closed form


@pytest.mark.parametrize("degree", [1, 2])
def test_closed_form_is_exact_for_an_affine_cell(degree):
    cell = Affine(4, 3, 0.8)
    closed = closed_form(DEQ(cell), inputs(80, 3), Monomials(degree))
    x = inputs(40, 3, seed=7)
    with torch.no_grad():
        exact = cell.equilibrium(x)
    assert closed.verdict.case == "fixed-point"
    assert closed.misfit < 1e-10
    assert (closed(x) - exact).abs().max() < 1e-6


def test_closed_form_beats_the_mean_on_a_tanh_cell(taught):
    deq, sim, _ = taught
    x = inputs(100, 3, seed=7)
    errors = compare(deq, x, sim, closed_form(deq, inputs(100, 3), Monomials(1)))
    assert errors["distilled SIM"] < errors["closed form"] < errors["mean"]


def test_closed_form_refuses_where_there_is_no_limit():
    from cells import rotation

    with pytest.raises(KoopsimError, match="verdict is invariant-set"):
        closed_form(rotation(0.7), inputs(20, 2), Monomials(1))
    with pytest.raises(KoopsimError, match="verdict is divergent"):
        closed_form(rotation(0.7, 1.1), inputs(20, 2), Monomials(1))
    with pytest.raises(KoopsimError, match="blew up"):
        closed_form(lambda z, x: z**3 + 100, inputs(5, 2))
    with pytest.warns(UnconvergedWarning):  # the solver's word for it
        DEQ(rotation(0.7), solver="picard")(inputs(3, 2))
    with pytest.raises(KoopsimError, match="nothing to compare"):
        compare(DEQ(lambda z, x: z + 1 + x.abs(), max_steps=3), inputs(3, 2))


def test_examine_a_sim():
    torch.manual_seed(0)
    free = build_sim(SIMConfig(MLPConfig(2, 8), lift_dim=12, hidden=6, outputs=2))
    found = examine(free)
    assert found.dim == 12
    assert found.rank == len(found.singular_values) == 6
    assert found.defect == pytest.approx(float(free.limit.invariance_defect().detach()))
    assert 0 < found.seen_share < 1
    exact = examine(build_sim(SIMConfig(MLPConfig(2, 8), lift_dim=12, hidden=6, outputs=2, projector=True)).double())
    assert exact.defect < 1e-12
    assert exact.verdict.case == "fixed-point"
    assert len(exact.verdict.fixed) == 6
    assert exact.to_dict()["numerical_rank"] == 6
    with pytest.raises(KoopsimError, match="no limit operator"):
        examine(torch.nn.Linear(2, 2))


def test_steps_are_counted_and_the_solver_is_left_as_it_was(taught):
    from koopsim.bridge.step_counts import count_steps

    deq, sim, _ = taught
    x = inputs(40, 3, seed=5)
    with torch.no_grad():
        mean = deq(inputs(200, 3))[0].mean(dim=0)
    rows = count_steps(deq, sim, x, mean, ("picard", "anderson"), (1e-2, 1e-3))
    assert [(r["solver"], r["tolerance"]) for r in rows][::3] == [("picard", 1e-2), ("anderson", 1e-3)]
    assert all(r["saved_by_the_sim"] > 0.1 and r["cold_unconverged"] == r["warm_unconverged"] == 0 for r in rows)
    assert all(r["saved_by_the_sim"] > r["saved_by_the_mean"] for r in rows)
    assert (deq.solver, deq.tol) == ("anderson", 1e-8)
