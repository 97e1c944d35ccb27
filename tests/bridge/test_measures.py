"""Two-tier SIMs of cells that keep moving, and the two-tier equation in closed form."""

import numpy as np
import pytest
import torch
from cells import inputs

from koopsim.bridge import DistillWarning, Lessons, Student, closed_measure, compare_measures, distill, embed, embedding
from koopsim.bridge.cells import Bistable, Chaos, Flip, LimitCycle, example_inputs
from koopsim.bridge.measures import bump, long_run, reader
from koopsim.errors import KoopsimError
from koopsim.implicit import DEQ
from koopsim.nn import MLP, SIM
from koopsim.nn.fourier import RandomFourierFeatures


@pytest.fixture(scope="module")
def flipping():
    torch.manual_seed(0)
    with pytest.warns(DistillWarning, match="keeps moving on 300 of 300"):
        return distill(DEQ(Flip(), max_steps=100), example_inputs(300), Student(features=128), Lessons(epochs=50))


def test_a_flip_is_learnt_as_the_two_points_it_is(flipping):
    sim, report = flipping
    m = report.measure
    assert report.target == "invariant-set"
    assert report.repelling == 300
    assert m.mmd < 0.15 < 0.8 < m.mmd_equilibrium  # the point a solver gives is nowhere near
    assert m.mmd < 0.4 * m.mmd_mean
    assert m.averages < 0.1
    assert report.heldout_centred < 0.1
    assert "keeps moving" in str(report)
    x = example_inputs(20, 9)
    with torch.no_grad():
        seen = embedding(sim, x)
        truth = embed(sim, Flip().orbit(x)).mean(dim=1)
        between = embed(sim, Flip().orbit(x).mean(dim=1))  # the repelling equilibrium
    assert ((seen - truth).norm(dim=1) < (seen - between).norm(dim=1)).all()
    assert isinstance(sim.psi, RandomFourierFeatures)


def test_the_closed_form_beside_the_trained_sim(flipping):
    sim, _ = flipping
    closed = closed_measure(Flip(), example_inputs(200))
    errors = compare_measures(Flip(), example_inputs(40, 5), sim, closed)
    assert errors["closed form"]["averages"] < 0.02
    assert errors["closed form"]["mmd"] < 0.1
    assert errors["long run"]["mmd"] <= errors["closed form"]["mmd"]
    assert errors["two-tier SIM"]["mmd"] < 0.2
    assert np.allclose(closed.projector @ closed.projector, closed.projector)
    assert closed.mixing_rate == pytest.approx(1, abs=0.01)  # a flip never mixes
    assert np.abs(closed.eigenvalues + 1).min() < 0.01  # its eigenvalue -1


def test_closed_form_of_chaos_knows_mean_and_variance():
    x, new = example_inputs(200), example_inputs(50, 3)
    closed = closed_measure(Chaos(), x)
    mean = closed.average(lambda z: z)(new)
    second = closed.average(torch.square)(new)
    spread = Chaos().variance(new).mean().sqrt()
    assert (mean - Chaos().mean(new)).square().mean().sqrt() < 0.15 * spread
    assert (second - mean.square() - Chaos().variance(new)).abs().mean() < 0.3 * spread**2
    assert closed.mixing_rate < 0.6


def test_closed_form_of_a_limit_cycle_knows_its_radius():
    new = example_inputs(50, 3)
    closed = closed_measure(LimitCycle(), example_inputs(200))
    radius = closed.average(lambda z: z.square().sum(1, keepdim=True))(new)
    assert (radius - LimitCycle().parameters_of(new)[0]).square().mean().sqrt() < 0.02


