"""The median heuristic: closed forms, and what it is for."""

import math
from dataclasses import replace

import pytest
import torch
from small_search import CPU, tiny_run
from torch import nn

from koopsim.errors import KoopsimError
from koopsim.models import build
from koopsim.nn import SIM, RandomFourierFeatures
from koopsim.searching.bandwidth import median_bandwidth, with_median_bandwidth
from koopsim.tasks import build_task


def identity(bandwidth=1.0, inputs=3):
    return SIM(nn.Identity(), inputs, 2, fourier=RandomFourierFeatures(inputs, 8, bandwidth))


def test_the_median_of_known_distances():
    corners = torch.tensor([[0.0, 0, 0], [3, 0, 0], [0, 4, 0], [3, 4, 0]])  # 3, 3, 4, 4, 5, 5
    assert median_bandwidth(identity(), corners) == 4.0


def test_equal_points_do_not_count():
    doubled = torch.tensor([[0.0, 0, 0], [3, 0, 0], [0, 4, 0]]).repeat_interleave(4, 0)
    assert median_bandwidth(identity(), doubled) == 4.0
    with pytest.raises(KoopsimError, match="the same point"):
        median_bandwidth(identity(), torch.zeros(5, 3))


def test_gaussian_points_have_the_median_of_a_chi():
    x = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0))
    median_of_chi3 = 1.5381722  # of |N(0, I_3)|
    assert median_bandwidth(identity(), x) == pytest.approx(math.sqrt(2) * median_of_chi3, rel=0.03)


def test_it_scales_with_the_lift():
    run = tiny_run("copy/sim-two")
    task = build_task(run.task, CPU)
    torch.manual_seed(run.seed)
    model = build(run.model)
    x = task.split("train")[0][:20]
    before = median_bandwidth(model, x)
    with torch.no_grad():
        model.mu.linear.weight.mul_(7)
        model.mu.linear.bias.mul_(7)
    assert median_bandwidth(model, x) == pytest.approx(7 * before, rel=1e-5)


@pytest.mark.parametrize("name", ["copy/sim-two", "digits/sim-two", "image/sim-two"])
def test_every_two_tier_task_has_one_and_batch_norm_is_left_alone(name):
    run = tiny_run(name, precision="float32")
    task = build_task(run.task, CPU)
    found = with_median_bandwidth(run, task, 2.0, CPU)
    assert found.model.fourier.bandwidth == 2 * with_median_bandwidth(run, task, 1.0, CPU).model.fourier.bandwidth
    assert replace(found, model=run.model) == run
    model = build(run.model)
    x = task.inputs(task.split("train")[0][:8])
    median_bandwidth(model, x)
    assert model.training
    state = {k: v for k, v in model.state_dict().items() if "running" in k}
    assert all(float(v.sum()) in (0.0, float(v.numel())) for v in state.values())


def test_features_at_the_median_neither_blur_nor_shatter():
    """The kernel of a typical pair is exp(-1/2): far from 1 and from 0, whatever the scale of the lift."""
    x = 300 * torch.randn(500, 3, generator=torch.Generator().manual_seed(1))
    b = median_bandwidth(identity(), x)
    kernel = torch.exp(-(torch.pdist(x) ** 2) / (2 * b * b))
    assert float(kernel.median()) == pytest.approx(math.exp(-0.5), rel=1e-3)


def test_models_without_features_say_so():
    run = tiny_run("copy/sim-single")
    with pytest.raises(KoopsimError, match="no Fourier features"):
        with_median_bandwidth(run, build_task(run.task, CPU), 1.0, CPU)
    with pytest.raises(KoopsimError, match="Linear has no lift"):
        median_bandwidth(nn.Linear(2, 2), torch.zeros(3, 2))


def test_one_point_has_no_distance():
    with pytest.raises(KoopsimError, match="the same point"):
        median_bandwidth(identity(), torch.ones(1, 3))


def test_points_that_are_nearly_one_do_not_count():
    x = torch.tensor([[0.0, 0, 0], [1e-6, 0, 0], [1, 0, 0], [2e3, 0, 0]], dtype=torch.float64)
    assert median_bandwidth(identity().double(), x) == pytest.approx(1999.0)  # 1e-6 of 2000 is less than 1e-9 of it
    x[1, 0] = 4e-6
    assert median_bandwidth(identity().double(), x) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(("shape", "seen"), [((3000, 2), 1000), ((3000, 4, 2), 64), ((50, 2), 50), ((7, 4, 2), 7)])
def test_inputs_are_looked_at_from_the_first_to_the_last(shape, seen, monkeypatch):
    from types import SimpleNamespace

    from koopsim.searching import bandwidth

    asked = []

    def measured(model, x):
        asked.append(x)
        return 3.0

    monkeypatch.setattr(bandwidth, "median_bandwidth", measured)
    x = torch.arange(shape[0], dtype=torch.float32).reshape(-1, *[1] * (len(shape) - 1)).expand(shape)
    task = SimpleNamespace(split=lambda part: (x, None), inputs=lambda rows: rows)
    run = tiny_run("copy/sim-two")
    assert with_median_bandwidth(run, task, 0.5, CPU).model.fourier.bandwidth == 1.5
    rows = asked[0].reshape(seen, -1)[:, 0]
    assert (len(rows), float(rows[0]), float(rows[-1])) == (seen, 0.0, shape[0] - 1.0)
    assert (rows.diff() > 0).all()
