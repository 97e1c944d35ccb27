"""The residuals that a comparison of solvers is made at: ours are known, torchdeq's must be of the same kind."""

import pytest
import torch

from koopsim.bench.machine import Machine
from koopsim.bench.peers import TOLERANCE, WORKS, _solver_rows, loss_scale, residuals, solver_stepping
from koopsim.bench.setting import Setting, Sizes

MACHINE = Machine("made", {"float32": 1.0}, 1.0, "table", 1)
SETTING = Setting(
    torch.device("cpu"), MACHINE, Sizes(turns=3, horizon=10, solver_batch=3, image_batch=4, solvers=("picard",))
)


@pytest.mark.parametrize("solver", ["anderson", "broyden", "picard"])
def test_measured_residuals_are_those_our_solver_reports(solver):
    stepping = solver_stepping("koopsim", solver, SETTING, "copy", loss_scale(SETTING))
    forward, backward = residuals(stepping)
    model = stepping.model.train()
    stepping.loss(model(stepping.x), stepping.y).backward()
    info = model.last_info
    assert forward == pytest.approx(float(info.residuals.max()), rel=1e-2)
    assert backward == pytest.approx(float(info.backward.residuals.max()), rel=0.1)
    assert max(forward, backward) < TOLERANCE


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
    ours, theirs = ([float(word.strip(",")) for word in side.note.split()[1::2]] for side in (row.ours, row.other))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine <= 1.05 * max(other, 1e-5)
        assert other < 1.5 * TOLERANCE  # its residual is of all parts together, here the worst part counts
