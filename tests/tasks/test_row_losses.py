"""Losses over rows: weights are shares of the batch, and equal ones are none."""

import pytest
import torch
from torch.nn import functional as F

from koopsim.tasks.row_losses import row_loss, row_targets

OUT = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS, NUMBERS = torch.tensor([0, 1, 2, 2, 1, 0]), OUT.flip(0) + 0.5
W = torch.tensor([1.0, 2, 0, 3, 0, 1], dtype=torch.float64)


@pytest.mark.parametrize("classes", [True, False])
def test_weights_are_repeated_rows(classes):
    y = LABELS if classes else NUMBERS
    weighted = row_loss(classes, True)(OUT, row_targets(y, W))
    rows = torch.arange(6).repeat_interleave(W.long())
    torch.testing.assert_close(weighted, row_loss(classes, False)(OUT[rows], y[rows]))
    torch.testing.assert_close(weighted, row_loss(classes, True)(OUT, row_targets(y, 10 * W)))


def test_without_weights_they_are_the_usual_ones():
    torch.testing.assert_close(row_loss(True, False)(OUT, LABELS), F.cross_entropy(OUT, LABELS))
    torch.testing.assert_close(row_loss(False, False)(OUT, NUMBERS), F.mse_loss(OUT, NUMBERS))
    assert row_targets(LABELS, None) is LABELS
