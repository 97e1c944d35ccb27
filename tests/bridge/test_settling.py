"""Where iterations go: the four example cells, slow and growing ones, and the solver's answers that repel."""

import math

import pytest
import torch
from cells import Affine, inputs, rotation

from koopsim.bridge import settling
from koopsim.bridge.cells import Bistable, Chaos, Flip, LimitCycle, example_inputs
from koopsim.bridge.hidden import hidden_map, orbit_of
from koopsim.bridge.settling import radius_by_differences
from koopsim.implicit import DEQ


@pytest.mark.parametrize("cell", [Flip(), LimitCycle(), Chaos()], ids=lambda c: type(c).__name__)
def test_a_solver_s_point_inside_an_invariant_set_repels(cell):
    seen = settling(DEQ(cell, max_steps=100), example_inputs(40))
    assert set(seen.cases) == {"invariant-set"}
    assert seen.converged.sum() >= 30  # the solver is content
    assert torch.equal(seen.repelling, seen.converged)
    assert seen.radii[seen.converged].min() > 1
    assert not seen.elsewhere.any()


def test_bistable_branches_are_told_apart():
    cell, x = Bistable(), example_inputs(60)
    seen = settling(DEQ(cell, max_steps=100), x, starts=8, tried=20)
    assert set(seen.cases) == {"fixed-point"}
    h = cell.tilt(x)
    assert torch.equal(seen.ends.sign(), h.sign())  # z_0 = 0 falls to the side it is tilted to
    inside = h[:20, 0].abs() < 2 / (3 * math.sqrt(3))
    assert (seen.branches[inside] == 2).double().mean() > 0.8
    assert (seen.branches[~inside] == 1).all()
    assert seen.repelling.any()
    roots = seen.equilibria[seen.repelling]
    assert (3 * roots.square() < 1).all()  # the middle root: d/dz (z - z^3 + h) > 0


@pytest.mark.parametrize(
    ("cell", "case"),
    [
        (lambda z, x: 0.97 * z + x, "fixed-point"),
        (lambda z, x: -0.97 * z + x, "fixed-point"),
        (lambda z, x: z + 0.1, "divergent"),
        (lambda z, x: 1.05 * z + x, "divergent"),
        (lambda z, x: z**3 + 9 + x, "divergent"),
        (lambda z, x: z + 1 / (1 + z.abs()), "undecided"),  # grows like sqrt(2 l), at ever smaller steps
        (lambda z, x: 1 - z, "invariant-set"),
    ],
)
def test_bare_cells(cell, case):
    assert settling(cell, torch.ones(2, 1, dtype=torch.float64)).cases == (case, case)


def test_slow_but_sure_is_not_growth():
    seen = settling(DEQ(lambda z, x: 0.999 * z + x, tol=1e-10, max_steps=50), torch.ones(1, 1, dtype=torch.float64))
    assert seen.cases == ("fixed-point",)
    assert seen.ends.item() == pytest.approx(1000, rel=1e-3)
    assert not seen.repelling.any()


def test_spectral_radius():
    x = inputs(3, 2)
    for angle, growth in ((0.7, 0.8), (2.0, 1.1), (0.0, 0.5)):
        f, z = hidden_map(rotation(angle, growth), x)
        assert torch.allclose(radius_by_differences(f, z), torch.full((3,), growth, dtype=torch.float64), rtol=1e-4)
    cell = Affine(6, 3, 0.9)
    f, z = hidden_map(cell, inputs(2, 3))
    exact = torch.linalg.eigvals(cell.W).abs().max()
    assert radius_by_differences(f, z, 200)[0].item() == pytest.approx(exact.item(), rel=0.05)


def test_large_cells_are_sampled(monkeypatch):
    import sys

    module = sys.modules["koopsim.bridge.settling"]
    monkeypatch.setattr(module, "WHOLE", 10)
    x = inputs(64, 3)
    seen = settling(DEQ(Affine(4, 3, 0.5), tol=1e-6), x)
    assert 16 <= seen.looked.sum() < 64
    assert set(seen.cases) == {"fixed-point"}
    moving = settling(DEQ(Flip(), max_steps=100), example_inputs(64))
    assert moving.looked.all()  # nothing there attracts: each is looked at
    assert moving.repelling.all()


def test_example_cells_do_what_they_say():
    x = example_inputs(5)
    flip = orbit_of(*hidden_map(Flip(), x), 200)[:, -2:]
    assert torch.allclose(torch.as_tensor(flip).sort(dim=1).values, Flip().orbit(x).sort(dim=1).values, atol=1e-8)
    orbit = torch.as_tensor(orbit_of(*hidden_map(LimitCycle(), x), 200)[:, -1])
    assert torch.allclose(orbit.square().sum(1, keepdim=True), LimitCycle().parameters_of(x)[0], atol=1e-8)
    run = torch.as_tensor(orbit_of(*hidden_map(Chaos(), x), 5000))
    assert torch.allclose(run.mean(1), Chaos().mean(x), atol=0.05)
    assert torch.allclose(run.var(1), Chaos().variance(x), rtol=0.1)