def test_what_a_closed_form_averages():
    closed = closed_measure(Flip(), example_inputs(60))
    same = closed.average(lambda z: 3.0)(example_inputs(5, 1))
    torch.testing.assert_close(same, torch.full((5, 1), 3.0).double(), rtol=1e-4, atol=0)
    with pytest.raises(KoopsimError, match="takes a function of states"):
        closed.average(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(KoopsimError, match=r"a row for each of \d+ states; g gave shape \(4, "):
        closed.average(lambda z: z[:4])


def test_closed_form_refuses():
    def two(z, x):
        return 0.5 * z + 0.5 * torch.where(z >= 0, 1.0, -1.0) * (1 + 0.1 * x)

    with pytest.raises(KoopsimError, match="several invariant sets"):
        closed_measure(two, inputs(80, 1), starts=4)
    with pytest.raises(KoopsimError, match="blew up"):
        closed_measure(lambda z, x: 9 * z + x**2 + 1, inputs(5, 1), steps=400)


def test_bistable_takes_the_branch_that_is_reached():
    cell, x = Bistable(), example_inputs(300)
    with pytest.warns(DistillWarning) as said:
        sim, report = distill(DEQ(cell, max_steps=100), x, lessons=Lessons(epochs=40))
    assert any("repels" in str(w.message) and "z_0's branch" in str(w.message) for w in said)
    assert report.target == "equilibrium"
    assert report.replaced > 200
    assert report.branches > 0.5
    new = example_inputs(100, 4)
    clear = cell.tilt(new)[:, 0].abs() > 0.1
    with torch.no_grad():
        assert torch.equal(sim.state(new)[clear].sign(), cell.tilt(new)[clear].sign())


def test_a_repelling_equilibrium_is_learnt_only_when_asked_and_said():
    with pytest.warns(DistillWarning, match="repels on 60 of 60.*as target= asks"):
        deq, lessons = DEQ(Flip(), max_steps=100), Lessons(epochs=2)
        _, report = distill(deq, example_inputs(60), lessons=lessons, target="equilibrium")
    assert report.target == "equilibrium"
    assert report.repelling == 60
    with pytest.raises(KoopsimError, match="expected 'equilibrium'"):
        distill(DEQ(Flip()), example_inputs(60), target="set")


def test_growth_is_refused():
    with pytest.raises(KoopsimError, match=r"divergent on 20.*none are left"):
        distill(DEQ(lambda z, x: 1.1 * z + x, max_steps=5), inputs(20, 2).abs() + 1)


def test_a_point_is_a_measure_too():
    """For a cell that settles on half of the inputs the target is a measure everywhere: psi(z*) where it settles."""

    def cell(z, x):
        return torch.where(x[:, :1] > 0, 1 - z, 0.5 * z + 0.25)

    sim = SIM(MLP(1, 8, 8), 8, 1, 1, RandomFourierFeatures(8, 64, 0.5)).double()
    x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    found = long_run(cell, x, sim, 200, 400)
    ends = torch.tensor([[[1.0], [0.0]], [[0.5], [0.5]]], dtype=torch.float64)  # z_0 = x: 1, 0, 1, ... and 1/2
    with torch.no_grad():
        assert torch.allclose(found.embedding, embed(sim, ends).mean(dim=1), atol=1e-6)
    assert found.embedding[1].norm().item() == pytest.approx(1)
    assert torch.allclose(found.mean, torch.full((2, 1), 0.5, dtype=torch.float64), atol=1e-6)
    assert found.floor < 1e-6


def test_bump_weights_average_a_cycle_at_once():
    w = torch.tensor(bump(400))
    assert w.sum().item() == pytest.approx(1)
    for angle in (0.7, 2.0):
        assert (w * torch.cos(angle * torch.arange(400))).sum().abs() < 1e-6


def test_observables_are_read_off_the_embedding():
    sim = SIM(MLP(1, 8, 8), 8, 1, 1, RandomFourierFeatures(8, 128, 0.7)).double()
    z = torch.linspace(-1, 1, 500, dtype=torch.float64)[:, None]
    with torch.no_grad():
        c = reader(sim, z, torch.square)
        assert torch.allclose(embed(sim, z) @ c, z.square(), atol=1e-2)


def test_the_picture_of_a_distilled_cell(flipping):
    from koopsim.bridge import plot_distilled

    sim, report = flipping
    x = example_inputs(6, 8)
    figure = plot_distilled(Flip(), x, sim, report, closed_measure(Flip(), example_inputs(60)))
    assert [t.get_text() for t in figure.axes[1].get_legend().get_texts()] == [
        "solver's point",
        "two-tier SIM",
        "closed form",
    ]
