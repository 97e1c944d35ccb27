"""Every row at tiny sizes: both sides are there, the ratio is theirs, what is missing is said."""

import json
import math
from importlib.util import find_spec
from unittest.mock import patch

import pytest
import torch

from koopsim import bench
from koopsim.bench.growth import draw_growth, exponent
from koopsim.bench.inference import settled_inverse
from koopsim.bench.machine import Machine
from koopsim.bench.peers import TorchDEQ, solver_stepping
from koopsim.bench.result import Comparison, GrowthCurve, Side
from koopsim.bench.setting import Setting, Sizes, in_precision, model_of
from koopsim.bench.stacks import random_pictures
from koopsim.bench.timing import Timing
from koopsim.errors import KoopsimError
from koopsim.zoo import load

TINY = Sizes(
    turns=3, horizon=10, copy_batches=(2,), solver_batch=1, solvers=("broyden",), image_sets=("digits",), image_batch=4,
    large_batch=4, trials=3, pictures=2, picture_size=8, edmd=((2, 2, 200),), growth_horizons=(10, 20),
    growth_lifted=(8, 16), growth_pictures=(1, 2), growth_trials=(1, 2), points=16, growth_solver=0,
)  # fmt: skip


@pytest.fixture(scope="module")
def findings():
    """All but machine code, which a compiler takes half a minute for: see the next test."""
    deployed = bench.deployed
    few = {name: deployed.WORKS[name] for name in ("copy/sim-single",)}
    files = {format: ending for format, ending in deployed.FORMATS.items() if format != "aoti"}
    rows = ["train", "capture", "inference", "fuse", "deploy", "stack", "pictures", "solver", "edmd", "paper", "growth"]
    with patch.object(deployed, "WORKS", few), patch.object(deployed, "FORMATS", files):
        return bench.run(rows, "cpu", sizes=TINY)


@pytest.mark.slow
def test_deployed_answers_are_measured_in_every_form():
    found = bench.run(["deploy"], "cpu", sizes=TINY).comparisons
    assert {c.ours.name for c in found} == {"copy/sim-single, deployed", "copy/sim-two, deployed"}
    assert {c.other.name for c in found} >= {f"copy/sim-two, {form}" for form in ("pt2", "aoti")}


def of(findings, row):
    return [c for c in findings.comparisons if c.row == row]


def test_every_row_is_measured_or_said_to_be_left_out(findings):
    rows = {c.row for c in findings.comparisons} | {"growth"} | set(findings.skipped)
    assert rows == {*bench.ROWS, bench.GROWTH}
    assert "CUDA" in findings.skipped["capture"]
    assert "KOOPSIM_PAPER_CODE" in findings.skipped["paper"]
    for peer, row in (("torchdeq", "solver"), ("deeptime", "edmd")):
        if not find_spec(peer):
            assert "koopsim[bench]" in findings.skipped[row]


def test_ratios_are_the_others_time_over_ours(findings):
    for c in findings.comparisons:
        assert c.ratio == c.other.timing.seconds / c.ours.timing.seconds
        assert 1e-3 < c.ratio < 1e6
        assert c.ours.timing.seconds > 0


def test_sims_stand_against_models_with_solvers(findings):
    pairs = {(c.ours.name, c.other.name) for c in of(findings, "train")}
    assert ("copy/sim-single", "copy/deq") in pairs
    assert ("digits/sim-two", "digits/mondeq-multi") in pairs
    batches = {c.work.rsplit(" ", 1)[1] for c in of(findings, "inference")}
    assert batches == {"1", "4"}
    solver = next(c for c in of(findings, "train") if c.other.name == "copy/deq")
    assert "solver steps" in solver.other.note
    assert solver.ours.note == ""


