"""The residuals that a comparison of solvers is made at: ours are known, torchdeq's must be of the same kind."""

from dataclasses import replace

import pytest
import torch

from koopsim.bench.machine import Machine
from koopsim.bench.peers import (
    FLOAT32,
    MAX_STEPS,
    RESIDUALS,
    WORKS,
    _solver_rows,
    asked,
    loss_scale,
    solver_sides,
    solver_stepping,
)
from koopsim.bench.reached import Reached, reached
from koopsim.bench.setting import Setting, Sizes

MACHINE = Machine("made", {"float32": 1.0}, 1.0, "table", 1)
SETTING = Setting(
    torch.device("cpu"), MACHINE, Sizes(turns=3, horizon=10, solver_batch=3, image_batch=4, solvers=("picard",))
)


@pytest.mark.parametrize("solver", ["anderson", "broyden", "picard"])
def test_measured_residuals_are_those_our_solver_reports(solver):
    stepping = solver_stepping("koopsim", solver, SETTING, "copy", loss_scale(SETTING))
    forward, backward = reached(stepping).residuals
    model = stepping.model.train()
    stepping.loss(model(stepping.x), stepping.y).backward()
    info = model.last_info
    assert forward == pytest.approx(float(info.residuals.max()), rel=1e-2)
    assert backward == pytest.approx(float(info.backward.residuals.max()), rel=0.1)
    assert max(forward, backward) < FLOAT32.tolerance


def test_the_loss_is_scaled_until_the_gradient_at_the_fixed_point_is_of_size_one():
    stepping = solver_stepping("koopsim", "broyden", SETTING, "copy", loss_scale(SETTING))
    z, _ = stepping.model.train().solve(stepping.x)
    logits = torch.nn.functional.linear(z, stepping.model.embedding, stepping.model.output_bias)
    (g,) = torch.autograd.grad(stepping.loss(logits, stepping.y), z)
    assert 0.7 < float(g.flatten(1).norm(dim=1).mean()) < 1.42


@pytest.mark.parametrize("work", WORKS)
def test_ours_goes_as_far_as_torchdeq_went(work):
    pytest.importorskip("torchdeq")
    (row,) = _solver_rows(SETTING, work, "picard", loss_scale(SETTING, work))
    for way in ("forward", "backward"):
        ours, theirs = (side.reached[f"{way}_residual"] for side in (row.ours, row.other))
        assert ours <= 1.02 * max(theirs, FLOAT32.finest)
        assert theirs < FLOAT32.tolerance
        counts = [side.reached[f"{way}_evaluations"] for side in (row.ours, row.other)]
        assert abs(counts[0] - counts[1]) <= 1  # the same iteration to the same residual
    assert row.as_dict()["ours"]["reached"] == row.ours.reached
    assert "backward" in row.ours.note


@pytest.mark.filterwarnings("error::koopsim.implicit.UnconvergedWarning")
@pytest.mark.parametrize("solver", ["anderson", "broyden", "picard"])
def test_in_bf16_both_stop_by_their_test_and_ours_no_later(solver):
    """Asked for 1e-3, which bf16 does not resolve, ours went on for 60 steps where torchdeq's test let it go."""
    pytest.importorskip("torchdeq")
    setting, meaning = replace(SETTING, precision="bf16"), RESIDUALS["bf16"]
    sides = solver_sides(setting, "multiscale", solver, loss_scale(setting, "multiscale"))
    ours, theirs = (reached(sides[name], setting.autocast) for name in ("koopsim", "torchdeq"))
    for i in range(2):
        assert ours.residuals[i] <= 1.25 * max(theirs.residuals[i], meaning.finest)  # two roundings of one residual
        assert ours.evaluations[i] <= theirs.evaluations[i] + 4 < MAX_STEPS / 2


@pytest.mark.parametrize(
    ("found", "evaluations", "want"),
    [
        (5e-4, 9, 5.1e-4),
        (2e-3, 9, 2.04e-3),
        (2e-3, MAX_STEPS + 1, 1e-3),
        (5e-4, MAX_STEPS + 1, 5.1e-4),
        (1e-9, 9, 1e-5),
    ],
    ids=["reached", "above the tolerance by its own test", "out of steps", "out of steps but there", "rounding"],
)
def test_what_is_asked_of_ours(found, evaluations, want):
    end = Reached((found, 1e-4), (found, 1e-4), (evaluations, 5))
    assert asked(end, FLOAT32) == pytest.approx((want, 1.02e-4))
