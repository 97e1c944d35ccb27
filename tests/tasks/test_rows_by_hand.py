"""Figures, losses and batch sizes of rows, worked out by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from koopsim.errors import KoopsimError
from koopsim.nn.flat import joined
from koopsim.tasks.row_losses import entropy_slope, row_loss, row_targets, squares_slope
from koopsim.tasks.sequence_data import statistics_of
from koopsim.tasks.table import batch_for, recipe_for, row_figures


def test_figures_of_classes():
    outputs = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 0])
    found = row_figures(outputs, y, [SimpleNamespace(classes=("a", "b"))])
    wrong, right = math.log(1 + math.exp(2)), math.log(1 + math.exp(-2))
    assert found == pytest.approx({"score": 0.75, "loss": (3 * right + wrong) / 4, "balanced": (1 + 0.5) / 2})


def test_figures_of_numbers_in_the_units_of_the_first():
    y = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
    outputs = torch.tensor([[1.0, 1.0], [2.0, 1.0], [4.0, 1.0]], dtype=torch.float64)
    found = row_figures(outputs, y, [SimpleNamespace(classes=None, deviation=10.0)])
    # of the first 1 - 1/8 is explained; the second never changes and is met
    wanted = {"score": (7 / 8 + 1) / 2, "loss": 1 / 6, "rmse": 10 * math.sqrt(1 / 3), "mae": 10 / 3}
    assert found == pytest.approx(wanted)
    off = row_figures(outputs + torch.tensor([0.0, 1.0]), y, [SimpleNamespace(classes=None, deviation=1.0)])
    assert off["score"] == pytest.approx((7 / 8 + 0) / 2)  # constant, and not met


@pytest.mark.parametrize(
    ("rows", "batch"),
    [(1, 32), (40, 32), (100, 64), (150, 64), (1000, 128), (10_000, 512), (100_000, 2048), (10**7, 4096)],
)
def test_a_batch_is_the_power_of_two_nearest_to_five_roots(rows, batch):
    assert batch_for(rows) == batch
    assert recipe_for(rows).batch_size == batch
    assert batch_for(0) == 32


def test_losses_with_and_without_weights():
    outputs, y = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    labels, w = torch.tensor([0, 1, 1, 0, 1]), torch.tensor([1.0, 0.0, 2.0, 0.5, 1.5], dtype=torch.float64)
    numbers = row_loss(False, True)(outputs, row_targets(y, w))
    assert float(numbers) == pytest.approx(float(((outputs - y).square().mean(1) * w).sum() / 5))
    classes = row_loss(True, True)(outputs, row_targets(labels, w))
    each = F.cross_entropy(outputs, labels, reduction="none")
    assert float(classes) == pytest.approx(float((each * w).sum() / 5))
    assert float(row_loss(True, False)(outputs, labels)) == pytest.approx(float(each.mean()))
    assert float(row_loss(False, False)(outputs, y)) == pytest.approx(float((outputs - y).square().mean()))
    assert row_targets(y, None) is y
    assert row_targets(labels, w).shape == (5, 2)
    nobody = row_targets(labels, torch.zeros(5, dtype=torch.float64))
    assert float(row_loss(True, True)(outputs, nobody)) == 0


def test_slopes_are_gradients():
    outputs = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    for slope, loss, y in (
        (squares_slope, F.mse_loss, torch.randn(5, 3, dtype=torch.float64)),
        (entropy_slope, F.cross_entropy, torch.tensor([0, 2, 1, 1, 0])),
    ):
        wanted = loss(outputs, y)
        (gradient,) = torch.autograd.grad(wanted, outputs)
        found, own = slope(outputs.detach().clone(), y)
        torch.testing.assert_close(found, wanted.detach())
        torch.testing.assert_close(own, gradient)


def test_statistics_of_series_with_gaps():
    values = [np.array([[1.0, 5.0], [np.nan, 5.0]]), np.array([[3.0, 5.0]])]
    scale, shift = statistics_of(values, plain=False)
    assert scale == pytest.approx((1.0, 1.0))  # of 1 and 3 the deviation is 1; what never changes keeps its size
    assert shift == pytest.approx((2.0, 5.0))
    assert statistics_of(values, plain=True) == ((1.0, 1.0), (0.0, 0.0))
    with pytest.raises(KoopsimError, match="A channel has no values at all in the training part"):
        statistics_of([np.array([[np.nan, 1.0], [np.nan, 2.0]])], plain=False)


def test_statistics_of_series_far_from_zero_and_in_small_units():
    wave = np.sin(np.arange(50.0))[:, None]
    (scale,), (shift,) = statistics_of([1e8 + wave], plain=False)
    assert scale == pytest.approx(1 / wave.std(), rel=1e-6)
    assert shift == pytest.approx(1e8 + wave.mean(), abs=1e-3)
    for size in (1e-13, 1e-60):
        assert statistics_of([size * wave], plain=False)[0] == pytest.approx((1 / wave.std() / size,), rel=1e-6)
    scale, shift = statistics_of([np.float32(wave)], plain=False)
    assert (scale, shift) == (tuple(np.float32(scale).tolist()), tuple(np.float32(shift).tolist()))  # as it was


def test_tensors_are_joined_into_one_vector():
    a, b = torch.arange(4.0).view(2, 2), torch.tensor(9.0)
    assert joined([a, b]).tolist() == [0, 1, 2, 3, 9]
    assert joined([a]).tolist() == [0, 1, 2, 3]