def test_every_training_step_has_its_floor(findings):
    steps = [c for c in findings.comparisons if c.row in ("train", "stack", "pictures")]
    assert len(steps) >= 8
    for side in (side for c in steps for side in (c.ours, c.other)):
        assert side.floor is not None
        assert side.floor.seconds > 0
        assert side.above_floor == side.timing.seconds / side.floor.seconds


def test_a_stack_is_compared_with_as_many_models_alone(findings):
    (stack,) = of(findings, "stack")
    assert stack.ours.name.startswith("3 x")
    assert stack.ours.floor == stack.other.floor
    (pictures,) = of(findings, "pictures")
    assert pictures.ours.name.startswith("2 x")


def test_the_findings_are_json(findings):
    again = json.loads(json.dumps(findings.as_dict(), allow_nan=False))
    assert again["machine"]["limits"] == "measured"
    assert again["comparisons"][0]["ours"]["floor_bound"] in ("arithmetic", "bytes")
    assert {c["axis"] for c in again["curves"]} == {"T", "N", "pictures", "trials"}
    assert again["environment"]["cores"] >= 1


def test_curves_are_drawn(findings, tmp_path):
    for curve in findings.curves:
        assert all(len(line) == len(curve.points) for line in [*curve.seconds.values(), curve.floors])
    missing = GrowthCurve("T", "made", (1, 2, 4), {"a": (1.0, 2.0, None)}, (0.1, 0.2, 0.3))
    file = draw_growth([*findings.curves, missing], "a machine", tmp_path / "growth.png")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_the_exponent_of_a_power_is_the_power():
    points = (10, 20, 40, 80)
    assert exponent(points, [3e-6 * p**1.7 for p in points]) == pytest.approx(1.7)
    assert exponent(points, [1.0, 1.0, 4.0, None]) == pytest.approx(2)
    assert exponent((1, 2), (1.0, None)) is None


def test_a_ratio_above_one_means_the_other_is_slower():
    sides = [Side("x", Timing(seconds, 0.0, 3, None)) for seconds in (0.5, 2.0)]
    assert Comparison("row", "work", *sides).ratio == 4


def test_an_unknown_row_says_which_was_meant():
    with pytest.raises(KoopsimError, match="Did you mean 'train'"):
        bench.run(["trian"], "cpu", sizes=TINY)


def test_the_weights_do_not_move_while_steps_are_measured():
    setting = Setting(torch.device("cpu"), Machine("made", {"float32": 1.0}, 1.0, "table", 1), TINY)
    from koopsim.bench.training import copy_stepping

    model = model_of("copy/sim-single", setting.device)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    work = copy_stepping(model, setting, 2, 10).maker(setting, capture=False)()
    for _ in range(5):
        work()
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert 0 < float((after - before).abs().max()) < 1e-4


def test_a_settled_mondeq_gives_the_same_answers():
    plain, quick = load("mnist/mondeq-single"), settled_inverse(load("mnist/mondeq-single"))
    x = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(quick(x), plain(x))


def test_torchdeq_stands_in_for_our_solver():
    pytest.importorskip("torchdeq")
    setting = Setting(torch.device("cpu"), Machine("made", {"float32": 1.0}, 1.0, "table", 1), TINY)
    ours, theirs = (solver_stepping(name, "broyden", setting) for name in ("koopsim", "torchdeq"))
    assert isinstance(theirs.model.deq, TorchDEQ)
    with torch.no_grad():
        y, z = (s.model.train()(s.x) for s in (ours, theirs))
    torch.testing.assert_close(y, z, rtol=0.05, atol=0.05 * float(y.abs().max()))


def test_precision_is_put_back():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    with in_precision("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
    assert before == (
        torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    )  # fmt: skip


def test_random_pictures_are_of_the_size_asked_for():
    x, y = random_pictures(3, 8, torch.device("cpu")).split("train")
    assert (tuple(x.shape), tuple(y.shape)) == ((16, 2), (3, 16, 3))
    assert math.isclose(float(y.mean()), 0.5, abs_tol=0.15)
